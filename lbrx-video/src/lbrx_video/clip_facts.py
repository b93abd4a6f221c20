"""What a file says about its video and audio streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx_video.color import UNSPECIFIED, Color, assumed_matrix
from lbrx_video.pixel_formats import FORMATS, ColorModel, PixelFormat

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

FULL = 2  # FFmpeg's AVCOL_RANGE_JPEG
UNKNOWN = "unknown"
PROGRESSIVE = 1  # FFmpeg's field order; 0 is unknown
BT2020 = 9  # the code point of a matrix


@dataclass(frozen=True)
class AudioFacts:
    """What a file says of one of its audio tracks. Without a decoder, the codec is "unknown"."""

    codec: str
    rate: int
    channels: int
    language: str | None

    def __str__(self) -> str:
        language = f", {self.language}" if self.language else ""
        if self.codec == UNKNOWN:
            return f"a codec that FFmpeg does not know{language}"
        return f"{self.codec}, {self.rate} Hz, {self.channels} channels{language}"


@dataclass(frozen=True)
class ClipFacts:
    """The facts of a clip. `frames` and `duration` (seconds) are None if the file does not say."""

    path: Path
    container: str
    codec: str
    profile: str | None
    tag: str
    """The four-character code in the container."""
    height: int
    width: int
    pixel_aspect: Fraction
    """How much wider than high a pixel is shown."""
    rate: Fraction
    frames: int | None
    duration: Fraction | None
    pixel_format: str
    depth: int
    color: Color
    interlaced: bool
    bit_rate: int | None
    audio: tuple[AudioFacts, ...]

    @property
    def matrix_name(self) -> str | None:
        """The matrix that frames are read with, by name: the file's, or that of untagged video."""
        form = FORMATS.get(self.pixel_format)
        known = completed(self.color, self.color, form, self.height) if form else self.color
        return known.matrix_name


def read_facts(path: Path, file: InputContainer, video: VideoStream) -> ClipFacts:
    """The facts of a stream in an open file."""
    context = video.codec_context
    seconds = None
    if video.duration is not None and video.time_base is not None:
        seconds = video.duration * Fraction(video.time_base)
    elif file.duration is not None:
        seconds = Fraction(file.duration, 1_000_000)
    depths = [component.bits for component in context.format.components] if context.format else []
    name = context.format.name if context.format else UNKNOWN
    return ClipFacts(
        path=path,
        container=file.format.long_name,
        codec=context.codec.canonical_name,
        profile=context.profile,
        tag=_tag(context),
        height=context.height,
        width=context.width,
        pixel_aspect=Fraction(video.sample_aspect_ratio or 1),
        rate=Fraction(video.average_rate or video.guessed_rate or 0),
        frames=video.frames or None,
        duration=seconds,
        pixel_format=name,
        depth=max(depths, default=0),
        color=color_of(context, name, context.codec.name),
        interlaced=int(context.field_order) > PROGRESSIVE,
        bit_rate=context.bit_rate or file.bit_rate or None,
        audio=tuple(_audio(stream) for stream in file.streams.audio),
    )


def _tag(context: Any) -> str:
    """The four-character code; nothing if its bytes are not ASCII."""
    try:
        return str(context.codec_tag).strip("\0 ")
    except UnicodeDecodeError:
        return ""


def _audio(stream: AudioStream) -> AudioFacts:
    context: Any = stream.codec_context
    if context is None:
        return AudioFacts(UNKNOWN, 0, 0, stream.language)
    return AudioFacts(context.name, context.sample_rate, context.channels, stream.language)


def color_of(source: Any, pixel_format: str, codec: str) -> Color:
    """The color description of a frame or a codec context. Neither says in PyAV where chroma
    samples lie: it is the custom of the standards."""
    matrix = int(source.colorspace)
    primaries = int(source.color_primaries or UNSPECIFIED)
    transfer = int(source.color_trc or UNSPECIFIED)
    stated = int(source.color_range or 0)
    full = stated == FULL if stated else pixel_format.startswith(("yuvj", "gray"))
    return Color(primaries, transfer, matrix, full, _siting(matrix, pixel_format, codec))


def _siting(matrix: int, pixel_format: str, codec: str) -> str:
    if codec in ("mjpeg", "jpeg2000", "jpegls"):
        return "center"
    if matrix == BT2020 and "420" in pixel_format:
        return "topleft"
    return "left"


def completed(color: Color, known: Color, form: PixelFormat, height: int) -> Color:
    """A frame's description with what it leaves open taken from the stream's, then guessed: RGB
    formats have no matrix and use the full range, untagged YCbCr is BT.709 from 720 rows on."""
    matrix = known.matrix if color.matrix == UNSPECIFIED else color.matrix
    if form.model is ColorModel.RGB:
        full = True
        matrix = 0
    else:
        full = color.full_range or known.full_range
    if matrix == UNSPECIFIED:
        matrix = assumed_matrix(height)
    return replace(
        color,
        matrix=matrix,
        primaries=known.primaries if color.primaries == UNSPECIFIED else color.primaries,
        transfer=known.transfer if color.transfer == UNSPECIFIED else color.transfer,
        full_range=full,
    )
