"""The only importer of PyAV, which brings FFmpeg's demuxers, decoders and encoders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError, LbrxError

if TYPE_CHECKING:
    import av
else:
    try:
        import av
    except ImportError as problem:
        raise LbrxError(f"video needs PyAV ({problem}): pip install 'lbrx[video]'") from problem

__all__ = ["av", "explained", "hardware_available", "plane_view"]

HARDWARE = "videotoolbox"  # the media engines of Apple's chips


@contextmanager
def explained(path: Path | str, what: str, remedy: str) -> Iterator[None]:
    """Errors of FFmpeg as FormatError that names the file. A missing file stays an OSError."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except av.FFmpegError as problem:
        text = problem.strerror or str(problem)
        raise FormatError(f"{path}: {what}: {text}: {remedy}") from problem


def plane_view(plane: Any, like: NDArray[Any]) -> NDArray[Any]:
    """The memory of a frame's plane, with the shape (rows, elements) and dtype of an array: rows
    may be padded."""
    rows, elements = like.shape
    pitch = plane.line_size // like.itemsize
    memory = np.frombuffer(plane, like.dtype)
    return memory[: rows * pitch].reshape(rows, pitch)[:, :elements]


def hardware_available() -> bool:
    """Whether this build of FFmpeg can use Apple's media engines."""
    return HARDWARE in av.codec.hwaccel.hwdevices_available()
