"""Schemes of quantized Hugging Face checkpoints that neither GGUF nor MLX has: decoding only.

Codes are stored as the checkpoints have them, so kernels read them in the mapped file.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lbrx.quant import floats
from lbrx.quant.affine_schemes import GROUP_SIZES
from lbrx.quant.scheme import Fields, FloatArray, Scheme

# The points of bitsandbytes' four-bit types, as its kernels have them.
NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
_FP4_SIZES = np.array(
    [0, 0.005208333333333333, 0.6666666666666666, 1, 1 / 3, 0.5, 1 / 6, 0.25], np.float32
)
FP4 = np.concatenate([_FP4_SIZES, -_FP4_SIZES])
POINTS = {"nf4": NF4, "fp4": FP4}


def _halves(data: NDArray[np.uint8], first: int) -> NDArray[np.uint8]:
    """The codes of bytes of two; the first of them is at bit `first`."""
    pair = [data >> np.uint8(first) & 15, data >> np.uint8(4 - first) & 15]
    return np.stack(pair, axis=-1).reshape(len(data), -1)


def _scheme(
    name: str,
    bits: int,
    group_size: int,
    values: Callable[[NDArray[np.uint8]], FloatArray],
    codec: str,
    integer_codes: bool = False,
) -> Scheme:
    def decode(fields: Fields) -> FloatArray:
        return values(fields["data"]) * fields["scales"].astype(np.float32)[:, None]

    layout = np.dtype([("data", "u1", group_size * bits // 8), ("scales", "<f4")])
    return Scheme(
        name,
        bits,
        group_size,
        group_size,
        layout,
        decode,
        symmetric=True,
        planar=True,
        keeps_dtype=True,
        codec=codec,
        integer_codes=integer_codes,
    )


SCHEMES = (
    *(_scheme(f"e4m3:{size}", 8, size, floats.from_e4m3, "e4m3") for size in GROUP_SIZES),
    _scheme("nf4:64", 4, 64, lambda data: NF4[_halves(data, 4)], "nf4"),
    _scheme("fp4:64", 4, 64, lambda data: FP4[_halves(data, 4)], "fp4"),
    _scheme("e2m1:16", 4, 16, lambda data: floats.E2M1[_halves(data, 0)], "e2m1", True),
)
