"""The table of pixel formats against FFmpeg's own descriptions."""

from __future__ import annotations

import av
import numpy as np
import pytest

import lbrx
from lbrx_video.color import BT709
from lbrx_video.pixel_formats import FORMATS, ColorModel, find
from lbrx_video.planes import Planes


@pytest.mark.parametrize("name", FORMATS)
def test_format_as_ffmpeg_describes_it(name):
    known, theirs = FORMATS[name], av.VideoFormat(name, 67, 45)
    assert theirs.is_rgb == (known.model is ColorModel.RGB)
    assert len(theirs.components) == len(known.components)
    for i, component in enumerate(theirs.components):
        assert component.bits == known.depth
        assert component.plane == known.components[i].plane
        assert (component.height, component.width) == known.component_shape(i, 45, 67)
        assert component.is_alpha == (known.alpha and i == len(known.components) - 1)
    frame = av.VideoFrame(67, 45, name)
    assert len(frame.planes) == known.planes
    for i, plane in enumerate(frame.planes):
        rows, elements = known.plane_shape(i, 45, 67)
        assert plane.line_size >= elements * known.dtype.itemsize
        assert plane.buffer_size >= rows * plane.line_size


def test_unknown_format_has_a_remedy():
    with pytest.raises(lbrx.FormatError, match=r"'pal8' is not one that lbrx reads: convert"):
        find("pal8")


def test_planes_are_checked():
    y, c = np.zeros((2, 4, 8), np.uint16), np.zeros((2, 4, 4), np.uint16)
    tensors = [lbrx.tensor(x, device="cpu") for x in (y, c, c)]
    assert Planes(tuple(tensors), find("yuv422p10le"), 4, 8, BT709).frames == 2
    with pytest.raises(lbrx.ShapeError, match="has 3 planes, not 2: give one tensor for each"):
        Planes(tuple(tensors[:2]), find("yuv422p10le"), 4, 8, BT709)
    wanted = r"plane 1 of 4 x 8 yuv444p10le is uint16\[2, 4, 4\]: give uint16\[2, 4, 8\]"
    with pytest.raises(lbrx.ShapeError, match=wanted):
        Planes(tuple(tensors), find("yuv444p10le"), 4, 8, BT709)
