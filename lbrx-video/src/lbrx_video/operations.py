"""The conversions between planes and RGB as operations, which trace and fuse like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from lbrx.extension.errors import DtypeError, ShapeError
from lbrx.extension.operations import Attributes, OpFamily, not_differentiable, op
from lbrx.extension.tensors import Dtype, Shape, Tensor, apply
from lbrx_video.color import Color
from lbrx_video.conversion import ToFrames, ToPlanes, frames_of, planes_of
from lbrx_video.pixel_formats import PixelFormat
from lbrx_video.planes import Planes


def _frames_shape(shapes: Sequence[Shape | None], attributes: Attributes) -> Shape:
    what: ToFrames = attributes["what"]
    known = what.samples
    for plane, shape in enumerate(shapes):
        wanted = known.format.plane_shape(plane, known.height, known.width)
        if shape is None or shape[1:] != wanted:
            raise ShapeError(f"plane {plane} has shape {shape}: give (frames, {wanted})")
    first = shapes[0]
    assert first is not None
    return what.shape(first[0])


def _frames_dtype(_: Dtype, attributes: Attributes) -> Dtype:
    dtype: Dtype = attributes["what"].dtype
    return dtype


@op(OpFamily.OUTSIDE, _frames_shape, _frames_dtype)
def video_frames(*planes: NDArray[Any], what: ToFrames) -> NDArray[Any]:
    """Planes of frames as RGB."""
    return frames_of(planes, what)


def _planes_shapes(shapes: Sequence[Shape | None], attributes: Attributes) -> list[Shape]:
    what: ToPlanes = attributes["what"]
    known, shape = what.samples, shapes[0]
    order = "(frames, channels, height, width)"
    order = order if what.layout == "NCHW" else "(frames, height, width, channels)"
    if shape is None or len(shape) != 4:
        raise ShapeError(f"frames have shape {shape}: give {order}")
    channels, *size = shape[1:] if what.layout == "NCHW" else (shape[3], *shape[1:3])
    if channels not in (3, 4) or size != [known.height, known.width]:
        raise ShapeError(
            f"frames have shape {shape}: give {order} with 3 or 4 channels of "
            f"{known.height} x {known.width}"
        )
    form = known.format
    return [(shape[0], *form.plane_shape(i, *size)) for i in range(form.planes)]


def _planes_dtypes(promoted: Dtype, attributes: Attributes) -> tuple[Dtype, ...]:
    if not promoted.is_float:
        raise DtypeError(f"frames are {promoted}: give floats, black 0 and white 1")
    form: PixelFormat = attributes["what"].samples.format
    return (form.dtype,) * form.planes


@op(OpFamily.OUTSIDE, _planes_shapes, _planes_dtypes)
def video_planes(x: NDArray[Any], *, what: ToPlanes) -> tuple[NDArray[Any], ...]:
    """RGB as planes of frames."""
    return planes_of(x, what)


not_differentiable(
    "stored samples have no gradient: use the frames", *("video_frames", "video_planes")
)


def to_planes(frames: Tensor, what: ToPlanes, color: Color) -> Planes:
    """RGB as planes, computed when needed."""
    made = apply("video_planes", frames, what=what)
    tensors = made if isinstance(made, tuple) else (made,)
    known = what.samples
    return Planes(tensors, known.format, known.height, known.width, color)


def to_frames(planes: Planes, what: ToFrames) -> Tensor:
    """Planes as RGB, computed when needed: (frames, channels, height, width), or channels last."""
    result: Tensor = apply("video_frames", *planes.tensors, what=what)
    return result
