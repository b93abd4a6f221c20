"""Frames of FFmpeg as planes on the device: each sample is copied once, in its smallest form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.tensors import Array, MetalStorage, Tensor, allocate
from lbrx.extension.tensors import shapes as sh
from lbrx_video.color import Color
from lbrx_video.ffmpeg import plane_view
from lbrx_video.pixel_formats import PixelFormat
from lbrx_video.planes import Planes

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


class PlaneBatch:
    """Room for some frames of one size, which are added one by one.

    Where host and device share memory the frames are copied into a buffer of the device's pool.
    """

    def __init__(
        self, frames: int, form: PixelFormat, height: int, width: int, color: Color, device: str
    ) -> None:
        self.count = 0
        self._size = (form, height, width)
        self._color = color
        self._device = device
        shapes = [(frames, *form.plane_shape(i, height, width)) for i in range(form.planes)]
        self._arrays: list[Array] = []
        self._written: list[NDArray[Any]] = []
        for shape in shapes:
            array, written = _room(shape, form, device)
            self._arrays.append(array)
            self._written.append(written)

    def add(self, frame: VideoFrame) -> None:
        """Copy a frame of the same format and size."""
        for plane, written in zip(frame.planes, self._written, strict=True):
            room = written[self.count]
            np.copyto(room, plane_view(plane, room))
        self.count += 1

    def planes(self) -> Planes:
        """The frames that were added. The batch must not be used afterwards."""
        tensors = [Tensor(array)[: self.count].to_device(self._device) for array in self._arrays]
        return Planes(tuple(tensors), *self._size, self._color)


def _room(shape: tuple[int, ...], form: PixelFormat, device: str) -> tuple[Array, NDArray[Any]]:
    """Memory for a plane of all frames: the device's own where the host sees it."""
    if device == "metal":
        from lbrx.extension.kernels import context

        gpu = context()
        if gpu.info.unified_memory:
            layout = sh.contiguous(shape)
            nbytes = layout.size * form.dtype.itemsize
            buffer = gpu.host_buffer(nbytes, "video planes")
            written = buffer.unsynchronised().view(form.dtype.numpy).reshape(shape)
            return Array(MetalStorage(buffer, 0, nbytes), layout, form.dtype), written
    array = allocate(shape, form.dtype)
    return array, array.writable()
