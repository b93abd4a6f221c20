"""bitsandbytes' four-bit types, nf4 and fp4: codes of a flat tensor, `absmax` of blocks, perhaps
quantized once more, and a JSON that says how. The codes stay in the mapped file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.files.formats.checks import parse_json
from lbrx.files.formats.descriptor import TensorInfo, plain
from lbrx.files.formats.packings.array_functions import BlockSizes, FourBitValues
from lbrx.files.formats.packings.neighbours import Neighbours, Packing, seen_as
from lbrx.files.formats.recipe import PackedWeight, RepackedTensor

_GROUP = 64
_KINDS = ("nf4", "fp4")


def _read(near: Neighbours) -> PackedWeight | RepackedTensor | None:
    codes, sizes = near.info, near.find(".weight.absmax")
    if sizes is None:
        return None
    states = [near.find(f".weight.quant_state.bitsandbytes__{kind}") for kind in _KINDS]
    state = next((each for each in states if each is not None), None)
    if state is None:
        raise near.wrong("has no quant_state of nf4 or fp4 beside it")
    kind, shape, size, nested = _settings(near, state)
    near.leave(".weight.quant_map")
    near.check(codes, dt.uint8)
    count = prod(shape)
    blocks = -(-count // size)
    if codes.size * 2 != count + count % 2 or sizes.size != blocks:
        raise near.wrong(f"{codes.size} bytes and {sizes.size} blocks are not those of {shape}")
    beside = (sizes, *_nested(near, sizes, nested))
    name = f"{near.stem}.weight"
    function = BlockSizes(blocks, 1, *nested)
    if shape[-1] % _GROUP or shape[-1] % size or size % _GROUP:
        values = FourBitValues(kind, size, count, function)
        return RepackedTensor(name, (codes, *beside), plain(dt.float32), shape, values)
    groups = (*shape[:-1], shape[-1] // _GROUP)
    repeated = BlockSizes(blocks, size // _GROUP, *nested)
    scales = RepackedTensor(sizes.name, beside, plain(dt.float32), groups, repeated)
    data = seen_as(codes, plain(dt.uint8), (*shape[:-1], shape[-1] // 2))
    return PackedWeight(name, f"{kind}:{_GROUP}", data, scales)


def _settings(
    near: Neighbours, info: TensorInfo
) -> tuple[str, tuple[int, ...], int, tuple[int, float]]:
    """The type, the shape, the size of a block, and of nested blocks with their offset."""
    near.check(info, dt.uint8)
    state = parse_json(near.files.path, near.content(info), info.name)
    match state:
        case {"quant_type": ("nf4" | "fp4") as kind, "blocksize": int(size), "shape": list(shape)}:
            sizes = [n for n in shape if type(n) is int and 0 < n < 1 << 31]
            if size > 0 and sizes and len(sizes) == len(shape):
                return kind, tuple(sizes), size, _nested_settings(near, state)
    raise near.wrong(f"{info.name} is not bitsandbytes' state: {json.dumps(state)[:80]}")


def _nested_settings(near: Neighbours, state: Mapping[str, Any]) -> tuple[int, float]:
    if "nested_blocksize" not in state:
        return 0, 0.0
    size, offset = state["nested_blocksize"], state.get("nested_offset", 0.0)
    if type(size) is not int or size < 1 or type(offset) not in (int, float):
        raise near.wrong("has a quant_state whose nested blocks are not described")
    return size, float(offset)


def _nested(
    near: Neighbours, sizes: TensorInfo, settings: tuple[int, float]
) -> tuple[TensorInfo, ...]:
    """The scales of the scales, and the points that these stand for."""
    size, _ = settings
    near.check(sizes, dt.uint8 if size else dt.float32)
    if not size:
        return ()
    outer, points = near.need(".weight.nested_absmax"), near.need(".weight.nested_quant_map")
    near.scales(outer, (-(-sizes.size // size),))
    near.scales(points, (256,))
    return outer, points


PACKINGS = (Packing(".weight", _read),)
