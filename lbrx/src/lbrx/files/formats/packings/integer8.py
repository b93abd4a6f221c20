"""Eight-bit integers with a scale for each row, or for the whole, as bitsandbytes (`SCB`) and
compressed-tensors (int-quantized) store them."""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.files.formats.descriptor import TensorInfo, plain
from lbrx.files.formats.packings.array_functions import Int8Scales, Spread, UnsignedBytes
from lbrx.files.formats.packings.neighbours import Neighbours, Packing
from lbrx.files.formats.recipe import PackedWeight, RepackedTensor

_BESIDE = (".weight_format", ".input_scale", ".input_zero_point")


def _read(near: Neighbours) -> PackedWeight | None:
    codes = near.info
    if codes.encoding.dtype is not dt.int8 or len(codes.shape) != 2:
        return None
    sizes = near.find(".SCB")
    scales = sizes or near.find(".weight_scale")
    if scales is None:
        return None
    near.leave(*_BESIDE)
    rows, columns = codes.shape
    grouped = [(rows, n) for n in range(1, columns // 32 + 1) if columns % n == 0]
    near.scales(scales, [(rows,), (1,), (), *grouped])
    count = scales.shape[1] if len(scales.shape) == 2 else 1
    group = near.group(columns, columns // count)
    if group is None:
        raise near.wrong(f"groups of {columns // count} values are not multiples of 32")
    groups = columns // group
    function = Int8Scales(groups) if sizes else _spread(scales, rows, groups)
    beside = RepackedTensor(scales.name, (scales,), scales.encoding, (rows, groups), function)
    data = RepackedTensor(
        codes.name, (codes,), plain(dt.uint32), (rows, columns // 4), UnsignedBytes()
    )
    zeros, offsets = near.find(".weight_zero_point"), None
    if zeros is not None:
        near.check(zeros, dt.int8)
        if zeros.shape != (rows, count):
            raise near.wrong(f"{zeros.name} of shape {zeros.shape} does not fit it")
        offsets = RepackedTensor(
            zeros.name, (zeros,), plain(dt.uint8), (rows, groups), UnsignedBytes(groups)
        )
    kind = "" if offsets else ":symmetric"
    return PackedWeight(f"{near.stem}.weight", f"q8:{group}{kind}", data, beside, offsets)


def _spread(scales: TensorInfo, rows: int, groups: int) -> Spread:
    if len(scales.shape) == 2:
        return Spread(rows, groups, 1, groups // scales.shape[1])
    return Spread(rows, groups, rows if scales.size == 1 else 1)


PACKINGS = (Packing(".weight", _read),)
