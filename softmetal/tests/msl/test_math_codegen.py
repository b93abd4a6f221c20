"""Loops over metal_math's functions become vector code, and nothing in them calls a library."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from math_table import FUNCTIONS

import softmetal
from softmetal.toolchain import clang

INCLUDE = Path(softmetal.__file__).parent / "include"
FLAGS = "-x c++ -std=c++17 -O3 -fPIC -fdeclspec -fsigned-char -fno-exceptions -fno-rtti -nostdinc"
FAST = "-nostdlibinc -ffast-math -fno-finite-math-only"
TARGETS = {
    "x86-64-v3": "--target=x86_64-linux-gnu -march=x86-64-v3",
    "aarch64": "--target=aarch64-linux-gnu",
    "nvptx": "--target=nvptx64-nvidia-cuda -march=sm_80",
}
CALLS = {f.name: f"{f.name}({', '.join('xyz'[: f.arity])})" for f in FUNCTIONS} | {
    "fma": "fma(x, y, z)",
    "fmod": "fmod(x, y)",
    "fract": "fract(x)",
    "frexp": "frexp(x, i)",
    "ilogb": "float(ilogb(x))",
    "ldexp": "ldexp(x, int(y))",
    "median3": "median3(x, y, z)",
    "modf": "modf(x, y)",
    "nextafter": "nextafter(x, y)",
    "sincos": "sincos(x, y) + y",
}
SPACES = ["fast", "precise"]


def loop(space: str, name: str) -> str:
    return f"""
extern "C" void {space}_{name}(float* __restrict o, const float* a, const float* b, int n) {{
  using namespace metal::{space};
  for (int k = 0; k < n; ++k) {{
    float x = a[k], y = b[k], z = x + y;
    int i = 0;
    o[k] = {CALLS[name]};
    (void)y, (void)z, (void)i;
  }}
}}
"""


@functools.cache
def assembly(target: str) -> dict[str, str]:
    """The text of each loop's function."""
    loops = "".join(loop(space, name) for space in SPACES for name in CALLS)
    flags = [
        *TARGETS[target].split(),
        *FLAGS.split(),
        *FAST.split(),
        "-w",
        "-isystem",
        str(INCLUDE),
    ]
    if target == "nvptx":
        flags.remove("-fPIC")
    text, _ = clang.run("clang", [*flags, "-S", "-o", "-", "-"], "#include <metal_math>\n" + loops)
    starts = [*re.finditer(r"^(?:\.visible \.func )?(fast|precise)_(\w+?)(?::|\()", text, re.M)]
    ends = [m.start() for m in starts[1:]] + [len(text)]
    return {f"{m[1]}_{m[2]}": text[m.end() : end] for m, end in zip(starts, ends, strict=True)}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", CALLS)
def test_avx(space: str, name: str) -> None:
    text = assembly("x86-64-v3")[f"{space}_{name}"]
    assert "%ymm" in text
    assert not re.findall(r"\bcall\w*\s+\S+", text)


@pytest.mark.parametrize("target", ["aarch64", "nvptx"])
def test_other_targets_call_nothing(target: str) -> None:
    texts = assembly(target)
    assert len(texts) == len(SPACES) * len(CALLS)
    calls = {name: re.findall(r"^\s+(?:bl|call\S*)\s+.*", t, re.M) for name, t in texts.items()}
    assert {name: found for name, found in calls.items() if found} == {}
