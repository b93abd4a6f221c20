"""Clips: video files whose frames are read as tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from fractions import Fraction
from numbers import Real
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lbrx.extension.errors import FormatError, LbrxError, ShapeError
from lbrx.extension.tensors import DtypeLike, Tensor, default_device
from lbrx.extension.tensors import dtypes as dt
from lbrx_video.clip_facts import ClipFacts, color_of, completed, read_facts
from lbrx_video.color import Color
from lbrx_video.decoding import FrameRange, FrameReader, find_stream, open_container
from lbrx_video.ffmpeg import hardware_available
from lbrx_video.frame_index import FrameIndex, read_index
from lbrx_video.frame_options import FrameOptions
from lbrx_video.kernel_decoding import CODEC, check_decodable, decoded_batches
from lbrx_video.pixel_formats import find
from lbrx_video.plane_upload import PlaneBatch
from lbrx_video.planes import Planes
from lbrx_video.prefetch import Prefetched

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Place = int | float | Fraction
"""A frame by its number, or by its time in seconds."""


class Clip:
    """A video file, as `lbrx.video.open` returns it. Its facts are attributes of `facts`.

    Several iterations may run at the same time: each has a decoder of its own.
    """

    def __init__(self, path: Path, stream: int, decoder: str, threads: int) -> None:
        self.path = path
        self._stream = stream
        self._decoder = decoder
        self._threads = threads
        self._index: FrameIndex | None = None
        self._running: list[Prefetched[Planes]] = []
        self._closed = False
        with open_container(path, decoder) as file:
            self.facts: ClipFacts = read_facts(path, file, find_stream(path, file, stream))

    # ---- facts ----

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.facts.height, self.facts.width

    @property
    def rate(self) -> Fraction:
        """Frames in a second."""
        return self.facts.rate

    @property
    def color(self) -> Color:
        """How the code values mean colors: range, matrix, transfer function, primaries."""
        return self.facts.color

    def __len__(self) -> int:
        """The number of frames. If the file does not state it, its packets are counted."""
        return self.facts.frames or len(self._frame_index())

    def __repr__(self) -> str:
        facts = self.facts
        return (
            f"<lbrx.video.Clip {facts.path.name}: {facts.codec} {facts.width} x {facts.height}, "
            f"{float(facts.rate):g} frames/s, {facts.pixel_format}>"
        )

    # ---- frames ----

    def batches(
        self,
        frames: int,
        start: Place = 0,
        stop: Place | None = None,
        step: int = 1,
        *,
        size: Sequence[int] | None = None,
        crop: Sequence[float] | None = None,
        filter: str = "bilinear",
        antialias: bool = True,
        dtype: DtypeLike = dt.float32,
        layout: str = "NCHW",
        alpha: bool = False,
        clip: bool = False,
        transfer: str | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        color: Color | None = None,
        device: str | None = None,
        prefetch: int = 2,
    ) -> Iterator[Tensor]:
        """Tensors of up to `frames` frames each: RGB floats, black 0 and white 1.

        start, stop, step: as in slices. Integers are frame numbers, floats and fractions seconds.
        size: (height, width) of the results; crop: (top, left, height, width) of what they show.
        filter: "nearest", "bilinear", "bicubic" or "lanczos", for resizing and for chroma;
            antialias widens it when the picture becomes smaller.
        layout: "NCHW" or "NHWC". alpha: True gives a fourth channel, 1 where the file has none.
        clip: True limits values to 0..1; otherwise what lies outside of the range is kept.
        transfer: a transfer function of the results, such as "linear" or "srgb"; by default values
            stay as they are coded.
        mean, std: of each channel: results are (value - mean) / std.
        color: how to understand the codes, instead of what the file says.
        prefetch: batches that a thread decodes ahead; 0 decodes when a batch is wanted.

        A damaged file gives the frames before the damage and then raises FormatError, as does a
        file whose frames change their size.

        >>> with lbrx.video.open("clip.mov") as clip:
        ...     for frames in clip.batches(8, size=(224, 224), dtype="float16"):
        ...         print(frames.shape)
        """
        options = FrameOptions(
            size=size,
            crop=crop,
            filter=filter,
            antialias=antialias,
            dtype=dtype,
            layout=layout,
            alpha=alpha,
            clip=clip,
            transfer=transfer,
            mean=mean,
            std=std,
            color=color,
        )
        place = (start, stop, step)
        for planes in self.planes(frames, *place, alpha=alpha, device=device, prefetch=prefetch):
            yield self._converted(options, planes)

    def _converted(self, options: FrameOptions, planes: Planes) -> Tensor:
        try:
            return options.frames(planes)
        except FormatError as problem:
            raise FormatError(f"{self.path}: {problem}") from problem

    def frame(self, place: Place, **conversion: Any) -> Tensor:
        """One frame, (channels, height, width): by its number, where negative ones count from the
        end, or the one seen at a time in seconds. `conversion` are arguments of `batches`.

        A frame before the first or after the last one raises IndexError.
        """
        number = self._shown(place)
        found = list(self.batches(1, number, number + 1, prefetch=0, **conversion))
        if not found:
            raise IndexError(f"{self.path}: there is no frame {place}: it has {len(self)}")
        return found[0][0]

    def number(self, place: Place, name: str = "place") -> int:
        """The number of the first frame of a range that starts at a place: negative ones count from
        the end, and a time is that of the first frame presented at it or later. `name` is for
        errors.
        """
        found = _number_or_time(place, name)
        if isinstance(found, int):
            number = self._from_first(found)
            if number < 0:
                raise LbrxError(f"{name}={place}: {self.path} has {len(self)} frames")
            return number
        if found < 0:
            raise LbrxError(f"{name}={place} seconds: give 0 or more")
        return self._frame_index().first_from(found)

    def planes(
        self,
        frames: int,
        start: Place = 0,
        stop: Place | None = None,
        step: int = 1,
        *,
        alpha: bool = True,
        device: str | None = None,
        prefetch: int = 2,
    ) -> Iterator[Planes]:
        """Batches of frames as they are stored, before any conversion. alpha=False lets a decoder
        leave an alpha plane out."""
        if operator.index(frames) < 1:
            raise ShapeError(f"batches of {frames} frames: give 1 or more")
        if self._closed:
            raise LbrxError(f"{self.path}: the clip is closed: use it within its `with` block")
        wanted = self._range(start, stop, step)
        place = device or default_device()
        index = self._index
        kernels = self._uses_kernels(place)

        def produce() -> Iterator[Planes]:
            if kernels:
                ahead = prefetch > 0
                return decoded_batches(self.facts, self._stream, frames, wanted, alpha, ahead)
            return self._batches(frames, wanted, index, place)

        if prefetch <= 0:
            yield from produce()
            return
        # Kernels have one more batch in their hands.
        running = Prefetched(produce, max(prefetch - kernels, 1))
        self._running.append(running)
        try:
            yield from running
        finally:
            running.close()
            self._running.remove(running)

    def _uses_kernels(self, device: str) -> bool:
        """Whether kernels decode: they take less time than FFmpeg's decoder, also on processors.
        Apple's media engines take none of the GPU's time, so they come first."""
        if self._decoder == "kernels":
            check_decodable(self.facts, device)
            return True
        automatic = self._decoder == "auto" and not hardware_available()
        return automatic and device == "metal" and self.facts.codec == CODEC

    def _batches(
        self, frames: int, wanted: FrameRange, index: FrameIndex | None, device: str
    ) -> Iterator[Planes]:
        reader = FrameReader(self.path, self._stream, self._decoder, self._threads)
        batch: PlaneBatch | None = None
        first: tuple[object, ...] = ()
        try:
            for number, frame in reader.read(wanted, index):
                kind = (frame.format.name, frame.height, frame.width)
                first = first or kind
                if kind != first:
                    raise FormatError(
                        f"{self.path}: frame {number} of video stream {self._stream} is "
                        f"{_described(kind)}, and those before it {_described(first)}: read the "
                        f"parts separately, with stop={number} and start={number}"
                    )
                if batch is None:
                    batch = self._new_batch(frames, frame, device)
                batch.add(frame)
                if batch.count == frames:
                    yield batch.planes()
                    batch = None
        except FormatError:
            if batch is not None:
                yield batch.planes()
            raise
        finally:
            reader.close()
        if batch is not None:
            yield batch.planes()

    def _new_batch(self, frames: int, frame: VideoFrame, device: str) -> PlaneBatch:
        name, height, width = frame.format.name, frame.height, frame.width
        try:
            form = find(name)
        except FormatError as problem:
            raise FormatError(f"{self.path}: video stream {self._stream}: {problem}") from None
        own = color_of(frame, name, self.facts.codec)
        color = completed(own, self.facts.color, form, height)
        return PlaneBatch(frames, form, height, width, color, device)

    # ---- places ----

    def _range(self, start: Place, stop: Place | None, step: int) -> FrameRange:
        if operator.index(step) < 1:
            raise ShapeError(f"step={step}: give 1 or more")
        first = self.number(start, "start")
        last = None if stop is None else self.number(stop, "stop")
        if first or step > 1:
            self._frame_index()
        return FrameRange(first, last, step)

    def _from_first(self, number: int) -> int:
        return number + len(self) if number < 0 else number

    def _shown(self, place: Place) -> int:
        """The number of the one frame at a place."""
        found = _number_or_time(place, "frame")
        if isinstance(found, int):
            number = self._from_first(found)
            if number < 0:
                raise IndexError(f"{self.path}: there is no frame {place}: it has {len(self)}")
            return number
        index = self._frame_index()
        end = index.last + 1 / self.rate
        if not 0 <= found <= end:
            raise IndexError(
                f"{self.path}: there is no frame at {place} s: give 0 to {float(end):.6g}"
            )
        return index.shown_at(found)

    def _frame_index(self) -> FrameIndex:
        if self._index is None:
            self._index = read_index(self.path, self._stream)
        return self._index

    # ---- closing ----

    def close(self) -> None:
        """Stop the iterations that run; clips also close at the end of their `with` block."""
        self._closed = True
        for running in list(self._running):
            running.close()

    def __enter__(self) -> Clip:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _number_or_time(place: Any, name: str) -> int | Fraction:
    """A place as the number of a frame, or as a time in seconds."""
    try:
        return operator.index(place)
    except TypeError:
        if not isinstance(place, Real) or not math.isfinite(place):
            raise TypeError(
                f"{name}={place!r}: give a frame as an integer, or seconds as a float"
            ) from None
        return place if isinstance(place, Fraction) else Fraction(float(place))


def _described(kind: Sequence[object]) -> str:
    name, height, width = kind
    return f"{width} x {height} {name}"


def open(
    path: str | PathLike[str], *, stream: int = 0, decoder: str = "auto", threads: int = 0
) -> Clip:
    """A clip: the facts of a video file, and its frames as tensors.

    stream: which of the video streams. decoder: "hardware" uses Apple's media engines, "software"
    FFmpeg's decoders, "kernels" lbrx's own decoder of ProRes, "auto" the first of them that is fast
    on this machine. threads: of a software decoder, 0 for as many as there are processors.

    A file that is not a video, or has no video stream, raises FormatError.

    >>> with lbrx.video.open("clip.mov") as clip:
    ...     print(clip.facts.codec, clip.size, clip.rate)
    """
    return Clip(Path(path), stream, decoder, threads)
