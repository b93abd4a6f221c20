"""Transfer functions between coded values and linear light, in numpy.

The kernels have the same functions in kernels/video_transfer.h. Functions that are not defined for
negative values are extended as odd functions, so that colors outside the gamut survive; PQ clips.

Linear light is relative to reference white 1, except that PQ's 1 is 10,000 cd/m2. HLG is the light
of the scene, without the display's system gamma. "bt709" is the camera's function, also that of
BT.601 and BT.2020; "bt1886" is the display's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import LbrxError

Floats = NDArray[np.float64]

ALPHA, BETA = 1.09929682680944, 0.018053968510807  # of BT.709
M1, M2 = 2610 / 16384, 2523 / 4096 * 128  # of PQ
C1, C2, C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
HLG_A, HLG_B, HLG_C = 0.17883277, 0.28466892, 0.55991073


def _odd(function: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    return lambda v: np.sign(v) * function(np.abs(v))


def _gamma(exponent: float) -> Callable[[Floats], Floats]:
    return _odd(lambda v: v**exponent)


def _bt709_light(v: Floats) -> Floats:
    return np.where(v < 4.5 * BETA, v / 4.5, ((v + ALPHA - 1) / ALPHA) ** (1 / 0.45))


def _bt709_code(v: Floats) -> Floats:
    return np.where(v < BETA, 4.5 * v, ALPHA * v**0.45 - (ALPHA - 1))


def _srgb_light(v: Floats) -> Floats:
    return np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)


def _srgb_code(v: Floats) -> Floats:
    return np.where(v <= 0.0031308, v * 12.92, 1.055 * v ** (1 / 2.4) - 0.055)


def _pq_light(v: Floats) -> Floats:
    power = np.clip(v, 0, 1) ** (1 / M2)
    return (np.maximum(power - C1, 0) / (C2 - C3 * power)) ** (1 / M1)


def _pq_code(v: Floats) -> Floats:
    power = np.maximum(v, 0) ** M1
    return ((C1 + C2 * power) / (1 + C3 * power)) ** M2


def _hlg_light(v: Floats) -> Floats:
    return np.where(v <= 0.5, v * v / 3, (np.exp((v - HLG_C) / HLG_A) + HLG_B) / 12)


def _hlg_code(v: Floats) -> Floats:
    high = HLG_A * np.log(np.maximum(12 * v - HLG_B, 1e-30)) + HLG_C
    return np.where(v <= 1 / 12, np.sqrt(3 * v), high)


LIGHT: dict[str, Callable[[Floats], Floats]] = {
    "linear": lambda v: v,
    "bt709": _odd(_bt709_light),
    "bt1886": _gamma(2.4),
    "gamma22": _gamma(2.2),
    "gamma28": _gamma(2.8),
    "srgb": _odd(_srgb_light),
    "pq": _pq_light,
    "hlg": _odd(_hlg_light),
}
"""From coded values to light."""
CODE: dict[str, Callable[[Floats], Floats]] = {
    "linear": lambda v: v,
    "bt709": _odd(_bt709_code),
    "bt1886": _gamma(1 / 2.4),
    "gamma22": _gamma(1 / 2.2),
    "gamma28": _gamma(1 / 2.8),
    "srgb": _odd(_srgb_code),
    "pq": _pq_code,
    "hlg": _odd(_hlg_code),
}
"""From light to coded values."""


def check_transfer(name: str) -> str:
    """The name itself; LbrxError for an unknown one."""
    if name not in LIGHT:
        raise LbrxError(f"transfer={name!r}: give one of {', '.join(LIGHT)}")
    return name
