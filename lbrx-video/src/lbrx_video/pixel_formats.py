"""Pixel formats: how the samples of a frame lie in its planes, under FFmpeg's names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lbrx.extension.errors import FormatError
from lbrx.extension.tensors import Dtype
from lbrx.extension.tensors import dtypes as dt


class ColorModel(StrEnum):
    """What the components are."""

    YUV = "yuv"  # Y', Cb, Cr
    RGB = "rgb"  # R', G', B'
    GRAY = "gray"  # Y'


@dataclass(frozen=True)
class Component:
    """Where the samples of a component are: in row y of a plane, element x * step + offset. The
    code value is the element without its lowest `shift` bits, which are zero."""

    plane: int
    step: int = 1
    offset: int = 0
    shift: int = 0


@dataclass(frozen=True)
class PixelFormat:
    """The components of a format, in the order of its color model, alpha last.

    horizontal, vertical: logarithms of the chroma subsampling, (1, 0) for 4:2:2.
    """

    name: str
    model: ColorModel
    depth: int
    components: tuple[Component, ...]
    horizontal: int = 0
    vertical: int = 0
    alpha: bool = False
    full_range: bool = False
    """Whether codes use the full range if nothing else is said: JPEG's formats, and gray ones."""

    @property
    def dtype(self) -> Dtype:
        """Of an element of a plane."""
        return dt.uint8 if self.depth == 8 else dt.uint16

    @property
    def planes(self) -> int:
        return 1 + max(component.plane for component in self.components)

    @property
    def chroma(self) -> tuple[int, ...]:
        """The components that are subsampled."""
        return (1, 2) if self.model is ColorModel.YUV else ()

    @property
    def subsampling(self) -> str:
        """As in "4:2:2"; "4:4:4" for RGB and "4:0:0" for gray."""
        if self.model is ColorModel.GRAY:
            return "4:0:0"
        return {(0, 0): "4:4:4", (1, 0): "4:2:2", (1, 1): "4:2:0", (2, 0): "4:1:1"}.get(
            (self.horizontal, self.vertical), "4:4:0"
        )

    def component_shape(self, component: int, height: int, width: int) -> tuple[int, int]:
        """Rows and samples in a row of a component. Odd sizes are rounded up."""
        if component not in self.chroma:
            return height, width
        return -(-height >> self.vertical), -(-width >> self.horizontal)

    def plane_shape(self, plane: int, height: int, width: int) -> tuple[int, int]:
        """Rows and elements in a row of a plane, without the padding that a frame may have."""
        inside = [i for i, component in enumerate(self.components) if component.plane == plane]
        step = max(self.components[i].step for i in inside)
        shapes = [self.component_shape(i, height, width) for i in inside]
        if len({rows for rows, _ in shapes}) > 1 or not inside:
            raise AssertionError(f"{self.name} has components of different heights in a plane")
        elements = max(
            columns * self.components[i].step
            for i, (_, columns) in zip(inside, shapes, strict=True)
        )
        return shapes[0][0], -(-elements // step) * step

    def __str__(self) -> str:
        alpha = " with alpha" if self.alpha else ""
        return f"{self.name} ({self.model} {self.subsampling}, {self.depth} bits{alpha})"


def _planar(count: int, order: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[Component, ...]:
    return tuple(Component(order[i]) for i in range(count))


def _suffix(depth: int) -> str:
    return "" if depth == 8 else f"{depth}le"


# Subsampling as FFmpeg's names have it: logarithms, depths, and depths with alpha.
_SAMPLINGS = {
    "420": ((1, 1), (8, 9, 10, 12, 14, 16), (8, 9, 10, 16)),
    "422": ((1, 0), (8, 9, 10, 12, 14, 16), (8, 9, 10, 12, 16)),
    "444": ((0, 0), (8, 9, 10, 12, 14, 16), (8, 9, 10, 12, 16)),
    "440": ((0, 1), (8, 10, 12), ()),
    "411": ((2, 0), (8,), ()),
}


def _yuv_planar() -> list[PixelFormat]:
    found = []
    for name, ((horizontal, vertical), plain, with_alpha) in _SAMPLINGS.items():
        kinds = [("yuv", d, False, False) for d in plain]
        kinds += [("yuva", d, True, False) for d in with_alpha] + [("yuvj", 8, False, True)]
        for prefix, depth, alpha, full in kinds:
            title = f"{prefix}{name}p{_suffix(depth)}"
            where = _planar(3 + alpha)
            found.append(
                PixelFormat(title, ColorModel.YUV, depth, where, horizontal, vertical, alpha, full)
            )
    return found


def _semi_planar() -> list[PixelFormat]:
    """Luma, then Cb and Cr in turns. Codes of 10 and 12 bits are in the high bits of an element."""
    found = []
    samplings = {"0": (1, 1), "2": (1, 0), "4": (0, 0)}
    eight = {"0": ("nv12", "nv21"), "2": ("nv16", None), "4": ("nv24", "nv42")}
    for digit, (horizontal, vertical) in samplings.items():
        for name, first in zip(eight[digit], (0, 1), strict=True):
            if name is not None:
                where = (Component(0), Component(1, 2, first), Component(1, 2, 1 - first))
                found.append(PixelFormat(name, ColorModel.YUV, 8, where, horizontal, vertical))
        for depth in (10, 12, 16):
            shift = 16 - depth
            where = (
                Component(0, shift=shift),
                Component(1, 2, 0, shift),
                Component(1, 2, 1, shift),
            )
            title = f"p{digit}{depth}le"
            found.append(PixelFormat(title, ColorModel.YUV, depth, where, horizontal, vertical))
    return found


def _packed_yuv() -> list[PixelFormat]:
    yuyv = (Component(0, 2, 0), Component(0, 4, 1), Component(0, 4, 3))
    uyvy = (Component(0, 2, 1), Component(0, 4, 0), Component(0, 4, 2))
    y210 = tuple(Component(0, c.step, c.offset, 6) for c in yuyv)
    ayuv = tuple(Component(0, 4, offset) for offset in (1, 2, 3, 0))
    return [
        PixelFormat("yuyv422", ColorModel.YUV, 8, yuyv, 1, 0),
        PixelFormat("uyvy422", ColorModel.YUV, 8, uyvy, 1, 0),
        PixelFormat("y210le", ColorModel.YUV, 10, y210, 1, 0),
        PixelFormat("ayuv64le", ColorModel.YUV, 16, ayuv, alpha=True),
    ]


def _rgb() -> list[PixelFormat]:
    found = []
    for depth in (8, 9, 10, 12, 14, 16):
        for alpha in (False,) if depth == 9 else (False, True):
            title = f"gbr{'a' if alpha else ''}p{_suffix(depth)}"
            where = _planar(3 + alpha, (2, 0, 1, 3))
            found.append(PixelFormat(title, ColorModel.RGB, depth, where, alpha=alpha))
    orders = {
        "rgb24": (0, 1, 2),
        "bgr24": (2, 1, 0),
        "rgba": (0, 1, 2, 3),
        "bgra": (2, 1, 0, 3),
        "argb": (1, 2, 3, 0),
        "abgr": (3, 2, 1, 0),
        "rgb48le": (0, 1, 2),
        "bgr48le": (2, 1, 0),
        "rgba64le": (0, 1, 2, 3),
        "bgra64le": (2, 1, 0, 3),
    }
    for title, order in orders.items():
        where = tuple(Component(0, len(order), offset) for offset in order)
        depth = 16 if title.endswith("le") else 8
        found.append(PixelFormat(title, ColorModel.RGB, depth, where, alpha=len(order) == 4))
    return found


def _gray() -> list[PixelFormat]:
    return [
        PixelFormat(
            f"gray{_suffix(depth)}", ColorModel.GRAY, depth, (Component(0),), full_range=True
        )
        for depth in (8, 9, 10, 12, 14, 16)
    ]


FORMATS = {
    known.name: known
    for known in (*_yuv_planar(), *_semi_planar(), *_packed_yuv(), *_rgb(), *_gray())
}


def find(name: str) -> PixelFormat:
    """The format of that name; FormatError for one that lbrx does not read."""
    if name not in FORMATS:
        raise FormatError(
            f"pixel format {name!r} is not one that lbrx reads: convert the file first, as in "
            "`ffmpeg -i FILE -pix_fmt yuv444p16le -c:v ffv1 NEW.mkv`"
        )
    return FORMATS[name]
