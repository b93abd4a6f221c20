"""Quantized values on the device: their kernel arguments, and decoding.

Products are in `quantized_matmul.py`, encoding is in `quantizing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Constants, UInt
from lbrx.device_info import DeviceKind
from lbrx.errors import QuantizationError
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.launching import GROUP
from lbrx.kernels.movement import movement
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer
from lbrx.metal.library import PipelineRequest, generated
from lbrx.ops import Spec
from lbrx.quant import Scheme

# The numbers used in quant_blocks.h.
TYPES = {dt.float32: 0, dt.float16: 1, dt.bfloat16: 2}
UNIT = 16
VECTOR = 16  # bytes that a thread stores
ALIGNMENT = 4  # bytes: the widest field of a block


class StoredConstants(Constants, header="quant_blocks"):
    """Element types of arrays, numbered as on the host."""

    VALUES: UInt  # activations and results
    SCALES: UInt = 0  # scales and biases beside the codes
    GROUP: UInt = 0  # values that share a scale


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

    def constants(self, values: Dtype) -> dict[str, Any]:
        """The function constants of all kernels that read it, with a dtype of other values."""
        scales = TYPES.get(self.scale_type, 0)
        return {"VALUES": TYPES[values], "SCALES": scales, "GROUP": self.scheme.elements}


@dataclass(frozen=True)
class StoredForm:
    """What kernels are chosen by of quantized values in memory."""

    scale_type: Dtype
    offset: int
    """Bytes from an aligned address to the codes, as kernels read them."""


def form_of(scheme: Scheme, arrays: Sequence[Array | None]) -> StoredForm:
    """The form of operands in memory."""
    codes = arrays[0]
    assert codes is not None
    offset = buffer_of(codes).offset
    copied = not codes.layout.is_contiguous or offset % ALIGNMENT != 0
    return StoredForm(_scale_type(scheme, arrays), 0 if copied else offset)


def _scale_type(scheme: Scheme, arrays: Sequence[Array | None]) -> Dtype:
    """Scales and biases may have different dtypes in files; kernels need the same."""
    kinds = {a.dtype for a in arrays[1:] if a is not None}
    if scheme.keeps_dtype and (len(kinds) > 1 or not kinds <= TYPES.keys()):
        return dt.float32
    return arrays[1].dtype if len(arrays) > 1 and arrays[1] is not None else dt.float32


def stored(b: Builder, scheme: Scheme, arrays: Sequence[Array | None]) -> Stored:
    """The operands of an operation in the form that kernels take."""
    scale_type = _scale_type(scheme, arrays)
    if scheme.keeps_dtype:
        beside = [None if a is None else layouts.cast(b, a, scale_type) for a in arrays[1:]]
        arrays = [arrays[0], *beside]
    buffers = [None if a is None else aligned(b, a, ALIGNMENT) for a in arrays]
    codes, scales, offsets = (*buffers, None, None)[:3]
    assert codes is not None
    return Stored(scheme, scale_type, codes, scales, offsets, _book(b, scheme))


def aligned(b: Builder, array: Array, alignment: int) -> Buffer:
    """The bytes of a contiguous array, or of a copy if it does not begin at a multiple."""
    array = layouts.contiguous(b, array)
    buffer = buffer_of(array)
    if buffer.offset % alignment == 0:
        return buffer
    copied = b.result(Spec(array.layout.shape, array.dtype))
    movement.copy(b, array, copied)
    return buffer_of(copied)


def _book(b: Builder, scheme: Scheme) -> Buffer | None:
    """The code book that the scheme's codec looks codes up in."""
    if scheme.code_book is None:
        return None
    book = scheme.code_book
    return b.kept(("code book", scheme.name), lambda: book().astype(np.int8))


def pipeline(
    b: Builder,
    stem: str,
    kernel: str,
    given: Stored,
    constants: StoredConstants,
    before: str = "",
) -> PipelineRequest:
    """A kernel for a scheme, with text before the shader. Safe math, since a scale may be NaN."""
    codec = given.scheme.codec
    if codec is None:
        raise QuantizationError(
            f"no kernel reads {given.scheme.name}: give its Scheme a codec, or dequantize first"
        )
    name = kernel_name(kernel, codec)
    if not before and not given.scheme.codec_source:
        return b.pipeline(stem, name, constants, safe_math=True)
    if given.scheme.codec_source:  # a user's
        text = before + _own(stem, given.scheme)
    else:
        text = generated(f'{before}#include "{stem}.metal"')
    return b.pipeline(f"{stem}_{codec}", name, constants, safe_math=True, source=text)


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
    result = call.builder.result(spec)
    if result.layout.size:
        decode(call.builder, stored(call.builder, scheme, call.inputs), buffer_of(result), spec)
    return (result,)


def decode(b: Builder, given: Stored, result: Buffer, spec: Spec) -> None:
    """Encode the kernel that decodes values to an array of a shape and dtype."""
    problem = Blocks(given.scheme, given.scheme.blocks(spec.shape), spec.dtype)
    family.run(b, problem, given, result)


@family.variant("serial", made_for=DeviceKind.WIDE)
def serial(b: Builder, problem: Blocks, given: Stored, result: Buffer) -> None:
    """One thread per block."""
    _dispatch(b, problem, given, result, "serial", problem.blocks)


@family.variant("vector", cost=lambda info, problem: 1.5)
def vector(b: Builder, problem: Blocks, given: Stored, result: Buffer) -> None:
    """One thread per sixteen bytes of values."""
    values = problem.blocks * problem.scheme.elements
    threads = values * problem.dtype.itemsize // VECTOR
    _dispatch(b, problem, given, result, "vector", threads)


def _dispatch(
    b: Builder, problem: Blocks, given: Stored, result: Buffer, variant: str, threads: int
) -> None:
    constants = StoredConstants(**given.constants(problem.dtype))
    b.launch(
        pipeline(b, "quant_decode", f"dequantize_{variant}", given, constants),
        [*given.arguments, result],
        (threads, 1, 1),
        (min(threads, GROUP), 1, 1),
    )


family.samples += [
    Sample("decode_blocks", (Spec((4096, 2304), dt.uint8),), {"scheme": "q4_k", "dtype": d})
    for d in (dt.float32, dt.float16)
]
