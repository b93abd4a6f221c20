"""GGML's quantized blocks, decoded by numpy from their documented layouts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from seeds import generator

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]


def half(block: Bytes, at: int) -> Floats:
    return block[:, at : at + 2].copy().view(np.float16).astype(np.float64)


def nibbles(packed: Bytes) -> Floats:
    """The low halves of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float64)


def q4_0(block: Bytes) -> Floats:
    return half(block, 0) * (nibbles(block[:, 2:]) - 8)


def q4_1(block: Bytes) -> Floats:
    return half(block, 0) * nibbles(block[:, 4:]) + half(block, 2)


def q5_0(block: Bytes) -> Floats:
    fifth = np.unpackbits(block[:, 2:6], axis=1, bitorder="little") * 16.0
    return half(block, 0) * (nibbles(block[:, 6:]) + fifth - 16)


def q8_0(block: Bytes) -> Floats:
    return half(block, 0) * block[:, 2:].view(np.int8)


def q4_k(block: Bytes) -> Floats:
    """Eight runs of 32, each with a scale and a minimum of six bits."""
    packed = block[:, 4:16].astype(np.int64)
    low, high, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([low & 63, (mixed & 15) | (low >> 6 << 4)], axis=1)
    minimum = np.concatenate([high & 63, (mixed >> 4) | (high >> 6 << 4)], axis=1)
    quads = block[:, 16:].reshape(-1, 4, 32)
    digits = np.stack([quads & 15, quads >> 4], axis=2).reshape(-1, 8, 32)
    values = half(block, 0)[..., None] * scale[..., None] * digits
    return (values - half(block, 2)[..., None] * minimum[..., None]).reshape(-1, 256)


def q6_k(block: Bytes) -> Floats:
    """Two halves of four runs of 32; a scale for every 16."""
    low, high = block[:, :128].reshape(-1, 2, 64), block[:, 128:192].reshape(-1, 2, 32)
    runs = [
        (low[..., :32] & 15) | ((high & 3) << 4),
        (low[..., 32:] & 15) | ((high >> 2 & 3) << 4),
        (low[..., :32] >> 4) | ((high >> 4 & 3) << 4),
        (low[..., 32:] >> 4) | ((high >> 6) << 4),
    ]
    digits = np.stack(runs, axis=2).reshape(-1, 16, 16).astype(np.float64) - 32
    scales = block[:, 192:208].view(np.int8).astype(np.float64)
    return (half(block, 208)[..., None] * scales[..., None] * digits).reshape(-1, 256)


# name: (elements, bytes, where halves stand, decoder)
BLOCKS: dict[str, tuple[int, int, tuple[int, ...], Callable[[Bytes], Floats]]] = {
    "q4_0": (32, 18, (0,), q4_0),
    "q4_1": (32, 20, (0, 2), q4_1),
    "q5_0": (32, 22, (0,), q5_0),
    "q8_0": (32, 34, (0,), q8_0),
    "q4_K": (256, 144, (0, 2), q4_k),
    "q6_K": (256, 210, (208,), q6_k),
}


def random_rows(kind: str, rows: int, columns: int, seed: int) -> tuple[Bytes, Floats]:
    """Rows of random blocks with small scales, and what they stand for."""
    elements, length, halves, decode = BLOCKS[kind]
    rng = generator(seed)
    blocks = rng.integers(0, 256, (rows * columns // elements, length)).astype(np.uint8)
    for at in halves:
        scales = (rng.random((len(blocks), 1)) * 0.01 + 0.001).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1), decode(blocks).reshape(rows, columns)
