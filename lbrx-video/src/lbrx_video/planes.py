"""Decoded frames as they are stored: planes of code values on the device, not yet RGB."""

from __future__ import annotations

from dataclasses import dataclass

from lbrx.extension.errors import ShapeError
from lbrx.extension.tensors import Tensor
from lbrx_video.color import Color
from lbrx_video.pixel_formats import PixelFormat


@dataclass(frozen=True)
class Planes:
    """Several frames of one size and pixel format. All decoders give this record.

    tensors: one for each plane of the format, each (frames, rows, elements of a row), uint8 or
        uint16 as `format.dtype` says. Codes of planar formats are in the low bits.

    >>> y, cb, cr = (lbrx.zeros((1, 4, w), dtype="uint16") for w in (8, 4, 4))
    >>> Planes((y, cb, cr), find("yuv422p10le"), 4, 8, BT709)
    """

    tensors: tuple[Tensor, ...]
    format: PixelFormat
    height: int
    width: int
    color: Color

    def __post_init__(self) -> None:
        if len(self.tensors) != self.format.planes:
            raise ShapeError(
                f"{self.format.name} has {self.format.planes} planes, not {len(self.tensors)}: "
                "give one tensor for each"
            )
        for plane, tensor in enumerate(self.tensors):
            wanted = (self.frames, *self.format.plane_shape(plane, self.height, self.width))
            if tensor.shape != wanted or tensor.dtype is not self.format.dtype:
                raise ShapeError(
                    f"plane {plane} of {self.height} x {self.width} {self.format.name} is "
                    f"{tensor.dtype}{list(tensor.shape)}: give {self.format.dtype}{list(wanted)}"
                )

    @property
    def frames(self) -> int:
        """How many frames there are."""
        return self.tensors[0].shape[0] if self.tensors else 0
