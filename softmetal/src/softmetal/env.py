"""Every SOFTMETAL_* variable, read in one place."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from softmetal import cgroups
from softmetal.errors import SettingError

T = TypeVar("T")
D = TypeVar("D")

DEFAULT_CACHE_BYTES = 2 << 30
DEFAULT_TIMEOUT = 300.0
DEFAULT_COMPILER_TIMEOUT = 120.0
LONGEST_TIMEOUT = 1e9
MOST_THREADS = 1024
_MOST_QUOTED = 100  # characters of a value in an error
STRICT = ("msl", "no-msl", "bridge", "host", "validation", "no-validation")
_DEFAULT_STRICT = frozenset({"msl"})
_STRICT_TEXT = f"a list of {', '.join(STRICT)}"


# The dictionary of os.environ, which takes a microsecond to find that a variable is unset: as long
# as encoding a dispatch takes.
VARIABLES: Mapping[bytes, bytes] = vars(os.environ)["_data"]


def _read(name: str, parse: Callable[[str], T], default: D, expected: str) -> T | D:
    found = VARIABLES.get(name.encode())
    if not found:
        return default
    text = os.fsdecode(found)
    try:
        return parse(text)
    except ValueError:
        quoted = text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}..."
        raise SettingError(
            f"{name}={quoted!r} is not {expected}: unset it or give {expected}"
        ) from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _thread_count(text: str) -> int:
    value = _positive(text)
    if value > MOST_THREADS:
        raise ValueError(text)
    return value


def _flag(text: str) -> bool:
    return bool(("0", "1").index(text))


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= LONGEST_TIMEOUT:
        raise ValueError(text)
    return value


def _strict(text: str) -> frozenset[str]:
    wanted = frozenset(word.strip() for word in text.split(",") if word.strip())
    opposed = ({"msl", "no-msl"}, {"validation", "no-validation"})
    if not wanted <= set(STRICT) or any(wanted >= pair for pair in opposed):
        raise ValueError(text)
    return wanted - {"no-msl"} if "no-msl" in wanted else wanted | {"msl"}


def device() -> str:
    """SOFTMETAL_DEVICE: what runs kernels: `cpu` (default); `cuda:0`, an NVIDIA GPU; `discrete`,
    the CPU with device memory of its own; `null`, which records commands and computes nothing."""
    return _read("SOFTMETAL_DEVICE", str, "cpu", "'cpu', 'discrete', 'cuda:0' or 'null'")


def profile() -> str:
    """SOFTMETAL_PROFILE: the Apple chip that the device reports: `apple-m3-max`, or with its
    memory in GiB `apple-m3-max:64`."""
    return _read("SOFTMETAL_PROFILE", str, "", "a profile")


def finite_math() -> bool:
    """SOFTMETAL_FINITE_MATH: `1` lets fast-math assume that there are no NaN and no infinities, as
    Apple's may."""
    return _read("SOFTMETAL_FINITE_MATH", _flag, False, "0 or 1")


def fibers() -> bool:
    """SOFTMETAL_FIBERS: `1` runs every kernel with barriers as a fiber for each thread, also those
    that can run as loops: slower, to compare with."""
    return _read("SOFTMETAL_FIBERS", _flag, False, "0 or 1")


def cache_dir() -> Path:
    """SOFTMETAL_CACHE: folder of compiled kernels; `~/.cache/softmetal` by default."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no home: no folder can be made here, so the cache is temporary
        base = Path(os.devnull)
    return _read("SOFTMETAL_CACHE", Path, base / "softmetal", "a folder")


def cache_limit() -> int:
    """SOFTMETAL_CACHE_LIMIT: bytes above which the least recently used compiled kernels are
    removed; 2 GiB by default."""
    return _read(
        "SOFTMETAL_CACHE_LIMIT", _positive, DEFAULT_CACHE_BYTES, "a number of bytes above 0"
    )


def strict() -> frozenset[str]:
    """SOFTMETAL_STRICT: in which ways softmetal is as strict as a Mac, separated by commas: `msl`,
    which is on unless `no-msl` is given, checks kernels as Apple's compiler, `bridge` judges calls
    as PyObjC does, `host` plays macOS. `validation` is on, too: `no-validation` lets pass what
    Apple's driver does without its debug layer."""
    if b"SOFTMETAL_STRICT" not in VARIABLES:
        return _DEFAULT_STRICT
    return _read("SOFTMETAL_STRICT", _strict, _DEFAULT_STRICT, _STRICT_TEXT)


def check() -> str:
    """SOFTMETAL_CHECK: checking modes, separated by commas: `bounds`, `race`, `uninit`; `all` or
    `1` for all of them. What they find goes to standard error."""
    return _read("SOFTMETAL_CHECK", str, "", "a list of checking modes")


def compiler_timeout() -> float:
    """SOFTMETAL_COMPILER_TIMEOUT: seconds of CPU time after which a compilation is stopped; 120 by
    default, 0 for no limit."""
    expected = "a number of seconds (0 for no limit)"
    return _read("SOFTMETAL_COMPILER_TIMEOUT", _seconds, DEFAULT_COMPILER_TIMEOUT, expected)


def seed() -> int | None:
    """SOFTMETAL_SEED: seed of the order in which `race` runs threads; random by default, and
    printed."""
    return _read("SOFTMETAL_SEED", _positive, None, "a number above 0")


def macos() -> int | None:
    """SOFTMETAL_MACOS: the major version of macOS that `bridge` plays; the newest by default."""
    return _read("SOFTMETAL_MACOS", _positive, None, "a major version of macOS, such as 14")


def threads() -> int:
    """SOFTMETAL_THREADS: threads that run kernels, 1,024 at most; by default as many as there are
    processors that this process may use, by its affinity and by the limits of its cgroup."""
    expected = f"a number from 1 to {MOST_THREADS}"
    return _read("SOFTMETAL_THREADS", _thread_count, None, expected) or processors()


def processors(root: Path = Path("/")) -> int:
    """Processors that this process may use; a share of one counts as one."""
    allowed = [len(os.sched_getaffinity(0)), *cgroups.processor_limits(root)]
    return max(1, math.ceil(min(allowed)))


def timeout() -> float:
    """SOFTMETAL_TIMEOUT: seconds after which a kernel that has not ended is stopped; 300 by
    default, 0 for no limit."""
    expected = "a number of seconds (0 for no limit)"
    return _read("SOFTMETAL_TIMEOUT", _seconds, DEFAULT_TIMEOUT, expected)


def validate() -> None:
    """Raises SettingError for the first variable with an invalid value."""
    readers: tuple[Callable[[], object], ...] = (
        *(device, profile, finite_math, cache_dir, cache_limit, strict, check),
        *(compiler_timeout, seed, macos, threads, timeout),
    )
    for read in readers:
        read()
