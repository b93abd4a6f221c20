"""Frames of a file by FFmpeg's decoders, in the order of presentation and from any frame on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.extension.errors import FormatError, LbrxError
from lbrx_video.completeness import DAMAGED, check_complete
from lbrx_video.ffmpeg import HARDWARE, av, explained, hardware_available, opened
from lbrx_video.frame_index import FrameIndex

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

DECODERS = ("auto", "hardware", "software", "kernels")


@dataclass(frozen=True)
class FrameRange:
    """Frames start, start + step, ... before stop; all to the end if stop is None."""

    start: int = 0
    stop: int | None = None
    step: int = 1

    def has(self, number: int) -> bool:
        return number >= self.start and (number - self.start) % self.step == 0

    def is_over(self, number: int) -> bool:
        return self.stop is not None and number >= self.stop


def open_container(path: Path, decoder: str) -> InputContainer:
    """The file, with the decoder that is wanted."""
    if decoder not in DECODERS:
        raise LbrxError(f"decoder={decoder!r}: give one of {', '.join(DECODERS)}")
    if decoder == "hardware" and not hardware_available():
        raise LbrxError(
            f"{path}: this machine has no {HARDWARE} decoder: give decoder='software' or 'auto'"
        )
    given: dict[str, Any] = {}
    if decoder != "software" and hardware_available():
        falls_back = decoder == "auto"
        given["hwaccel"] = av.codec.hwaccel.HWAccel(HARDWARE, allow_software_fallback=falls_back)
    remedy = "give a video file that is complete and that FFmpeg reads"
    with explained(path, "it cannot be opened as a video", remedy):
        return opened(path, **given)


def find_stream(path: Path, file: InputContainer, stream: int) -> VideoStream:
    """A video stream of a file; FormatError if it does not have it or its decoder is missing."""
    found = file.streams.video
    if not found:
        kinds = ", ".join(sorted({other.type for other in file.streams})) or "no streams"
        raise FormatError(f"{path}: it has no video stream, only {kinds}: give a video file")
    if not 0 <= stream < len(found):
        raise FormatError(f"{path}: there is no video stream {stream}: give 0 to {len(found) - 1}")
    if found[stream].codec_context is None:
        raise FormatError(
            f"{path}: FFmpeg has no decoder for video stream {stream}: convert the file first"
        )
    return found[stream]


class FrameReader:
    """Decodes the frames of one range. It is used by one thread, once."""

    def __init__(self, path: Path, stream: int, decoder: str, threads: int) -> None:
        self._path = path
        self._file = open_container(path, decoder)
        try:
            self._stream = find_stream(path, self._file, stream)
        except BaseException:
            self._file.close()
            raise
        self._stream.thread_type = "AUTO"
        self._stream.codec_context.thread_count = threads
        self._discarded = 0
        self._number, self._where = stream, f"video stream {stream}"

    def close(self) -> None:
        self._file.close()

    def read(
        self, wanted: FrameRange, index: FrameIndex | None
    ) -> Iterator[tuple[int, VideoFrame]]:
        """The frames of a range, each with its number. An index is needed unless it starts at 0.

        A damaged or truncated file raises FormatError after the frames before the damage.
        """
        ended: Fraction | None = None
        following = wanted.start  # the next frame that is wanted
        for number, frame in self._numbered(wanted, index):
            if wanted.is_over(number):
                return
            if frame.is_corrupt:
                raise self._damaged(number, "it is incomplete")
            if frame.pts is not None:
                ended = (frame.pts + (frame.duration or 0)) * Fraction(self._stream.time_base or 1)
            if wanted.has(number):
                yield number, frame
                following = number + wanted.step
        if not wanted.is_over(following):
            check_complete(
                *(self._path, self._number, self._stream),
                following=following,
                step=wanted.step,
                ended=ended,
                discarded=self._discarded,
            )

    def _numbered(
        self, wanted: FrameRange, index: FrameIndex | None
    ) -> Iterator[tuple[int, VideoFrame]]:
        if wanted.start == 0 and (index is None or wanted.step == 1):
            yield from enumerate(self._decoded(None, 0))
            return
        assert index is not None
        if wanted.start >= len(index):
            return
        only = None
        if self._stream.codec_context.codec.intra_only:  # the other packets need no decoding
            only = set(index.times[wanted.start : wanted.stop : wanted.step])
        for frame in self._from(index.times[wanted.start], only, wanted.start):
            assert frame.pts is not None
            yield index.number(frame.pts), frame

    def _from(self, time: int, only: set[int] | None, number: int) -> Iterator[VideoFrame]:
        """Frames from a presentation time on. A keyframe before it in the file may be presented
        after it; then decoding begins at an earlier one."""
        back = 0
        while True:
            target = time - back
            with explained(self._path, f"seeking frame {number} failed", DAMAGED):
                self._file.seek(target, stream=self._stream, backward=True)
            frames = self._decoded(only, number)
            first = next(frames, None)
            begin = self._stream.start_time or 0
            if first is None or first.pts is None or first.pts <= time or target < begin:
                break
            rate = self._stream.average_rate or 25
            unit = Fraction(self._stream.time_base or 1)
            back = max(2 * back, int(1 / (rate * unit)))
        if first is not None and first.pts is not None and first.pts >= time:
            yield first
        for frame in frames:
            if frame.pts is not None and frame.pts >= time:
                yield frame

    def _decoded(self, only: set[int] | None, number: int) -> Iterator[VideoFrame]:
        """What the decoder gives from here on: frames of wanted packets, or of all of them."""
        for packet in self._packets():
            if packet.is_discard:
                self._discarded += 1
            if only is not None and packet.size and packet.pts not in only:
                continue
            try:
                frames = packet.decode()
            except av.FFmpegError as problem:
                # Frames that the decoder's threads still hold come before the error.
                for frame in self._flushed():
                    number += 1
                    yield frame
                raise self._damaged(number, problem.strerror or str(problem)) from problem
            for frame in frames:
                number += 1
                yield frame

    def _flushed(self) -> list[VideoFrame]:
        try:
            return list(self._stream.codec_context.decode(None))
        except av.FFmpegError:
            return []

    def _packets(self) -> Iterator[Any]:
        with explained(self._path, f"{self._where} cannot be read on", DAMAGED):
            yield from self._file.demux(self._stream)

    def _damaged(self, number: int, reason: str) -> FormatError:
        return FormatError(f"{self._path}: frame {number} of {self._where}: {reason}: {DAMAGED}")
