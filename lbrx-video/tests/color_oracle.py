"""Definitions of the color conversions that share nothing with lbrx: formulas of ITU-R BT.601, 709
and 2020 in float64, and interpolation by numpy."""

from __future__ import annotations

import numpy as np

WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}
# Where chroma sample k lies: (horizontally, vertically), of 2k + ...
PLACES = {"left": (0, 0.5), "center": (0.5, 0.5), "topleft": (0, 0), "top": (0.5, 0)}


def upsampled(chroma, height, width, steps, siting):
    """Linear interpolation between chroma samples; beyond the last one it stays the same."""
    (down, across), (h, v) = steps, PLACES[siting]
    rows = np.arange(chroma.shape[0]) * down + (v if down > 1 else 0) * (down - 1) / 1
    columns = np.arange(chroma.shape[1]) * across + (h if across > 1 else 0) * (across - 1) / 1
    wide = np.stack([np.interp(np.arange(width), columns, row) for row in chroma])
    return np.stack([np.interp(np.arange(height), rows, c) for c in wide.T]).T


def rgb(y, cb, cr, depth, matrix, full):
    """Codes at full resolution as R'G'B', black 0 and white 1."""
    unit = 2.0 ** (depth - 8)
    if full:
        top = 2.0**depth - 1
        y, cb, cr = y / top, (cb - 128 * unit) / top, (cr - 128 * unit) / top
    else:
        y, cb, cr = (
            (y - 16 * unit) / (219 * unit),
            (cb - 128 * unit) / (224 * unit),
            (cr - 128 * unit) / (224 * unit),
        )
    kr, kb = WEIGHTS[matrix]
    red, blue = y + 2 * (1 - kr) * cr, y + 2 * (1 - kb) * cb
    return np.stack([red, (y - kr * red - kb * blue) / (1 - kr - kb), blue])


def weight(name, x):
    x = abs(x)
    if name == "bilinear":
        return max(1 - x, 0)
    if name == "bicubic":
        if x < 1:
            return 1.5 * x**3 - 2.5 * x**2 + 1
        return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0
    return np.sinc(x) * np.sinc(x / 3) if x < 3 else 0


def resized(values, count, name, antialias=True):
    """The last axis resampled to `count` pixels, one by one."""
    length = values.shape[-1]
    scale = length / count
    if name == "nearest":
        return values[..., [int((i + 0.5) * scale) for i in range(count)]]
    stretch = max(scale, 1) if antialias else 1
    made = []
    for i in range(count):
        at = (i + 0.5) * scale - 0.5
        weights = np.array([weight(name, (k - at) / stretch) for k in range(length)])
        made.append(values @ (weights / weights.sum()))
    return np.stack(made, axis=-1)
