"""Quantized values on the device: their kernel arguments, and decoding.

Products are in `quantized_matmul.py`, encoding is in `quantizing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np

from lbrx import dtype as dt
from lbrx import quant
from lbrx.dtype import Dtype
from lbrx.errors import QuantizationError
from lbrx.kernels import elementwise, movement
from lbrx.kernels.arrays import buffer_of, empty, kernel_name, size_class
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context, DeviceInfo, Pipeline
from lbrx.ops import Spec
from lbrx.quant import Scheme
from lbrx.storage import Array

# The numbers used in quant_blocks.h.
TYPES = {dt.float32: 0, dt.float16: 1, dt.bfloat16: 2}
UNIT = 16
VECTOR = 16  # bytes that a thread stores
ALIGNMENT = 4  # bytes: the widest field of a block
GROUP = 256  # threads

_books: WeakKeyDictionary[Context, dict[str, Buffer]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Stored:
    """Quantized values in memory, in contiguous rows."""

    scheme: Scheme
    scale_type: Dtype
    codes: Buffer
    scales: Buffer | None
    offsets: Buffer | None
    book: Buffer | None

    @property
    def arguments(self) -> list[Buffer | bytes]:
        """The first arguments of every kernel. Metal requires a buffer even if it is not read."""
        beside = (self.scales, self.offsets, self.book)
        return [self.codes, *(self.codes if buffer is None else buffer for buffer in beside)]

    def rows(self, first: int, count: int, k: int) -> Stored:
        """A slice of the rows of a matrix whose rows have k values."""
        blocks = k // self.scheme.elements

        def part(buffer: Buffer | None, itemsize: int) -> Buffer | None:
            size = blocks * itemsize
            return None if buffer is None else buffer.slice(first * size, count * size)

        layout, planar = self.scheme.layout, self.scheme.planar
        codes = part(self.codes, layout["data"].itemsize if planar else layout.itemsize)
        assert codes is not None
        # Zero points are bytes; biases have the type of the scales.
        offset_size = 1 if "zero_points" in self.scheme.fields else self.scale_type.itemsize
        scales = part(self.scales, self.scale_type.itemsize)
        return replace(self, codes=codes, scales=scales, offsets=part(self.offsets, offset_size))


def stored(gpu: Context, scheme: Scheme, arrays: Sequence[Array | None]) -> Stored:
    """The operands of an operation in the form that kernels take."""
    kinds = {a.dtype for a in arrays[1:] if a is not None}
    if scheme.keeps_dtype and (len(kinds) > 1 or not kinds <= TYPES.keys()):
        # Scales and biases may have different dtypes in files; kernels need the same.
        wide = [None if a is None else elementwise.cast(gpu, a, dt.float32) for a in arrays[1:]]
        arrays = [arrays[0], *wide]
    buffers = [None if a is None else _whole_rows(gpu, a) for a in arrays]
    codes, scales, offsets = (*buffers, None, None)[:3]
    assert codes is not None
    scale_type = arrays[1].dtype if len(arrays) > 1 and arrays[1] is not None else dt.float32
    return Stored(scheme, scale_type, codes, scales, offsets, _book(gpu, scheme))


def _whole_rows(gpu: Context, array: Array) -> Buffer:
    """A contiguous array whose blocks are aligned for their fields."""
    array = elementwise.contiguous(gpu, array)
    buffer = buffer_of(array)
    if buffer.offset % ALIGNMENT == 0:
        return buffer
    aligned = empty(gpu, Spec(array.layout.shape, array.dtype))
    movement.copy(gpu, array, aligned)
    return buffer_of(aligned)


def _book(gpu: Context, scheme: Scheme) -> Buffer | None:
    """The code book that the scheme's codec looks codes up in."""
    if scheme.code_book is None:
        return None
    known = _books.setdefault(gpu, {})
    if scheme.name not in known:
        known[scheme.name] = gpu.upload(scheme.code_book().astype(np.int8))
    return known[scheme.name]


