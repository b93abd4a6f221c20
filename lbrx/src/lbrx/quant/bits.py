"""Small integers packed into bytes, in the two orders that the formats use.

In *runs*, as GGUF packs: `run` bytes hold 8 / bits runs of `run` values, the first run in the
lowest bits. Nibbles with run 16 are values 0 to 15 in the low halves and 16 to 31 in the high
ones; with run 1 the values of a byte follow each other.

As a *stream*, as MLX packs: value i starts at bit i * bits of the row, lowest bit first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ByteArray = NDArray[np.uint8]


def unpack_runs(packed: ByteArray, bits: int, run: int) -> ByteArray:
    """The values packed in the last axis, which becomes 8 / bits times as long."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    grouped = packed.reshape(*packed.shape[:-1], -1, 1, run)
    values = (grouped >> shifts) & np.uint8((1 << bits) - 1)
    return values.reshape(*packed.shape[:-1], -1)


def pack_runs(values: NDArray[Any], bits: int, run: int) -> ByteArray:
    """The inverse of `unpack_runs`; values have at most `bits` bits."""
    grouped = values.astype(np.uint8).reshape(*values.shape[:-1], -1, 8 // bits, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    packed: ByteArray = np.bitwise_or.reduce(grouped << shifts, axis=-2)
    return packed.reshape(*values.shape[:-1], -1)


def pack_stream(values: NDArray[Any], bits: int) -> ByteArray:
    """Eight values become `bits` bytes. The last axis must be a multiple of eight."""
    eights = values.astype("<u8").reshape(*values.shape[:-1], -1, 8)
    shifts = np.arange(0, 8 * bits, bits, dtype=np.uint64)
    words = np.ascontiguousarray(np.bitwise_or.reduce(eights << shifts, axis=-1))
    return words.view(np.uint8).reshape(*words.shape, 8)[..., :bits].reshape(*values.shape[:-1], -1)


def unpack_stream(packed: ByteArray, bits: int) -> ByteArray:
    chunks = packed.reshape(*packed.shape[:-1], -1, bits)
    wide = np.zeros((*chunks.shape[:-1], 8), np.uint8)
    wide[..., :bits] = chunks
    shifts = np.arange(0, 8 * bits, bits, dtype=np.uint64)
    values = (wide.view("<u8") >> shifts).astype(np.uint8) & np.uint8((1 << bits) - 1)
    return values.reshape(*packed.shape[:-1], -1)
