"""GPTQ's and AWQ's weights: `qweight`, `qzeros` and `scales`, and for GPTQ perhaps `g_idx`.

GPTQ packs inputs, (inputs * bits / 32, outputs), AWQ outputs, (inputs, outputs / 8). Both become
rows of words along inputs. GPTQ's inputs in another order (desc_act) are decoded.
"""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.files.formats.descriptor import TensorInfo, plain
from lbrx.files.formats.packings.array_functions import (
    AwqWords,
    GptqValues,
    Transposed,
    TransposedGroups,
    ZeroPoints,
)
from lbrx.files.formats.packings.neighbours import FLOATS, Neighbours, Packing
from lbrx.files.formats.recipe import PackedWeight, RepackedTensor

_BITS = (2, 3, 4, 8)


def _read(near: Neighbours) -> PackedWeight | RepackedTensor | None:
    codes, zeros, scales = near.info, near.need(".qzeros"), near.need(".scales")
    for info in (codes, zeros):
        near.check(info, dt.int32)
    near.check(scales, *FLOATS)
    if not len(codes.shape) == len(scales.shape) == 2:
        raise near.wrong(f"shape {codes.shape} with scales of {scales.shape} are not matrices")
    is_awq = near.settings.get("quant_method") == "awq" or codes.shape[1] != scales.shape[1]
    return _awq(near, zeros, scales) if is_awq else _gptq(near, zeros, scales)


def _awq(near: Neighbours, zeros: TensorInfo, scales: TensorInfo) -> PackedWeight:
    if near.settings.get("version", "gemm") != "gemm" or near.integer("bits", 4) != 4:
        raise near.wrong("is AWQ of another kind than gemm with four bits, which lbrx reads")
    columns, packed = near.info.shape
    rows, groups = packed * 8, scales.shape[0]
    if scales.shape[1] != rows or zeros.shape != (groups, packed):
        raise near.wrong(f"scales of {scales.shape} and zeros of {zeros.shape} do not fit it")
    wide = _groups(near, columns, groups)
    data = RepackedTensor(
        near.info.name, (near.info,), plain(dt.uint32), (rows, columns // 8), AwqWords()
    )
    return _packed(near, data, (scales,), ZeroPoints(4, wide, 0, awq=True), zeros, columns)


def _gptq(near: Neighbours, zeros: TensorInfo, scales: TensorInfo) -> PackedWeight | RepackedTensor:
    bits = near.integer("bits", 4)
    form = near.settings.get("checkpoint_format", "gptq")
    if bits not in _BITS or form not in ("gptq", "gptq_v2"):
        raise near.wrong(f"is GPTQ with {bits} bits in the form {form!r:.20}, which is not read")
    added = 1 if form == "gptq" else 0
    packed, rows = near.info.shape
    columns, groups = packed * 32 // bits, scales.shape[0]
    if zeros.shape != (groups, rows * bits // 32):
        raise near.wrong(f"scales of {scales.shape} and zeros of {zeros.shape} do not fit it")
    order = near.find(".g_idx")
    if order is not None:
        near.check(order, dt.int32)
        if order.shape != (columns,):
            raise near.wrong(f"{order.name} of shape {order.shape} is not for {columns} inputs")
        if near.settings.get("desc_act", True):
            every = (near.info, zeros, scales, order)
            name, shape = f"{near.stem}.weight", (rows, columns)
            return RepackedTensor(name, every, scales.encoding, shape, GptqValues(bits, added))
    wide = _groups(near, columns, groups)
    data = RepackedTensor(
        near.info.name, (near.info,), plain(dt.uint32), (rows, packed), Transposed()
    )
    sources = (scales,) if order is None else (scales, order)
    return _packed(near, data, sources, ZeroPoints(bits, wide, added), zeros, columns)


def _groups(near: Neighbours, columns: int, groups: int) -> int:
    """The number of groups in a row of lbrx's scheme."""
    group = near.group(columns, columns // groups) if groups and columns % groups == 0 else None
    if group is None:
        raise near.wrong(f"{groups} groups of {columns} inputs are not of multiples of 32")
    return columns // group


def _packed(
    near: Neighbours,
    data: RepackedTensor,
    scales: tuple[TensorInfo, ...],
    zero_points: ZeroPoints,
    zeros: TensorInfo,
    columns: int,
) -> PackedWeight:
    name, shape = f"{near.stem}.weight", (data.shape[0], zero_points.groups)
    order = TransposedGroups(zero_points.groups, name)
    beside = RepackedTensor(scales[0].name, scales, scales[0].encoding, shape, order)
    offsets = RepackedTensor(zeros.name, (zeros,), plain(dt.uint8), shape, zero_points)
    scheme = f"q{zero_points.bits}:{columns // zero_points.groups}"
    return PackedWeight(name, scheme, data, beside, offsets)


PACKINGS = (Packing(".qweight", _read),)
