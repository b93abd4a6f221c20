"""What a conversion between planes and RGB computes, as data, and its definition in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import DtypeError, LbrxError, ShapeError
from lbrx.extension.tensors import Dtype
from lbrx.extension.tensors import dtypes as dt
from lbrx_video.color import LUMA_WEIGHTS, SITINGS
from lbrx_video.pixel_formats import ColorModel, PixelFormat
from lbrx_video.resampling import Axis, taps
from lbrx_video.transfer import CODE, LIGHT

Floats = NDArray[np.float64]
LAYOUTS = ("NCHW", "NHWC")
GBR = np.array([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])  # H.273's matrix 0 stores G, B, R
FLOATS = (dt.float32, dt.float16, dt.bfloat16)


@dataclass(frozen=True)
class Samples:
    """How the codes of frames are to be understood: what both directions of a conversion share."""

    format: PixelFormat
    height: int
    width: int
    matrix: str
    full_range: bool
    siting: str

    def __post_init__(self) -> None:
        known = ("rgb", *LUMA_WEIGHTS)
        if self.matrix not in known:
            raise LbrxError(f"matrix={self.matrix!r}: give one of {', '.join(known)}")
        if self.siting not in SITINGS:
            raise LbrxError(f"siting={self.siting!r}: give one of {', '.join(SITINGS)}")

    @property
    def alpha_scale(self) -> float:
        """From codes of alpha, which always use the full range, to 0..1."""
        return 1 / float(2**self.format.depth - 1)

    def to_rgb(self) -> tuple[Floats, Floats]:
        """A matrix (3, 3) and offsets (3,) that turn codes into R'G'B', black 0 and white 1."""
        scale, offset = self._normal()
        matrix = np.eye(3)
        if self.format.model is ColorModel.GRAY:
            matrix = np.array([[1.0, 0, 0]] * 3)
        elif self.format.model is ColorModel.YUV and self.matrix != "rgb":
            matrix = self._from_luma()
        elif self.format.model is ColorModel.YUV:
            matrix = GBR
        return matrix * scale, matrix @ offset

    def to_codes(self) -> tuple[Floats, Floats]:
        """The inverse: a matrix and offsets that turn R'G'B' into codes, not rounded yet."""
        scale, offset = self._normal()
        matrix: Floats = np.eye(3)
        if self.format.model is not ColorModel.RGB:
            own = self._from_luma() if self.matrix != "rgb" else GBR
            matrix = np.linalg.inv(own).astype(np.float64)
        return matrix / scale[:, None], -offset / scale

    def _normal(self) -> tuple[Floats, Floats]:
        """Scale and offset of each component: value = code * scale + offset."""
        depth = self.format.depth
        unit, top = 2.0 ** (depth - 8), 2.0**depth - 1
        differences = self.format.model is ColorModel.YUV and self.matrix != "rgb"
        if self.full_range:
            scale = np.full(3, 1 / top)
            zero = np.array([0.0, 2.0 ** (depth - 1), 2.0 ** (depth - 1)])
        else:
            scale = 1 / (unit * np.array([219.0, 224.0, 224.0]))
            zero = unit * np.array([16.0, 128.0, 128.0])
        if not differences:
            scale, zero = np.full(3, scale[0]), np.full(3, zero[0])
        return scale, -zero * scale

    def _from_luma(self) -> Floats:
        kr, kb = LUMA_WEIGHTS[self.matrix]
        kg = 1 - kr - kb
        return np.array(
            [
                [1, 0, 2 * (1 - kr)],
                [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg],
                [1, 2 * (1 - kb), 0],
            ]
        )


@dataclass(frozen=True)
class ToFrames:
    """Planes to RGB tensors: resample, convert color, transfer, clip, normalise.

    box: top, left, height and width of the part that is used. size: height and width of results.
    light, code: names of transfer functions that are applied one after the other, or None.
    scale, offset: for each channel, applied at the end.
    """

    samples: Samples
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    filter: str
    antialias: bool
    light: str | None
    code: str | None
    clip: bool
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    alpha: bool
    layout: str
    dtype: Dtype

    def __post_init__(self) -> None:
        check_layout(self.layout)
        if self.dtype not in FLOATS:
            raise DtypeError(
                f"frames are floats, not {self.dtype}: give float32, float16 or bfloat16, and "
                "convert the results, as in (frames * 255).round().astype('uint8')"
            )
        if min(self.size) < 1:
            raise ShapeError(f"size={self.size}: give a height and a width from 1 on")
        top, left, height, width = self.box
        inside = top >= 0 and top + height <= self.samples.height
        inside = inside and left >= 0 and left + width <= self.samples.width
        if height <= 0 or width <= 0 or not inside:
            raise ShapeError(
                f"crop={self.box} is not inside {self.samples.height} x {self.samples.width}: "
                "give (top, left, height, width)"
            )

    @property
    def channels(self) -> int:
        return 3 + self.alpha

    def shape(self, frames: int) -> tuple[int, ...]:
        height, width = self.size
        if self.layout == "NCHW":
            return frames, self.channels, height, width
        return frames, height, width, self.channels

    def axes(self, component: int) -> tuple[Axis, Axis]:
        """How rows and columns of the results are made of those of a component."""
        known = self.samples
        chroma = component in known.format.chroma
        rows, columns = known.format.component_shape(component, known.height, known.width)
        across, down = SITINGS[known.siting]
        top, left, height, width = self.box
        shifts = (known.format.vertical, known.format.horizontal) if chroma else (0, 0)
        return (
            Axis(rows, top, height, self.size[0], self.filter, self.antialias, shifts[0], down),
            Axis(
                columns, left, width, self.size[1], self.filter, self.antialias, shifts[1], across
            ),
        )


