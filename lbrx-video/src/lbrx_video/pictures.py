"""Frames as PNG files, of 8 or 16 bits, by FFmpeg's encoder."""

from __future__ import annotations

from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import LbrxError, ShapeError
from lbrx.extension.files import replacing
from lbrx.extension.tensors import Tensor
from lbrx_video.ffmpeg import av, explained, plane_view

FORMATS = {(8, 3): "rgb24", (8, 4): "rgba", (16, 3): "rgb48be", (16, 4): "rgba64be"}


def save_picture(path: str | PathLike[str], frame: Tensor, bits: int = 8) -> None:
    """Write a frame, (channels, height, width) with values in 0..1, as a PNG file.

    Values outside are limited. Three channels are RGB, four RGB with alpha.
    """
    if frame.ndim != 3 or frame.shape[0] not in (3, 4):
        raise ShapeError(
            f"a picture of shape {frame.shape}: give (channels, height, width), 3 or 4 channels"
        )
    if (bits, 3) not in FORMATS:
        raise LbrxError(f"bits={bits}: give 8 or 16")
    top = 2**bits - 1
    codes = (frame.astype("float32").clip(0.0, 1.0) * top).round().astype(f"uint{bits}")
    values = np.moveaxis(codes.numpy(), 0, -1)
    _, height, width = frame.shape
    with explained(Path(path), f"a PNG of {width} x {height} pixels", "give another size"):
        content = _png(np.ascontiguousarray(values), FORMATS[bits, frame.shape[0]])
    with replacing(Path(path)) as file:
        file.write(content)


def _png(values: NDArray[Any], form: str) -> bytes:
    """The file of a picture, given as (height, width, channels)."""
    height, width, _ = values.shape
    picture = av.VideoFrame(width, height, form)
    rows = values.reshape(height, -1).astype(values.dtype.newbyteorder(">"))
    np.copyto(plane_view(picture.planes[0], rows), rows)
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, form
    encoder.time_base = Fraction(1)
    return b"".join(map(bytes, (*encoder.encode(picture), *encoder.encode(None))))
