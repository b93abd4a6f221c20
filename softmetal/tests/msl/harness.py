"""Evaluate MSL expressions over numpy arrays: one kernel for a whole batch of them.

An input is an array of shape (n,) for scalars or (n, 2..4) for vectors; the expression calls them
a, b, c, ... in order, and sees the thread's index as i. A text with a semicolon is a body that
assigns `result` itself.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from groups import Library, Refused
from numpy.typing import DTypeLike, NDArray
from seeds import generator

__all__ = [
    "TYPES",
    "Array",
    "Case",
    "Refused",
    "bfloat16",
    "check",
    "evaluate",
    "evaluate_all",
    "msl_type",
]

Array = NDArray[np.generic]

bfloat16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {
    np.dtype(np.bool_): "bool",
    np.dtype(np.int8): "char",
    np.dtype(np.uint8): "uchar",
    np.dtype(np.int16): "short",
    np.dtype(np.uint16): "ushort",
    np.dtype(np.int32): "int",
    np.dtype(np.uint32): "uint",
    np.dtype(np.int64): "long",
    np.dtype(np.uint64): "ulong",
    np.dtype(np.float16): "half",
    np.dtype(np.float32): "float",
    bfloat16: "bfloat",
}
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


@dataclass(frozen=True)
class Case:
    """One expression, its inputs and the type of its value."""

    expression: str
    inputs: Sequence[Array] = ()
    out: DTypeLike = np.float32
    width: int = 1  # elements of the value: 1 for a scalar
    prelude: str = ""  # MSL before the kernel
    n: int = field(default=1)  # threads, where there are no inputs

    @property
    def threads(self) -> int:
        return len(self.inputs[0]) if self.inputs else self.n


def msl_type(dtype: DTypeLike, width: int) -> str:
    return TYPES[np.dtype(dtype)] + ("" if width == 1 else str(width))


def rows(array: Array) -> Array:
    """As it lies in a buffer: a vec3 takes the room of a vec4."""
    if array.ndim == 2 and array.shape[1] == 3:
        array = np.pad(array, ((0, 0), (0, 1)))
    return np.ascontiguousarray(array)


def function_source(name: str, case: Case) -> str:
    """The case as a function of its arrays and the thread's index."""
    out = msl_type(case.out, case.width)
    letters = string.ascii_lowercase[: len(case.inputs)]
    types = [msl_type(a.dtype, a.shape[1] if a.ndim == 2 else 1) for a in case.inputs]
    inputs = list(zip(types, letters, strict=True))
    pointers = "".join(f"device const {t}* in_{v}, " for t, v in inputs)
    load = "".join(f"  {t} {v} = in_{v}[i];\n" for t, v in inputs)
    body = case.expression if ";" in case.expression else f"result = {case.expression};"
    return (
        f"inline void {name}(device {out}* out, {pointers}uint i) {{\n"
        f"{load}  {out} result;\n  {body}\n  out[i] = result;\n}}\n"
    )


class Region:
    """Hands out aligned ranges of one buffer."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, length: int) -> int:
        offset = self.size
        self.size += -(-length // 64) * 64
        return offset


class Batch:
    """Many cases as one kernel over two buffers: all results, all inputs."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        outs, ins = Region(), Region()
        self.outs = [(outs.take(np.empty(self._shape(c), c.out).nbytes), c) for c in cases]
        self.ins = [[(ins.take(rows(a).nbytes), rows(a)) for a in c.inputs] for c in cases]
        self.result = np.zeros(max(outs.size, 64), np.uint8)
        self.input = np.zeros(max(ins.size, 64), np.uint8)
        for offset, array in (pair for group in self.ins for pair in group):
            self.input[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)

    @staticmethod
    def _shape(case: Case) -> tuple[int, ...]:
        return (case.threads,) if case.width == 1 else (case.threads, 2 * -(-case.width // 2))

    def source(self) -> str:
        functions = "".join(function_source(f"case_{k}", c) for k, c in enumerate(self.cases))
        calls = []
        for k, ((out, case), inputs) in enumerate(zip(self.outs, self.ins, strict=True)):
            arguments = [f"(device {msl_type(case.out, case.width)}*)(out + {out})"]
            for (offset, _), array in zip(inputs, case.inputs, strict=True):
                kind = msl_type(array.dtype, array.shape[1] if array.ndim == 2 else 1)
                arguments.append(f"(device const {kind}*)(in + {offset})")
            calls.append(f"  if (i < {case.threads}u) case_{k}({', '.join(arguments)}, i);\n")
        preludes = "\n".join(dict.fromkeys(c.prelude for c in self.cases))
        return (
            f"{HEAD}{preludes}\n{functions}kernel void batch(device uchar* out [[buffer(0)]], "
            "device const uchar* in [[buffer(1)]], uint i [[thread_position_in_grid]]) {\n"
            f"{''.join(calls)}}}\n"
        )

    def results(self) -> list[Array]:
        found = []
        for offset, case in self.outs:
            shape, dtype = self._shape(case), np.dtype(case.out)
            count = int(np.prod(shape))
            flat = self.result[offset : offset + count * dtype.itemsize].view(dtype)
            array = flat.reshape(shape)
            found.append(array[:, : case.width] if case.width > 1 else array)
        return found


def evaluate_all(cases: Sequence[Case], fast_math: bool = True) -> list[Array]:
    """The values of all cases, each of shape (threads,) or (threads, width)."""
    batch = Batch(cases)
    threads = max(case.threads for case in cases)
    library = Library(batch.source(), fast_math)
    library.run("batch", [batch.result, batch.input], threads, min(threads, 256))
    return batch.results()


def evaluate(
    expression: str,
    inputs: Sequence[Array] = (),
    out_dtype: DTypeLike = np.float32,
    width: int = 1,
    fast_math: bool = True,
    prelude: str = "",
) -> Array:
    """The value of one expression. Batches through evaluate_all are far cheaper."""
    return evaluate_all([Case(expression, inputs, out_dtype, width, prelude)], fast_math)[0]


def check(text: str) -> None:
    """Compile a whole program, for its static_asserts; raises Refused with clang's text."""
    Library(f"{HEAD}{text}\n")


def sample(dtype: np.dtype, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Values whose sums and products stay in range for signed types; all bits for unsigned ones."""
    rng = generator(seed)
    if dtype.kind == "u":
        return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    if dtype.kind == "i":
        return rng.integers(-9, 10, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    return (rng.integers(-60, 60, shape) / 8).astype(dtype)


def shape_of(width: int, n: int = 17) -> tuple[int, ...]:
    return (n,) if width == 1 else (n, width)


def compare(cases: list[Case], wants: list[Array], rtol: float = 0) -> None:
    for case, got, want in zip(cases, evaluate_all(cases), wants, strict=True):
        text = f"{case.expression} on {[f'{a.dtype}{a.shape[1:]}' for a in case.inputs]}"
        np.testing.assert_allclose(
            got.astype(float) if got.dtype == bfloat16 else got,
            want.astype(float) if want.dtype == bfloat16 else want,
            rtol=rtol,
            err_msg=text,
        )
