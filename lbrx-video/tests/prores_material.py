"""ProRes packets made by FFmpeg's encoders, and what its decoder makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

av = pytest.importorskip("av")

Plane = NDArray[np.uint16]
INTERLACED_DCT = 1 << 18  # a flag of FFmpeg's encoders
PREFIX, PICTURE_HEADER = 8, 8  # bytes


@dataclass(frozen=True)
class Clip:
    """What to encode: `size` is (height, width)."""

    codec: str  # four-character code, for the decoder
    profile: int
    pixels: str = "yuv422p10le"
    size: tuple[int, int] = (40, 72)
    frames: int = 1
    interlaced: bool = False
    top_first: bool = False
    source: str = "smooth"
    encoder: str = "prores_ks"
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        height, width = self.size
        order = ("-bottom-first", "-top-first")[self.top_first] if self.interlaced else ""
        options = "".join(f"-{name}={value}" for name, value in self.options.items())
        return f"{self.codec}-{self.pixels}-{width}x{height}-{self.source}{order}{options}"


def encoded(clip: Clip, seed: int = 0) -> list[bytes]:
    """The packets of a clip."""
    height, width = clip.size
    encoder = av.CodecContext.create(clip.encoder, "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, clip.pixels
    encoder.time_base, encoder.framerate = Fraction(1, 25), 25
    encoder.options = {"profile": str(clip.profile), **clip.options}
    if clip.interlaced:
        encoder.flags |= INTERLACED_DCT
    rng = np.random.default_rng(seed)
    packets = []
    for number in range(clip.frames):
        frame = av.VideoFrame(width, height, clip.pixels)
        for index, plane in enumerate(frame.planes):
            rows = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)
            rows[: plane.height, : plane.width] = drawn(
                "alpha" if index == 3 else clip.source, plane.height, plane.width, number, rng
            )
        frame.pts = number
        packets += encoder.encode(frame)
    packets += encoder.encode(None)
    made = [bytes(packet) for packet in packets]
    return [with_byte(packet, 20, packet[20] ^ 0x0C) for packet in made] if clip.top_first else made


def drawn(source: str, height: int, width: int, number: int, rng: Any) -> Plane:
    """A plane of 10-bit codes."""
    y, x = np.mgrid[:height, :width]
    if source == "smooth":
        values = (
            512 + 300 * np.sin(x / 7 + number) + 150 * np.cos(y / 5) + rng.normal(0, 9, x.shape)
        )
    elif source == "extreme":  # every code, in large steps
        values = rng.integers(0, 1024, x.shape)
    elif source == "spot":  # one slice with all the bits of a frame
        values = np.where((x < 96) & (y < 16), rng.integers(0, 1024, x.shape), 512)
    elif source == "flat":
        values = np.full(x.shape, 300 + 9 * number)
    else:  # alpha: ramps, runs of one value, noise
        values = np.where(y % 16 < 6, x * 1023 // width, np.where(y % 16 < 11, 1023, 500))
        values = values + np.where(x // 16 % 2 == 1, rng.integers(-400, 400, x.shape), 0)
    return np.clip(values, 0, 1023).astype(np.uint16)


def with_byte(packet: bytes, at: int, value: int) -> bytes:
    return packet[:at] + bytes([value]) + packet[at + 1 :]


def reference(packets: Sequence[bytes], codec: str) -> list[Plane]:
    """The planes that FFmpeg decodes, each (frames, rows, columns)."""
    decoder = av.CodecContext.create("prores", "r")
    decoder.codec_tag = codec
    decoder.thread_count = 1
    frames = [frame for packet in packets for frame in decoder.decode(av.Packet(packet))]
    assert len(frames) == len(packets)
    return [
        np.stack([_copied(frame.planes[plane]) for frame in frames])
        for plane in range(len(frames[0].planes))
    ]


def _copied(plane: Any) -> Plane:
    rows = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)
    return rows[: plane.height, : plane.width].copy()


def with_slices(packet: bytes, count: int, change: Callable[[bytes], bytes]) -> bytes:
    """A progressive packet of `count` slices with each of them changed."""
    start = PREFIX + int.from_bytes(packet[8:10], "big")
    table = start + (packet[start] >> 3)
    sizes = np.frombuffer(packet, ">u2", count, table)
    ends = table + 2 * count + np.cumsum(sizes)
    slices = [change(packet[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    lengths = np.array([len(each) for each in slices], ">u2").tobytes()
    body = packet[start + 5 : table] + lengths + b"".join(slices)
    picture = packet[start : start + 1] + (len(body) + 5).to_bytes(4, "big") + body
    whole = packet[4:start] + picture
    return (len(whole) + 4).to_bytes(4, "big") + whole
