"""Prints the measured errors of metal_math beside MSL's bounds, or its speed beside numpy's.

python softmetal/benchmarks/math_ulp.py
    errors in units of the last place; "allowed" is the largest error as a part of the bound at
    that argument
python softmetal/benchmarks/math_ulp.py --speed
    nanoseconds an element on one thread
"""

from __future__ import annotations

import ctypes
import functools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import softmetal
from softmetal.toolchain import clang

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "softmetal" / "tests" / "msl")]

import math_samples
from math_table import FUNCTIONS, Function

SPACES = ("fast", "precise")
N = 1 << 14
X = np.linspace(0.1, 9.0, N, dtype=np.float32)
Y = np.linspace(-2.0, 2.0, N, dtype=np.float32)
OUT = np.empty_like(X)


def gelu() -> Any:
    return 0.5 * X * (1 + np.tanh(0.7978846 * (X + 0.044715 * X * X * X)))


# Name, expression of x and y, the same in numpy.
SPEEDS: list[tuple[str, str, Callable[[], Any]]] = [
    ("exp", "exp(x)", lambda: np.exp(X, out=OUT)),
    ("log", "log(x)", lambda: np.log(X, out=OUT)),
    ("sin", "sin(x)", lambda: np.sin(X, out=OUT)),
    ("tanh", "tanh(x)", lambda: np.tanh(X, out=OUT)),
    ("rsqrt", "rsqrt(x)", lambda: 1 / np.sqrt(X)),
    ("pow", "pow(x, y)", lambda: np.power(X, Y, out=OUT)),
    ("fmod", "fmod(x, y)", lambda: np.fmod(X, Y, out=OUT)),
    ("gelu", "0.5f * x * (1 + tanh(0.7978846f * (x + 0.044715f * x * x * x)))", gelu),
]


def bound(function: Function, fast: bool) -> str:
    value = function.fast if fast and function.fast is not None else function.precise
    return "formula" if callable(value) else f"{value:g}"


def print_errors() -> None:
    precise = math_samples.measure_all("precise", True)
    fast = math_samples.measure_all("fast", True)
    print(f"{'function':10}{'precise':>9}{'bound':>9}{'fast':>9}{'bound':>9}{'allowed':>9}")
    for function in FUNCTIONS:
        p, f = precise[function.name], fast[function.name]
        print(
            f"{function.name:10}{p.worst:9.2f}{bound(function, False):>9}"
            f"{f.worst:9.2f}{bound(function, True):>9}{max(p.excess, f.excess):9.0%}"
        )


def loops() -> ctypes.CDLL:
    """A function SPACE_NAME(out, x, y, n) for each row of SPEEDS."""
    source = "#include <metal_math>\n"
    for space in SPACES:
        for name, expression, _ in SPEEDS:
            source += (
                f'extern "C" void {space}_{name}(float* __restrict o, const float* a, '
                f"const float* b, int n) {{\n  using namespace metal::{space};\n"
                "  for (int i = 0; i < n; ++i) {\n    float x = a[i], y = b[i];\n"
                f"    o[i] = {expression};\n  }}\n}}\n"
            )
    flags = "-x c++ -std=c++17 -O3 -march=native -fPIC -fdeclspec -w -nostdinc -ffast-math"
    include = str(Path(softmetal.__file__).parent / "include")
    with tempfile.TemporaryDirectory() as folder:
        unit, library = f"{folder}/math.o", f"{folder}/math.so"
        arguments = [*flags.split(), "-fno-finite-math-only", "-isystem", include]
        clang.run("clang", [*arguments, "-c", "-o", unit, "-"], source)
        clang.run("ld.lld", ["-shared", "-o", library, unit])
        return ctypes.CDLL(library)


def nanoseconds(work: Callable[[], Any]) -> float:
    """The best of many runs, so that other work on the machine counts little."""
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best / N * 1e9


def print_speeds() -> None:
    library = loops()
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (OUT, X, Y)]
    print(f"{'ns/element':10}{'fast':>9}{'precise':>9}{'numpy':>9}")
    for name, _, peer in SPEEDS:
        functions = [getattr(library, f"{space}_{name}") for space in SPACES]
        times = [nanoseconds(functools.partial(f, *pointers, N)) for f in functions]
        print(f"{name:10}{times[0]:9.2f}{times[1]:9.2f}{nanoseconds(peer):9.2f}")


if __name__ == "__main__":
    print_speeds() if "--speed" in sys.argv[1:] else print_errors()