def pipeline(
    gpu: Context,
    stem: str,
    kernel: str,
    given: Stored,
    values: Dtype,
    constants: dict[int, bool | int] | None = None,
    before: str = "",
) -> Pipeline:
    """A kernel for a scheme, with text before the shader. Safe math, since a scale may be NaN."""
    scale_type = TYPES.get(given.scale_type, 0)
    every = {0: TYPES[values], 1: scale_type, 2: given.scheme.elements, **(constants or {})}
    codec = given.scheme.codec
    if codec is None:
        raise QuantizationError(
            f"no kernel reads {given.scheme.name}: give its Scheme a codec, or dequantize first"
        )
    name = kernel_name(kernel, codec)
    if not before and not given.scheme.codec_source:
        return gpu.shaders.pipeline(stem, name, every, safe_math=True)
    own = _own(stem, given.scheme) if given.scheme.codec_source else f'#include "{stem}.metal"'
    return gpu.shaders.pipeline(f"{stem}_{codec}", name, every, safe_math=True, source=before + own)


@cache
def _own(stem: str, scheme: Scheme) -> str:
    """A stem's shader with the codec that a scheme brings instead of those of quant_schemes.h."""
    lists = ("EACH_BLOCK", "EACH_GROUP", "EACH_SCHEME")
    one = f"M({scheme.codec}, {scheme.codec})"
    listed = {"EACH_BLOCK": one if scheme.integer_codes else "", "EACH_SCHEME": one}
    return "\n".join(
        [
            '#include "quant_schemes.h"',
            scheme.codec_source,
            *(f"#undef {name}\n#define {name}(M) {listed.get(name, '')}" for name in lists),
            f'#include "{stem}.metal"',
        ]
    )


# ---- decoding ----


@dataclass(frozen=True)
class Blocks:
    """The problem: the number of blocks, their scheme, and the dtype of values."""

    scheme: Scheme
    blocks: int
    dtype: Dtype

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.scheme.name} {self.dtype.name} {size_class(self.blocks)}"


family: KernelFamily[Blocks] = KernelFamily("dequantize")


@computes("decode_blocks")
def decode_blocks(call: Call) -> tuple[Array, ...]:
    """Compute `decode_blocks`: the values of quantized blocks."""
    (spec,) = call.outputs
    scheme = quant.find(call.attributes["scheme"])
    result = empty(call.gpu, spec)
    if result.layout.size:
        decode(call.gpu, stored(call.gpu, scheme, call.inputs), buffer_of(result), spec)
    return (result,)


def decode(gpu: Context, given: Stored, result: Buffer, spec: Spec) -> None:
    """Encode the kernel that decodes values to an array of a shape and dtype."""
    problem = Blocks(given.scheme, given.scheme.blocks(spec.shape), spec.dtype)
    family.run(gpu, problem, given, result)


def _serial_cost(info: DeviceInfo, problem: Blocks) -> float:
    return 2.0 if info.simd_hardware else 1.0


@family.variant("serial", cost=_serial_cost)
def serial(gpu: Context, problem: Blocks, given: Stored, result: Buffer) -> None:
    """One thread per block."""
    _dispatch(gpu, problem, given, result, "serial", problem.blocks)


@family.variant("vector", cost=lambda info, problem: 1.5)
def vector(gpu: Context, problem: Blocks, given: Stored, result: Buffer) -> None:
    """One thread per sixteen bytes of values."""
    values = problem.blocks * problem.scheme.elements
    threads = values * problem.dtype.itemsize // VECTOR
    _dispatch(gpu, problem, given, result, "vector", threads)


def _dispatch(
    gpu: Context, problem: Blocks, given: Stored, result: Buffer, variant: str, threads: int
) -> None:
    gpu.queue.dispatch(
        pipeline(gpu, "quant_decode", f"dequantize_{variant}", given, problem.dtype),
        [*given.arguments, result],
        (threads, 1, 1),
        (min(threads, GROUP), 1, 1),
        kernel="dequantize",
        variant=variant,
    )


family.samples += [
    Sample("decode_blocks", (Spec((4096, 2304), dt.uint8),), {"scheme": "q4_k", "dtype": d})
    for d in (dt.float32, dt.float16)
]
