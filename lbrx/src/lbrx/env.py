"""Every LBRX_* variable, read in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from lbrx.errors import SettingError

# The dictionary of os.environ, which takes two microseconds to find that a variable is unset: every
# evaluation asks for some.
_VARIABLES: Mapping[bytes, bytes] = vars(os.environ)["_data"]


def device() -> str:
    """LBRX_DEVICE: where tensors are created by default: `metal` or `cpu`. Unset, it is `metal`
    where a Metal or soft device works."""
    name = os.environ.get("LBRX_DEVICE", "")
    if name not in ("", "cpu", "metal"):
        raise SettingError(f"LBRX_DEVICE={name!r} is not a device: unset it, or give cpu or metal")
    return name


def cache_dir() -> Path:
    """LBRX_CACHE: folder of pipelines and measured kernel choices; `~/.cache/lbrx` by default."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("LBRX_CACHE") or base / "lbrx")


def shader_dir() -> Path | None:
    """LBRX_SHADERS: a folder of shaders to use in place of the package's, or of code that
    `lbrx shaders build --target` wrote."""
    given = os.environ.get("LBRX_SHADERS", "")
    if given and not Path(given).is_dir():
        raise SettingError(f"LBRX_SHADERS={given!r} is not a folder: unset it, or name one")
    return Path(given) if given else None


def replay() -> str:
    """LBRX_REPLAY: how recorded commands run again: `icb`, by indirect command buffers; `encode`,
    encoded in each run; `auto`, the default, as the device can."""
    choices = ("auto", "icb", "encode")
    name = os.environ.get("LBRX_REPLAY") or "auto"
    if name not in choices:
        raise SettingError(f"LBRX_REPLAY={name!r} is not a way: give auto, icb or encode")
    return name


def compile_notice() -> bool:
    """LBRX_COMPILE_NOTICE: `0` hides the line on standard error that says that first uses of
    kernels have been compiling for a second."""
    return _flag(b"LBRX_COMPILE_NOTICE")


def fusion() -> bool:
    """LBRX_FUSION: `0` gives every operation its own kernel, for debugging and measuring."""
    return b"LBRX_FUSION" not in _VARIABLES or _flag(b"LBRX_FUSION")


def _flag(name: bytes) -> bool:
    """A setting that is on unless it is 0."""
    value = _VARIABLES.get(name, b"1")
    if value not in (b"0", b"1"):
        raise SettingError(f"{name.decode()}={os.fsdecode(value)!r} is not a setting: give 0 or 1")
    return value == b"1"


def kernels() -> dict[str, str]:
    """LBRX_KERNEL: kernel variants to prefer where they apply: `matmul:mps,softmax:serial`."""
    return _variants(kernel_setting())


def kernel_setting() -> str:
    """LBRX_KERNEL as it is set."""
    return os.environ["LBRX_KERNEL"] if b"LBRX_KERNEL" in _VARIABLES else ""


@cache
def _variants(text: str) -> dict[str, str]:
    pairs = [item.partition(":") for item in text.split(",") if item.strip()]
    if wrong := [family for family, _, variant in pairs if not (family and variant)]:
        raise SettingError(
            f"LBRX_KERNEL={text!r}: {wrong[0]!r} does not name a variant: give family:variant"
        )
    return {family.strip(): variant.strip() for family, _, variant in pairs}
