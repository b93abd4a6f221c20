"""Random quantized values as a scheme stores them, what they stand for, and tensors of them."""

from __future__ import annotations

import numpy as np

import lbrx
from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.ops.quantized import stored_names
from lbrx.tensors.quantized import pack


def stored(rng, name, shape, scales=dt.float32):
    """What a scheme could have stored: the codes are any, the scales finite; block 0 is all zeros."""
    scheme = quant.find(name)
    blocks = np.zeros(scheme.blocks(shape), scheme.layout)
    blocks.view(np.uint8)[scheme.block_bytes :] = rng.integers(
        0, 256, blocks.nbytes - scheme.block_bytes
    )
    for field in scheme.fields:
        base = scheme.layout[field].base
        if base.kind == "f":
            blocks[field][1:] = rng.uniform(-1, 1, blocks[field][1:].shape)
    if name == "iq1_m":
        # The scale's top bits are spread over the words: 0x3400 is a quarter.
        blocks["scales"] = blocks["scales"] & 0x0FFF | np.array([0, 0, 0x4000, 0x3000], np.uint16)
    small_scales = {"mxfp4": "e", "nvfp4": "d", "mlx:mxfp4": "scales", "mlx:mxfp8": "scales"}
    if field := small_scales.get(name):
        blocks[field] = rng.integers(120, 126, blocks[field].shape)
    if name == "mlx:mxfp8":
        blocks["data"] &= 0x3F3F3F3F  # 0x7f is NaN
    if name.startswith("e4m3"):
        blocks["data"] &= 0xBF  # without NaN
    if name == "mlx:nvfp4":
        blocks["scales"] = rng.integers(0, 126, blocks["scales"].shape)
    if "zero_points" in scheme.fields:
        blocks["zero_points"] &= (1 << scheme.bits) - 1
    if not scheme.planar:
        return [blocks.view(np.uint8).reshape(*shape[:-1], -1)]
    parts = [
        np.ascontiguousarray(blocks[n]).reshape(scheme.part_shape(n, shape)) for n in scheme.fields
    ]
    kept = [parts[0], *(p.astype(scales.numpy) for p in parts[1:])]
    return kept if scheme.keeps_dtype else parts


def reference(name, parts):
    """The values by lbrx.quant."""
    planes = dict(zip(stored_names(quant.find(name))[1:], parts[1:], strict=True))
    return quant.dequantize(parts[0], quant.describe(name, **planes))


def weight(name, parts, device="metal"):
    named = dict(zip(stored_names(quant.find(name)), parts, strict=True))
    return pack(name, **{n: lbrx.tensor(part, device=device) for n, part in named.items()})
