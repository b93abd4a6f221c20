"""Writers: tensors encoded to video files."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from fractions import Fraction
from numbers import Rational
from os import PathLike
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any

import numpy as np

from lbrx.extension.errors import LbrxError, ShapeError
from lbrx.extension.files import replacing
from lbrx.extension.tensors import Tensor, asarray
from lbrx_video import prores
from lbrx_video.clip import Clip
from lbrx_video.codecs import (
    PRORES_CODES,
    Encoder,
    Profile,
    default_codec,
    find_encoder,
    pixel_format,
)
from lbrx_video.color import BT709, UNSPECIFIED, Color, assumed_matrix, assumed_primaries
from lbrx_video.conversion import Samples, ToPlanes, check_layout
from lbrx_video.ffmpeg import av, explained, opened, plane_view
from lbrx_video.operations import to_planes
from lbrx_video.pixel_formats import ColorModel, PixelFormat, find
from lbrx_video.planes import Planes
from lbrx_video.transfer import check_transfer

AHEAD = 2  # batches that wait for the encoder
FASTEST, SLOWEST = 100_000, Fraction(1, 10_000)  # FFmpeg's fractions have 32 bits
LIMITED, FULL = 1, 2  # FFmpeg's color ranges
CONTAINERS = {
    "mov": "mov",
    "mp4": "mp4",
    "m4v": "mp4",
    "mkv": "matroska",
    "avi": "avi",
    "mxf": "mxf",
    "nut": "nut",
}
REMEDY = "choose another codec, profile or container"


def writer(
    path: str | PathLike[str],
    codec: str | None = None,
    profile: str | None = None,
    *,
    like: Clip | None = None,
    size: tuple[int, int] | None = None,
    rate: float | Fraction | None = None,
    alpha: bool = False,
    layout: str = "NCHW",
    transfer: str | None = None,
    color: Color | None = None,
    options: Mapping[str, str] | None = None,
    audio: bool = True,
    encoder: str = "auto",
    threads: int = 0,
) -> ClipWriter:
    """Encodes tensors to a file, which appears under its name when it is complete.

    codec: "prores" (profiles proxy, lt, standard, hq, 4444, xq), "h264", "hevc" or "ffv1"; by
        default "h264" for .mp4 and .m4v, else "prores".
    like: a clip that gives size, rate, color and, unless audio=False, the audio tracks, which are
        copied as they are. What it leaves open about color is tagged as it was read.
    size: (height, width), by default that of the first tensor. rate: frames in a second.
    alpha: True encodes the fourth channel. layout: of the tensors, "NCHW" or "NHWC".
    transfer: the transfer function of the tensors, such as "linear", if it is not the file's.
    color: how colors are coded, BT.709 by default. ProRes always has the limited range.
    options: of FFmpeg's encoder, such as {"crf": "18"}.
    encoder: "hardware" uses Apple's media engines, "software" FFmpeg's encoders, "kernels" lbrx's
        own ProRes encoder, which has 12 bits for 4444 and xq; "auto" uses the first of them for
        12-bit ProRes where it is there, else the second.

    >>> with lbrx.video.writer("out.mov", profile="hq", like=clip) as out:
    ...     for frames in clip.batches(8):
    ...         out.write(frames * 0.5)
    """
    if rate is None and like is None:
        raise LbrxError(f"{path}: how many frames in a second? Give rate= or like=")
    check_layout(layout)
    chosen = find_encoder(codec or default_codec(Path(path).suffix), profile, encoder)
    return ClipWriter(
        Path(path),
        chosen,
        chosen.profile(profile)[1],
        like=like,
        size=size if size is not None or like is None else like.size,
        rate=_rate(path, like.rate if rate is None and like is not None else rate),
        alpha=alpha,
        layout=layout,
        transfer=None if transfer is None else check_transfer(transfer),
        color=color or (like.color if like is not None else BT709),
        options=options or {},
        audio=audio,
        threads=threads,
    )


def _rate(path: str | PathLike[str], given: float | Fraction | None) -> Fraction:
    """A rate as a fraction: 23.976 is 24000 / 1001."""
    is_finite = isinstance(given, Rational) or (given is not None and math.isfinite(given))
    rate = Fraction(given) if given is not None and is_finite else Fraction(0)
    if not SLOWEST <= rate <= FASTEST:
        raise LbrxError(
            f"{path}: rate={given!s:.40}: give a number of frames in a second from {SLOWEST} to "
            f"{FASTEST:,}"
        )
    slower = Fraction(round(rate * Fraction(1001, 1000)) * 1000, 1001)
    exact = slower if rate.denominator > 1001 and abs(rate - slower) < 0.005 else rate
    return exact.limit_denominator(SLOWEST.denominator)


def _tagged(color: Color, form: PixelFormat, rows: int) -> Color:
    """What the file will say, and its codes mean. Nothing is left open, so that every reader
    decodes alike; MOV and MP4 can also not say only a part of it. rows: of the video that the
    frames were read from, which decides as in `completed`."""
    if form.model is ColorModel.RGB:
        return replace(color, matrix=0, full_range=True)
    open_or_rgb = {0: BT709.matrix, UNSPECIFIED: assumed_matrix(rows)}
    matrix = open_or_rgb.get(color.matrix, color.matrix)
    unstated = assumed_primaries(matrix, rows)
    return replace(
        color,
        matrix=matrix,
        primaries=unstated if color.primaries == UNSPECIFIED else color.primaries,
        transfer=BT709.transfer if color.transfer == UNSPECIFIED else color.transfer,
    )


class ClipWriter:
    """A file that is written, as `lbrx.video.writer` returns it.

    A thread encodes while further frames are computed. `frames` counts those that were given.
    """

    def __init__(
        self,
        path: Path,
        encoder: Encoder,
        profile: Profile,
        *,
        like: Clip | None,
        size: tuple[int, int] | None,
        rate: Fraction,
        alpha: bool,
        layout: str,
        transfer: str | None,
        color: Color,
        options: Mapping[str, str],
        audio: bool,
        threads: int,
    ) -> None:
        self.path = path
        self.size = size
        self.rate = rate
        self.frames = 0
        self.format: PixelFormat = find(
            pixel_format(encoder, profile, alpha, None if like is None else like.facts.pixel_format)
        )
        self.color = replace(color, full_range=color.full_range and not encoder.limited)
        self._untagged = path.suffix.lower() in encoder.untagged
        self._rows = None if like is None else like.size[0]
        same = like is not None and size == like.size
        self._aspect = like.facts.pixel_aspect if same and like is not None else Fraction(1)
        self._layout, self._transfer = layout, transfer
        self._options = {**encoder.options, **profile.options, **options}
        self._encoder, self._threads = encoder.name, threads
        self._kernels = PRORES_CODES[int(profile.options["profile"])] if encoder.kernels else None
        self._audio = like.path if audio and like is not None and like.facts.audio else None
        self._what: ToPlanes | None = None
        self._encoding: _Encoding | None = None
        self._closed = False

    def write(self, frames: Any) -> None:
        """Encode one frame (three axes) or several (four axes): floats, black 0 and white 1."""
        if self._closed:
            raise LbrxError(f"{self.path}: the writer is closed: write within its `with` block")
        given = frames if isinstance(frames, Tensor) else asarray(frames)
        if self._kernels is not None:
            given = given.to_device("metal")
        if given.ndim == 3:
            given = given[None]
        if given.ndim != 4:
            raise ShapeError(f"{self.path}: frames have shape {given.shape}: give {self._layout}")
        if self.size is not None and self._size(given.shape) != self.size:
            wanted = " x ".join(map(str, self.size))
            raise ShapeError(
                f"{self.path}: frames have shape {given.shape}: give {self._layout} "
                f"with 3 or 4 channels of {wanted}, or size= to the writer"
            )
        if self._encoding is None:
            self._begin(given.shape)
        assert self._encoding is not None
        assert self._what is not None
        self._encoding.put(to_planes(given, self._what, self.color))
        self.frames += given.shape[0]

    def _size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        height, width = shape[2:] if self._layout == "NCHW" else shape[1:3]
        return height, width

    def _begin(self, shape: tuple[int, ...]) -> None:
        self.size = self.size or self._size(shape)
        self._check_size(*self.size)
        if self._untagged:
            read = assumed_matrix(self.size[0])
            self.color = Color(matrix=read, full_range=self.format.full_range)
        self.color = _tagged(self.color, self.format, self._rows or self.size[0])
        source = self._transfer
        target = self.color.transfer_name or "bt709"
        same = source is None or source == target
        matrix = self.color.matrix_name
        if matrix is None:
            raise LbrxError(
                f"{self.path}: color.matrix={self.color.matrix}: give one that can be written"
            )
        samples = Samples(
            *(self.format, *self.size), *(matrix, self.color.full_range, self.color.siting)
        )
        self._what = ToPlanes(
            samples,
            None if same or source == "linear" else source,
            None if same or target == "linear" else target,
            self._layout,
        )
        self._encoding = _Encoding(self)

    def _check_size(self, height: int, width: int) -> None:
        """x264, x265 and VideoToolbox do not say why they refuse sizes that chroma does not
        divide."""
        form = self.format
        if not self._encoder.startswith(("libx26", "h264", "hevc")):
            return
        odd = [
            name
            for name, size, log2 in (
                ("height", height, form.vertical),
                ("width", width, form.horizontal),
            )
            if size % (1 << log2)
        ]
        if odd:
            raise ShapeError(
                f"{self.path}: {height} x {width} pixels: {form.name} needs an even "
                f"{' and an even '.join(odd)}: choose another size, profile or codec"
            )

    def close(self) -> None:
        """Finish the file and give it its name. A writer without frames raises LbrxError."""
        if self._closed:
            return
        self._closed = True
        if self._encoding is None:
            raise LbrxError(f"{self.path}: no frame was written, so there is no file: write one")
        self._encoding.finish()

    def abandon(self) -> None:
        """Stop, and leave no file."""
        self._closed = True
        if self._encoding is not None:
            self._encoding.abandon()

    def __enter__(self) -> ClipWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


class _Abandoned(Exception):
    """Removes the unfinished file."""


class _Encoding:
    """The thread that encodes, and the file that it writes."""

    def __init__(self, owner: ClipWriter) -> None:
        self._owner = owner
        self._queue: Queue[Planes | None] = Queue(AHEAD)
        self._problem: BaseException | None = None
        self._abandoned = False
        self._stack = ExitStack()
        self._number = 0
        self._waiting: Any = None  # the next audio packet
        try:
            self._open()
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        owner = self._owner
        kind = CONTAINERS.get(owner.path.suffix.lstrip(".").lower())
        if kind is None:
            known = ", ".join(f".{name}" for name in CONTAINERS)
            raise LbrxError(f"{owner.path}: its ending says no container: give one of {known}")
        target = self._stack.enter_context(replacing(owner.path))
        with explained(owner.path, f"{owner._encoder} cannot write this", REMEDY):
            self._file = self._stack.enter_context(av.open(target, "w", format=kind))
            if owner._encoder not in self._file.supported_codecs:
                raise LbrxError(
                    f"{owner.path}: {kind} files cannot hold {owner._encoder}: {REMEDY}"
                )
            self._stream: Any = self._file.add_stream(owner._encoder, rate=owner.rate)
            self._configure()
            self._audio = self._copied_audio() if owner._audio is not None else iter(())
            self._file.start_encoding()

    def _configure(self) -> None:
        owner, context = self._owner, self._stream.codec_context
        assert owner.size is not None
        self._stream.height, self._stream.width = owner.size
        # FFmpeg's ProRes encoder does not know 12 bits. The container does not state them.
        described = owner._kernels is not None
        form = owner.format.name
        self._stream.pix_fmt = form.replace("12le", "10le") if described else form
        self._stream.options = dict(owner._options)
        context.sample_aspect_ratio = owner._aspect
        context.thread_count = owner._threads
        context.thread_type = "AUTO"
        context.time_base = 1 / owner.rate
        _tag(context, owner.color)
        if owner._encoder.startswith(("libx265", "hevc")) and self._file.format.name != "matroska":
            context.codec_tag = "hvc1"  # what Apple's players look for

    def _copied_audio(self) -> Iterator[Any]:
        """The packets of a clip's audio tracks, bound to streams of the file."""
        path = self._owner._audio
        assert path is not None
        source = self._stack.enter_context(opened(path))
        codecs: list[Any] = [stream.codec_context for stream in source.streams.audio]
        if None in codecs:
            raise LbrxError(
                f"{path}: FFmpeg does not know the codec of audio track {codecs.index(None)}: "
                "give audio=False, since it cannot be copied"
            )
        streams = {
            stream.index: self._file.add_stream_from_template(stream)
            for stream in source.streams.audio
        }

        def packets() -> Iterator[Any]:
            with explained(path, "its audio cannot be read", "give audio=False"):
                for packet in source.demux(*source.streams.audio):
                    if packet.dts is not None:
                        packet.stream = streams[packet.stream.index]
                        yield packet

        return packets()

    def put(self, planes: Planes) -> None:
        self._check()
        self._queue.put(planes)
        self._check()

    def _check(self) -> None:
        if self._problem is not None:
            problem = self._problem
            self.abandon()
            raise problem

    def finish(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._check()
        self._stack.close()

    def abandon(self) -> None:
        self._abandoned = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        error = _Abandoned()
        # What FFmpeg says when it ends the unfinished file is no news.
        with suppress(_Abandoned, av.FFmpegError):
            self._stack.__exit__(type(error), error, None)

    def _run(self) -> None:
        """In the thread. After an error it takes what comes, so that nobody waits for room."""
        while (planes := self._queue.get()) is not None:
            if self._problem is None and not self._abandoned:
                self._guarded(self._encode, planes)
        if self._problem is None and not self._abandoned:
            self._guarded(self._flush)

    def _guarded(self, action: Any, *arguments: Any) -> None:
        try:
            with explained(self._owner.path, f"{self._owner._encoder} failed", REMEDY):
                action(*arguments)
        except BaseException as error:
            self._problem = error

    def _encode(self, planes: Planes) -> None:
        if self._owner._kernels is not None:
            self._encode_by_kernels(planes, self._owner._kernels)
            return
        arrays = [tensor.numpy() for tensor in planes.tensors]
        for i in range(planes.frames):
            frame = av.VideoFrame(planes.width, planes.height, planes.format.name)
            for plane, values in zip(frame.planes, arrays, strict=True):
                np.copyto(plane_view(plane, values[i]), values[i])
            _tag(frame, planes.color)
            frame.pts, frame.time_base = self._number, 1 / self._owner.rate
            self._number += 1
            self._mux(self._stream.encode(frame))

    def _encode_by_kernels(self, planes: Planes, code: str) -> None:
        packets = []
        for data in prores.encode(planes, codec=code):
            packet = av.Packet(data)
            packet.stream, packet.time_base = self._stream, 1 / self._owner.rate
            packet.pts = packet.dts = self._number
            packet.is_keyframe = True
            packets.append(packet)
            self._number += 1
        self._mux(packets)

    def _flush(self) -> None:
        if self._owner._kernels is None:
            self._mux(self._stream.encode(None))
        while (sound := self._next_audio(None)) is not None:
            self._file.mux(sound)
        self._file.close()

    def _mux(self, packets: list[Any]) -> None:
        """Audio packets come before the video packets of the same time, so that the muxer need not
        keep many of either."""
        for packet in packets:
            now = packet.dts * packet.time_base
            while (sound := self._next_audio(now)) is not None:
                self._file.mux(sound)
            self._file.mux(packet)

    def _next_audio(self, now: Fraction | None) -> Any:
        """The next audio packet if it is due, at the end in any case; None if there is none."""
        if self._waiting is None:
            self._waiting = next(self._audio, None)
        packet = self._waiting
        if packet is None or (now is not None and packet.dts * packet.time_base > now):
            return None
        self._waiting = None
        return packet


def _tag(target: Any, color: Color) -> None:
    """Frames and encoders have the same fields; encoders differ in which of the two they read."""
    target.color_range = FULL if color.full_range else LIMITED
    target.colorspace = color.matrix
    target.color_primaries = color.primaries
    target.color_trc = color.transfer
