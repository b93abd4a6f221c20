"""ProRes by kernels compared with FFmpeg: decoding with its decoder on one thread, encoding with
prores_ks, as frames for each second of processors, which other work on the machine disturbs least.

python lbrx-video/benchmarks/prores_speed.py

Frames are FFmpeg's test picture at 1920 x 1080, plain and with two amounts of noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from fractions import Fraction

import av
import numpy as np

import lbrx
from lbrx_video.color import BT709
from lbrx_video.pixel_formats import find
from lbrx_video.planes import Planes
from lbrx_video.prores import decode, encode

HEIGHT, WIDTH = 1080, 1920
FRAMES, ROUNDS = 4, 8
PROFILES = {"apch": ("3", "yuv422p10le"), "ap4x": ("5", "yuv444p10le")}


def pictures(pixels: str, noise: int) -> list[av.VideoFrame]:
    """Frames of the test picture."""
    graph = av.filter.Graph()
    nodes = [
        graph.add("testsrc2", f"size={WIDTH}x{HEIGHT}:rate=25"),
        graph.add("format", f"pix_fmts={pixels}"),
        *([graph.add("noise", f"alls={noise}:allf=t")] if noise else []),
        graph.add("format", f"pix_fmts={pixels}"),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*nodes).configure()
    return [graph.vpull() for _ in range(FRAMES)]


def by_ks(frames: list[av.VideoFrame], profile: str, pixels: str) -> list[bytes]:
    """Packets of FFmpeg's encoder."""
    encoder = av.CodecContext.create("prores_ks", "w")
    encoder.width, encoder.height, encoder.pix_fmt = WIDTH, HEIGHT, pixels
    encoder.time_base, encoder.thread_count = Fraction(1, 25), 1
    encoder.options = {"profile": profile}
    packets = []
    for number, frame in enumerate(frames):
        frame.pts = number
        packets += encoder.encode(frame)
    return [bytes(packet) for packet in [*packets, *encoder.encode(None)]]


def by_ffmpeg(packets: list[bytes], codec: str) -> Iterator[av.VideoFrame]:
    """The frames of FFmpeg's decoder."""
    decoder = av.CodecContext.create("prores", "r")
    decoder.codec_tag, decoder.thread_count = codec, 1
    for packet in packets:
        yield from decoder.decode(av.Packet(packet))


def planes_of(frames: list[av.VideoFrame]) -> Planes:
    """The frames on the device."""
    form = find(frames[0].format.name)
    stacked = [
        np.stack([_rows(frame.planes[plane]) for frame in frames]) for plane in range(form.planes)
    ]
    tensors = tuple(lbrx.tensor(values, device="metal") for values in stacked)
    return Planes(tensors, form, HEIGHT, WIDTH, BT709)


def _rows(plane: av.video.plane.VideoPlane) -> np.ndarray:
    rows = np.frombuffer(plane, np.uint16).reshape(-1, plane.line_size // 2)
    return rows[: plane.height, : plane.width]


def frames_per_second(work: Callable[[], object], rounds: int) -> float:
    """Frames for each second of processors, in the best round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return FRAMES / best


def decibels(frames: list[av.VideoFrame], wanted: Planes) -> float:
    """The quality of luma."""
    read = np.stack([_rows(frame.planes[0]) for frame in frames]).astype(np.float64)
    error = np.mean((read - wanted.tensors[0].numpy()) ** 2)
    return float(10 * np.log10(1023**2 / max(error, 1e-12)))


def decoding(codec: str, noise: int, packets: list[bytes]) -> None:
    def ours() -> None:
        lbrx.eval(*decode(packets, codec=codec).tensors)

    def theirs() -> None:
        for _ in by_ffmpeg(packets, codec):
            pass

    ours()
    speeds = [frames_per_second(work, ROUNDS) for work in (ours, theirs)]
    size = sum(map(len, packets)) / FRAMES / 1e3
    print(
        f"decode {codec}, noise {noise:2}, {size:4.0f} kB a frame: kernels {speeds[0]:6.1f}, "
        f"FFmpeg {speeds[1]:6.1f}, ratio {speeds[0] / speeds[1]:.2f}"
    )


def encoding(codec: str, noise: int, frames: list[av.VideoFrame], packets: list[bytes]) -> None:
    planes = planes_of(frames)
    made = encode(planes, codec=codec)
    ours = frames_per_second(lambda: encode(planes, codec=codec), ROUNDS // 2)
    theirs = frames_per_second(lambda: by_ks(frames, *PROFILES[codec]), 1)
    for name, speed, each in (("kernels", ours, made), ("prores_ks", theirs, packets)):
        size = sum(map(len, each)) / FRAMES / 1e3
        quality = decibels(list(by_ffmpeg(each, codec)), planes)
        figures = f"{speed:6.2f}, {size:4.0f} kB a frame, {quality:.1f} dB"
        print(f"encode {codec}, noise {noise:2}, {name:9}: {figures}")


def main() -> None:
    print("frames for each second of processors")
    for codec, (profile, pixels) in PROFILES.items():
        for noise in (0, 8, 40):
            frames = pictures(pixels, noise)
            packets = by_ks(frames, profile, pixels)
            decoding(codec, noise, packets)
            if codec == "apch":
                encoding(codec, noise, frames, packets)


if __name__ == "__main__":
    main()
