"""Frames as PNG files, of 8 or 16 bits, by FFmpeg's encoder."""

from __future__ import annotations

from fractions import Fraction
from os import PathLike
from pathlib import Path

import numpy as np

from lbrx.errors import LbrxError, ShapeError
from lbrx.formats.output import replacing
from lbrx.tensor import Tensor
from lbrx.video.ffmpeg import av, plane_view

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
    channels, height, width = frame.shape
    name = FORMATS[bits, channels]
    picture = av.VideoFrame(width, height, name)
    rows = np.ascontiguousarray(values.reshape(height, width * channels))
    rows = rows.astype(rows.dtype.newbyteorder(">"))
    np.copyto(plane_view(picture.planes[0], rows), rows)
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, name
    encoder.time_base = Fraction(1)
    with replacing(Path(path)) as file:
        for packet in (*encoder.encode(picture), *encoder.encode(None)):
            file.write(bytes(packet))
