"""Writers: tensors encoded to video files."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from fractions import Fraction
from os import PathLike
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any

import numpy as np

from lbrx.errors import LbrxError, ShapeError
from lbrx.formats.output import replacing
from lbrx.tensor import Tensor, asarray
from lbrx.video import prores
from lbrx.video.clip import Clip
from lbrx.video.codecs import PRORES_CODES, Encoder, Profile, find_encoder, pixel_format
from lbrx.video.color import BT709, UNSPECIFIED, Color
from lbrx.video.conversion import Samples, ToPlanes, check_layout
from lbrx.video.ffmpeg import av, explained, plane_view
from lbrx.video.operations import to_planes
from lbrx.video.pixel_formats import ColorModel, PixelFormat, find
from lbrx.video.planes import Planes
from lbrx.video.transfer import check_transfer

AHEAD = 2  # batches that wait for the encoder
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
    codec: str = "prores",
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

    codec: "prores" (profiles proxy, lt, standard, hq, 4444, xq), "h264", "hevc" or "ffv1".
    like: a clip that gives size, rate, color and, unless audio=False, the audio tracks, which are
        copied as they are.
    size: (height, width), by default that of the first tensor. rate: frames in a second.
    alpha: True encodes the fourth channel. layout: of the tensors, "NCHW" or "NHWC".
    transfer: the transfer function of the tensors, such as "linear", if it is not the file's.
    color: how colors are coded, BT.709 by default.
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
    chosen = find_encoder(codec, profile, encoder)
    return ClipWriter(
        Path(path),
        chosen,
        chosen.profile(profile)[1],
        like=like,
        size=size if size is not None or like is None else like.size,
        rate=_rate(like.rate if rate is None and like is not None else rate),
        alpha=alpha,
        layout=layout,
        transfer=None if transfer is None else check_transfer(transfer),
        color=_color(color, like),
        options=options or {},
        audio=audio,
        threads=threads,
    )


def _rate(given: float | Fraction | None) -> Fraction:
    """A rate as a fraction: 23.976 is 24000 / 1001."""
    rate = Fraction(given or 0)
    if rate <= 0:
        raise LbrxError(f"rate={given}: give a positive number of frames in a second")
    slower = Fraction(round(rate * Fraction(1001, 1000)) * 1000, 1001)
    return slower if rate.denominator > 1001 and abs(rate - slower) < 0.005 else rate


def _color(given: Color | None, like: Clip | None) -> Color:
    """What the file will say: nothing is left open, so that every reader decodes alike."""
    color = given or (like.color if like is not None else BT709)
    return replace(
        color,
        matrix=1 if color.matrix in (0, UNSPECIFIED) else color.matrix,
        primaries=1 if color.primaries == UNSPECIFIED else color.primaries,
        transfer=1 if color.transfer == UNSPECIFIED else color.transfer,
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
        rgb = self.format.model is ColorModel.RGB
        self.color = replace(color, matrix=0, full_range=True) if rgb else color
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
        if self._encoding is None:
            self._begin(given.shape)
        assert self._encoding is not None
        assert self._what is not None
        self._encoding.put(to_planes(given, self._what, self.color))
        self.frames += given.shape[0]

    def _begin(self, shape: tuple[int, ...]) -> None:
        height, width = shape[2:] if self._layout == "NCHW" else shape[1:3]
        self.size = self.size or (height, width)
        source = self._transfer
        target = self.color.transfer_name or "bt709"
        same = source is None or source == target
        matrix = self.color.matrix_name
        if matrix is None:
            raise LbrxError(f"color.matrix={self.color.matrix}: give one that can be written")
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
        context.thread_count = owner._threads
        context.thread_type = "AUTO"
        context.time_base = 1 / owner.rate
        _tag(context, owner.color)
        if owner._encoder.startswith(("libx265", "hevc")) and self._file.format.name != "matroska":
            context.codec_tag = "hvc1"  # what Apple's players look for

    def _copied_audio(self) -> Iterator[Any]:
        """The packets of a clip's audio tracks, bound to streams of the file."""
        source = self._stack.enter_context(av.open(str(self._owner._audio)))
        streams = {
            stream.index: self._file.add_stream_from_template(stream)
            for stream in source.streams.audio
        }

        def packets() -> Iterator[Any]:
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
        with suppress(_Abandoned):
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
