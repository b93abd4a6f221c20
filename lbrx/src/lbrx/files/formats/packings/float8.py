"""Eight-bit floats with scales, as fp8 (DeepSeek, Qwen), FBGEMM, ModelOpt and compressed-tensors
store them: of blocks of rows and columns, of rows, or of the whole matrix.

The codes stay in the mapped file; the scales become one for each row and group.
"""

from __future__ import annotations

from math import ceil, prod

from lbrx.arrays import dtype as dt
from lbrx.files.formats.checks import brief
from lbrx.files.formats.descriptor import FLOAT8, TensorInfo, plain
from lbrx.files.formats.packings.array_functions import ScaledBytes, Spread
from lbrx.files.formats.packings.neighbours import Neighbours, Packing, seen_as
from lbrx.files.formats.recipe import PackedWeight, RepackedTensor

_E4M3, _E5M2, _E8M0 = FLOAT8
_BLOCK = 128
_BESIDE = (".input_scale", ".activation_scale", ".input_scale_ub", ".input_zero_point")


def _read(near: Neighbours) -> PackedWeight | RepackedTensor | None:
    codes = near.info
    if codes.encoding not in (_E4M3, _E5M2):
        return None
    scales = near.find(".weight_scale_inv") or near.find(".weight_scale")
    if scales is None:
        return None
    near.leave(*_BESIDE)
    near.check(codes, _E4M3, _E5M2)
    if len(codes.shape) < 2:
        raise near.wrong(f"shape {codes.shape} is not a matrix")
    rows, columns = codes.shape[-2:]
    if scales.encoding.dtype is dt.uint8 or scales.encoding == _E8M0:
        return _powers(near, scales)
    block_rows, block_columns = _block(near, scales, rows, columns)
    group = near.group(columns, block_columns)
    name = f"{near.stem}.weight"
    if group is None or codes.encoding == _E5M2:
        function = ScaledBytes(codes.encoding.name, block_rows, block_columns)
        return RepackedTensor(name, (codes, scales), plain(dt.float32), codes.shape, function)
    groups = columns // group
    spread = RepackedTensor(
        scales.name,
        (scales,),
        scales.encoding,
        (*codes.shape[:-1], groups),
        Spread(rows, groups, block_rows, block_columns // group),
    )
    data = seen_as(codes, plain(dt.uint8), codes.shape)
    return PackedWeight(name, f"e4m3:{group}", data, spread)


def _powers(near: Neighbours, scales: TensorInfo) -> PackedWeight:
    """MXFP8: powers of two as scales of 32 values."""
    codes = near.info
    near.check(codes, _E4M3)
    if codes.shape != (*scales.shape[:-1], scales.shape[-1] * 32):
        raise near.wrong(f"shape {codes.shape} with scales of {scales.shape} is not MXFP8")
    words = seen_as(codes, plain(dt.uint32), (*codes.shape[:-1], codes.shape[-1] // 4))
    powers = seen_as(scales, plain(dt.uint8), scales.shape)
    return PackedWeight(f"{near.stem}.weight", "mlx:mxfp8", words, powers)


def _block(near: Neighbours, scales: TensorInfo, rows: int, columns: int) -> tuple[int, int]:
    """The rows and columns that share a scale."""
    leading = near.info.shape[:-2]
    if prod(scales.shape) == 1:
        near.scales(scales, [(), (1,), (1, 1)])
        return rows, columns
    if scales.shape in ((*leading, rows), (*leading, rows, 1)):
        near.scales(scales, scales.shape)
        return 1, columns
    size = near.settings.get("weight_block_size", [_BLOCK, _BLOCK])
    match size:
        case [int() as high, int() as wide] if high > 0 and wide > 0:
            near.scales(scales, (*leading, ceil(rows / high), ceil(columns / wide)))
            return high, wide
    raise near.wrong(f"{brief(size)} are not two sizes", "quantization_config weight_block_size")


PACKINGS = (Packing(".weight", _read),)
