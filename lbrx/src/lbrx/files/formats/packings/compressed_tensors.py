"""compressed-tensors' packed integers: `weight_packed` words of a row's codes, `weight_scale`,
perhaps `weight_zero_point`, packed along rows. The codes stay in the mapped file."""

from __future__ import annotations

from math import ceil

from lbrx.arrays import dtype as dt
from lbrx.files.formats.descriptor import TensorInfo, plain
from lbrx.files.formats.packings.array_functions import RowZeroPoints, Spread
from lbrx.files.formats.packings.neighbours import Neighbours, Packing, seen_as
from lbrx.files.formats.recipe import PackedWeight, RepackedTensor

_BESIDE = (".input_scale", ".input_zero_point")


def _read(near: Neighbours) -> PackedWeight | None:
    codes = near.info
    if codes.encoding.dtype is not dt.int32:
        return None
    scales, shape = near.need(".weight_scale"), near.need(".weight_shape")
    near.leave(*_BESIDE)
    rows, columns = _shape(near, shape)
    bits = 32 * codes.shape[1] // columns
    if codes.shape != (rows, columns * bits // 32) or not 2 <= bits <= 8 or columns % 32:
        raise near.wrong(f"shape {codes.shape} is not whole words of {(rows, columns)} codes")
    if near.files.tensors.get(f"{near.stem}.weight_g_idx"):
        raise near.wrong("has its inputs in another order (g_idx), which lbrx does not read")
    possible = [(rows, n) for n in range(1, columns // 32 + 1) if columns % n == 0]
    near.scales(scales, [(1,), *possible])
    count = scales.shape[-1]
    group = near.group(columns, columns // count)
    if group is None:
        raise near.wrong(f"groups of {columns // count} values are not multiples of 32")
    groups = columns // group
    spread = Spread(rows, groups, rows if len(scales.shape) == 1 else 1, groups // count)
    beside = RepackedTensor(scales.name, (scales,), scales.encoding, (rows, groups), spread)
    offsets = _zero_points(near, bits, (rows, count), groups)
    data = seen_as(codes, plain(dt.uint32), codes.shape)
    kind = "" if offsets else ":symmetric"
    return PackedWeight(f"{near.stem}.weight", f"q{bits}:{group}{kind}", data, beside, offsets)


def _shape(near: Neighbours, info: TensorInfo) -> tuple[int, int]:
    """The two sizes that `weight_shape` holds."""
    near.check(info, dt.int64, dt.int32)
    width = info.encoding.nbytes
    content = near.content(info)
    sizes = [
        int.from_bytes(content[i : i + width], "little") for i in range(0, len(content), width)
    ]
    if len(sizes) != 2 or not all(0 < size < 1 << 31 for size in sizes):
        raise near.wrong(f"{info.name} is not the shape of a matrix: {sizes[:4]}")
    return sizes[0], sizes[1]


def _zero_points(
    near: Neighbours, bits: int, shape: tuple[int, int], groups: int
) -> RepackedTensor | None:
    zeros = near.find(".weight_zero_point")
    if zeros is None:
        return None
    rows, count = shape
    near.check(zeros, dt.int32)
    if zeros.shape != (ceil(rows * bits / 32), count):
        raise near.wrong(f"{zeros.name} of shape {zeros.shape} does not fit it")
    function = RowZeroPoints(bits, rows, groups)
    return RepackedTensor(zeros.name, (zeros,), plain(dt.uint8), (rows, groups), function)


PACKINGS = (Packing(".weight_packed", _read),)
