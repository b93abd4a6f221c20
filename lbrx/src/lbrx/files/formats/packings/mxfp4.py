"""Checkpoints of experts in MXFP4, as Hugging Face's gpt-oss has them.

`NAME_blocks` are bytes of two codes, the first in the low half: (..., rows, blocks, 16), and
`NAME_scales` are exponents: (..., rows, blocks). These are MLX's mxfp4 arrays in another shape, so
they are used as they are stored, under `NAME.weight`.
"""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.files.formats.descriptor import plain
from lbrx.files.formats.packings.neighbours import Neighbours, Packing, seen_as
from lbrx.files.formats.recipe import PackedWeight

BLOCK = 32  # values


def _read(near: Neighbours) -> PackedWeight:
    blocks, scales = near.info, near.find("_scales")
    if scales is None:
        raise near.wrong(f"has no scales, {near.stem}_scales")
    for info, shape in ((blocks, (*scales.shape, BLOCK // 2)), (scales, scales.shape)):
        if info.encoding.dtype is not dt.uint8 or info.shape != shape or info.strides is not None:
            raise near.wrong(
                f"{info.name} is {info.encoding} of shape {info.shape}, and MXFP4 needs bytes of "
                f"{shape}"
            )
    *rows, count = scales.shape
    words = seen_as(blocks, plain(dt.uint32), (*rows, count * BLOCK // 8))
    return PackedWeight(f"{near.stem}.weight", "mlx:mxfp4", words, scales)


PACKINGS = (Packing("_blocks", _read),)
