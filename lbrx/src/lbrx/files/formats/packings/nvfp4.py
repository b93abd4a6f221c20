"""Four-bit floats: NVFP4 of compressed-tensors and ModelOpt, with a scale of the whole beside the
E4M3 scales of 16 values, and MXFP4 of compressed-tensors, which is MLX's."""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.files.formats.descriptor import FLOAT8, plain
from lbrx.files.formats.packings.array_functions import GlobalScales
from lbrx.files.formats.packings.neighbours import Neighbours, Packing, seen_as
from lbrx.files.formats.recipe import PackedWeight, RepackedTensor

_E4M3, _, _E8M0 = FLOAT8
_BESIDE = (".input_scale", ".input_global_scale")


def _read_compressed(near: Neighbours) -> PackedWeight | None:
    if near.info.encoding.dtype is not dt.uint8:
        return None
    if f"{near.stem}.weight_global_scale" not in near.files.tensors:
        return _powers(near)
    return _scaled(near, ".weight_global_scale", divided=True)


def _read_model_opt(near: Neighbours) -> PackedWeight | None:
    is_packed = near.info.encoding.dtype is dt.uint8
    if not is_packed or f"{near.stem}.weight_scale_2" not in near.files.tensors:
        return None
    return _scaled(near, ".weight_scale_2", divided=False)


def _scaled(near: Neighbours, suffix: str, *, divided: bool) -> PackedWeight:
    codes, scales, whole = near.info, near.need(".weight_scale"), near.need(suffix)
    near.leave(*_BESIDE)
    near.check(codes, dt.uint8)
    near.check(scales, _E4M3)
    near.scales(whole, [(), (1,)])
    if codes.shape != (*scales.shape[:-1], scales.shape[-1] * 8):
        raise near.wrong(f"shape {codes.shape} with scales of {scales.shape} is not NVFP4")
    function = GlobalScales(divided)
    exact = RepackedTensor(scales.name, (scales, whole), plain(dt.float32), scales.shape, function)
    return PackedWeight(f"{near.stem}.weight", "e2m1:16", codes, exact)


def _powers(near: Neighbours) -> PackedWeight:
    codes, scales = near.info, near.need(".weight_scale")
    near.leave(*_BESIDE)
    near.check(codes, dt.uint8)
    near.check(scales, dt.uint8, _E8M0)
    if codes.shape != (*scales.shape[:-1], scales.shape[-1] * 16):
        raise near.wrong(f"shape {codes.shape} with scales of {scales.shape} is not MXFP4")
    words = seen_as(codes, plain(dt.uint32), (*codes.shape[:-1], codes.shape[-1] // 4))
    powers = seen_as(scales, plain(dt.uint8), scales.shape)
    return PackedWeight(f"{near.stem}.weight", "mlx:mxfp4", words, powers)


PACKINGS = (Packing(".weight_packed", _read_compressed), Packing(".weight", _read_model_opt))