@dataclass(frozen=True)
class ToPlanes:
    """RGB tensors to planes: transfer, convert color, subsample chroma, round."""

    samples: Samples
    light: str | None
    code: str | None
    layout: str

    def __post_init__(self) -> None:
        check_layout(self.layout)
        if self.samples.format.model is ColorModel.GRAY:
            raise LbrxError("frames are RGB: gray pixel formats cannot be written")

    def axes(self) -> tuple[Axis, Axis]:
        """How rows and columns of chroma are made of pixels: a triangle over the pixels around the
        place of the chroma sample."""
        known, form = self.samples, self.samples.format
        rows, columns = form.component_shape(1, known.height, known.width)
        across, down = SITINGS[known.siting]
        return (
            _subsampled(known.height, rows, form.vertical, down),
            _subsampled(known.width, columns, form.horizontal, across),
        )


def _subsampled(pixels: int, samples: int, shift: int, centered: bool) -> Axis:
    step = 1 << shift
    start = 0.0 if centered else 0.5 - step / 2
    return Axis(pixels, start, samples * step, samples)


def check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise LbrxError(f"layout={layout!r}: give one of {', '.join(LAYOUTS)}")


# ---- definitions ----


def frames_of(planes: tuple[NDArray[Any], ...], what: ToFrames) -> Floats:
    """The definition of `ToFrames`, in float64."""
    form = what.samples.format
    count = len(form.components) if what.alpha else min(len(form.components), 3)
    made = []
    for component in range(count):
        place = form.components[component]
        rows, columns = (taps(axis).dense(axis.samples) for axis in what.axes(component))
        codes = planes[place.plane][..., place.offset :: place.step][..., : columns.shape[1]]
        made.append(rows @ (codes.astype(np.float64) / 2**place.shift) @ columns.T)
    matrix, offset = what.samples.to_rgb()
    color = np.stack([made[0], *made[1:3]] if len(made) > 2 else [made[0]] * 3, axis=1)
    rgb = np.einsum("ij,njyx->niyx", matrix, color) + offset[:, None, None]
    with np.errstate(all="ignore"):
        rgb = rgb if what.light is None else LIGHT[what.light](rgb)
        rgb = rgb if what.code is None else CODE[what.code](rgb)
    if what.alpha:
        alpha = made[3] * what.samples.alpha_scale if form.alpha else np.ones_like(made[0])
        rgb = np.concatenate([rgb, alpha[:, None]], axis=1)
    if what.clip:
        rgb = np.clip(rgb, 0, 1)
    result = rgb * _across(what.scale) + _across(what.offset)
    return result if what.layout == "NCHW" else np.moveaxis(result, 1, -1)


def _across(values: tuple[float, ...]) -> Floats:
    return np.array(values)[:, None, None]


def planes_of(frames: NDArray[Any], what: ToPlanes) -> tuple[NDArray[Any], ...]:
    """The definition of `ToPlanes`: computed in float64, half a code is rounded up."""
    known, form = what.samples, what.samples.format
    rgb = frames.astype(np.float64)
    rgb = rgb if what.layout == "NCHW" else np.moveaxis(rgb, -1, 1)
    color = rgb[:, :3]
    with np.errstate(all="ignore"):
        color = color if what.light is None else LIGHT[what.light](color)
        color = color if what.code is None else CODE[what.code](color)
    matrix, offset = known.to_codes()
    codes = np.einsum("ij,njyx->niyx", matrix, color)
    alpha = rgb[:, 3] if rgb.shape[1] == 4 else np.ones_like(rgb[:, 0])
    results = [
        np.zeros((len(rgb), *form.plane_shape(i, known.height, known.width)), form.dtype.numpy)
        for i in range(form.planes)
    ]
    for i, place in enumerate(form.components):
        if i == 3:
            value = alpha / known.alpha_scale
        elif i in form.chroma:
            rows, columns = (taps(axis).dense(axis.samples) for axis in what.axes())
            value = rows @ codes[:, i] @ columns.T + offset[i]
        else:
            value = codes[:, i] + offset[i]
        code = np.floor(np.clip(np.nan_to_num(value), 0, 2**form.depth - 1) + 0.5)
        target = results[place.plane][..., place.offset :: place.step]
        target[..., : code.shape[-1]] = code.astype(np.uint32) << place.shift
    return tuple(results)
