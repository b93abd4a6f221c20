"""Code generation targets."""

from __future__ import annotations

import functools
import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Target:
    """What clang generates code for. `cpu` names the resolved processor in cache keys."""

    triple: str
    cpu: str
    flags: tuple[str, ...]
    native_bfloat: bool  # has an instruction that rounds every float to bfloat exactly


def _processor() -> tuple[str, frozenset[str]]:
    """The processor's name and features from /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor(), frozenset()
    block = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in block.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    features = fields.get("flags") or fields.get("Features") or ""
    name = fields.get("model name") or fields.get("CPU part") or platform.machine()
    return name, frozenset(features.split())


@functools.cache
def host() -> Target:
    """The processor of this machine."""
    name, features = _processor()
    digest = hashlib.sha256(" ".join([name, *sorted(features)]).encode()).hexdigest()[:16]
    machine = platform.machine()
    flags = ("-march=native",) if machine == "x86_64" else ("-mcpu=native",)
    # That of x86, AVX512_BF16, does not count: it flushes subnormal numbers to zero.
    native_bfloat = "bf16" in features
    return Target(f"{machine}-linux-gnu", digest, flags, native_bfloat)
