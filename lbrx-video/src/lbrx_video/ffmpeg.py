"""The only importer of PyAV, which brings FFmpeg's demuxers, decoders and encoders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import FormatError, LbrxError

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
else:
    try:
        import av
    except ImportError as problem:
        raise LbrxError(f"video needs PyAV ({problem}): pip install av") from problem

__all__ = ["av", "explained", "hardware_available", "opened", "plane_view"]

HARDWARE = "videotoolbox"  # the media engines of Apple's chips
_OF_FILES = (FileNotFoundError, PermissionError, IsADirectoryError)


@contextmanager
def explained(path: Path | str, what: str, remedy: str) -> Iterator[None]:
    """Errors of FFmpeg as FormatError that names the file. A missing file stays an OSError."""
    try:
        yield
    except av.FFmpegError as problem:
        # Demuxers return -1, which reads as EPERM, for damage; errors of files name their file.
        if isinstance(problem, _OF_FILES) and problem.filename:
            raise
        text = problem.strerror or str(problem)
        raise FormatError(f"{path}: {what}: {text}: {remedy}") from problem


# They read other files, or the network, that a file names.
_OF_OTHERS = frozenset(
    "hls concat dash webm_dash_manifest imf rtsp rtp rtp_mpegts sap sdp vobsub lavfi".split()
)


@cache
def _demuxers() -> dict[str, str]:
    """FFmpeg's options that keep a file's demuxer to that file."""
    return {"format_whitelist": ",".join(sorted(av.formats_available - _OF_OTHERS))}


def opened(path: Path | str, **given: Any) -> InputContainer:
    """A file to read, alone: playlists are refused. Its metadata may be in another encoding than
    UTF-8, or damaged."""
    return cast(
        "InputContainer",
        av.open(str(path), metadata_errors="replace", container_options=_demuxers(), **given),
    )


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
