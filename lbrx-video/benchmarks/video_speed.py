"""Video: conversion compared with FFmpeg's scaler and numpy, and the whole way from a file to
tensors compared with decoding alone, with PyAV and numpy, and with torchcodec.

python lbrx-video/benchmarks/video_speed.py [--clip CLIP.mov] [--torchcodec PYTHON]

Without a clip, one of 1080p ProRes 422 HQ with noise is made, about 190 Mb/s at 25 frames a second.
PYTHON is that of an environment with torchcodec. All figures of a table are from one run, in turns.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np

import lbrx
from lbrx_video.frame_options import FrameOptions
from lbrx_video.operations import to_frames

HEIGHT, WIDTH, RATE = 1080, 1920, 25
DISTINCT, REPEATS = 8, 12  # frames that are encoded, and how often each is in the clip
ROUNDS = 5
SIZE = (540, 960)
BATCH = 8

TORCHCODEC = """
import sys, time, torch
from torchcodec.decoders import VideoDecoder
path, height, width, batch = sys.argv[1], *map(int, sys.argv[2:])
best = [1e9, 1e9]
for _ in range(3):
    began = time.perf_counter(), time.process_time()
    decoder = VideoDecoder(path, num_ffmpeg_threads=0)
    total = decoder.metadata.num_frames
    for start in range(0, total, batch):
        frames = decoder.get_frames_in_range(start, min(start + batch, total)).data
        frames = torch.nn.functional.interpolate(
            frames, (height, width), mode="bilinear", antialias=True)
        frames.half() / 255
    ended = time.perf_counter(), time.process_time()
    best = [min(b, e - s) for b, s, e in zip(best, began, ended)]
print(*best)
"""


def made_clip(path: Path) -> None:
    """FFmpeg's test picture with noise. ProRes frames are independent, so packets can repeat."""
    graph = av.filter.Graph()
    nodes = [
        graph.add("testsrc2", f"size={WIDTH}x{HEIGHT}:rate={RATE}:duration=1"),
        graph.add("noise", "alls=20:allf=t"),
        graph.add("format", "pix_fmts=yuv422p10le"),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*nodes).configure()
    with av.open(str(path), "w") as file:
        stream = file.add_stream("prores_ks", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv422p10le"
        stream.options = {"profile": "3"}
        stream.time_base = stream.codec_context.time_base = Fraction(1, RATE)
        packets = []
        for _ in range(DISTINCT):
            frame = graph.vpull()
            frame.colorspace = frame.color_primaries = frame.color_trc = frame.color_range = 1
            packets += [bytes(packet) for packet in stream.encode(frame)]
        packets += [bytes(packet) for packet in stream.encode(None)]
        for number in range(REPEATS * len(packets)):
            packet = av.Packet(packets[number % len(packets)])
            packet.stream = stream
            packet.pts = packet.dts = number
            packet.time_base = Fraction(1, RATE)
            packet.is_keyframe = True
            file.mux(packet)


class Cost(NamedTuple):
    """Seconds on the clock, and of all processors."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall * 1e3:7.2f} ms a frame, {self.cpu * 1e3:7.2f} ms of processors"


def timed(rows: dict[str, Callable[[], object]], frames: int, rounds: int) -> dict[str, Cost]:
    """The cost of a frame in the best of several rounds of each, in turns. Other work on the
    machine affects the time of processors less than the clock."""
    best = dict.fromkeys(rows, Cost(float("inf"), float("inf")))
    for _ in range(rounds):
        for name, work in rows.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            now = Cost(time.perf_counter() - wall, time.process_time() - cpu)
            best[name] = Cost(*(min(b, n / frames) for b, n in zip(best[name], now, strict=True)))
    return best


# ---- conversion ----


def conversion(path: Path) -> None:
    with av.open(str(path)) as file:
        frames = [frame for _, frame in zip(range(BATCH), file.decode(video=0), strict=False)]
    with lbrx.video.open(path) as clip:
        planes = next(clip.planes(BATCH, prefetch=0))
    what = FrameOptions(size=SIZE, dtype="float16").conversion(planes)

    def ours() -> None:
        lbrx.eval(to_frames(planes, what))

    def graded() -> None:
        lbrx.eval(to_frames(planes, what) * 1.2 + 0.1)

    def theirs() -> None:
        for frame in frames:
            _scaled(frame)

    ours(), graded()
    rows = {"lbrx": ours, "lbrx, * scale + bias": graded, "swscale and numpy": theirs}
    best = timed(rows, BATCH, ROUNDS)
    print(f"\nconversion of {BATCH} frames, 1080p 10-bit 4:2:2 to float16 NCHW of {SIZE}")
    for name, cost in best.items():
        print(f"  {name:<24} {cost}")
    ours_cost, theirs_cost = best["lbrx"], best["swscale and numpy"]
    wall, cpu = theirs_cost.wall / ours_cost.wall, theirs_cost.cpu / ours_cost.cpu
    print(f"  lbrx is {wall:.1f} times as fast by the clock, {cpu:.1f} times by processors")


def _scaled(frame: av.VideoFrame) -> np.ndarray:
    height, width = SIZE
    rgb = frame.to_ndarray(format="rgb48le", width=width, height=height)
    return np.moveaxis(rgb.astype(np.float32) / 65535, -1, 0).astype(np.float16, order="C")


# ---- the whole way ----


def pipeline(path: Path, torchcodec: str | None) -> None:
    def decoding() -> None:
        with av.open(str(path)) as file:
            file.streams.video[0].thread_type = "AUTO"
            for _ in file.decode(video=0):
                pass

    def ours(decoder: str) -> Callable[[], None]:
        def run() -> None:
            with lbrx.video.open(path, decoder=decoder) as clip:
                for frames in clip.batches(BATCH, size=SIZE, dtype="float16"):
                    lbrx.eval(frames)

        return run

    def with_numpy() -> None:
        with av.open(str(path)) as file:
            file.streams.video[0].thread_type = "AUTO"
            for frame in file.decode(video=0):
                _scaled(frame)

    rows: dict[str, Callable[[], object]] = {
        "decoding alone": decoding,
        "lbrx, FFmpeg's decoder": ours("software"),
        "lbrx, kernels": ours("kernels"),
        "PyAV and numpy": with_numpy,
    }
    for name in list(rows)[1:3]:
        rows[name]()  # compiles kernels
    with lbrx.video.open(path) as clip:
        count, facts = len(clip), clip.facts
    best = timed(rows, count, 3)
    if torchcodec is not None:
        best["torchcodec and torch"] = _torchcodec(torchcodec, path, count)
    rate = (facts.bit_rate or 0) / 1e6
    print(f"\nfile to float16 NCHW of {SIZE}: {count} frames of {facts.codec}, {rate:.0f} Mb/s")
    alone = best["decoding alone"]
    for name, cost in best.items():
        print(
            f"  {name:<24} {cost}, {cost.wall / alone.wall:.2f} and {cost.cpu / alone.cpu:.2f} "
            "of decoding alone"
        )


def _torchcodec(python: str, path: Path, count: int) -> Cost:
    command = [python, "-c", TORCHCODEC, str(path), *map(str, SIZE), str(BATCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"torchcodec: {done.stderr.strip().splitlines()[-1]}")
    wall, cpu = map(float, done.stdout.split())
    return Cost(wall / count, cpu / count)


def memory(path: Path) -> None:
    """The memory of the process while it reads the first and the second half of the clip, without
    the pages of mapped files."""
    used = []
    with lbrx.video.open(path) as clip:
        for frames in clip.batches(BATCH, size=SIZE, dtype="float16"):
            lbrx.eval(frames)
            used.append(own_memory())
    half = len(used) // 2
    first, second = max(used[:half]), max(used[half:])
    print(f"memory {first:.0f} MiB in the first half of the clip, {second:.0f} MiB in the second")


def own_memory() -> float:
    """MiB; where the system does not tell, the peak of all memory."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines = status.read_text().splitlines()
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(("RssA", "RssS")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clip", type=Path, help="a clip of 1080p ProRes 422")
    parser.add_argument("--torchcodec", metavar="PYTHON", help="compare with torchcodec")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.clip or Path(folder) / "noise.mov"
        if not path.exists():
            made_clip(path)
        memory(path)
        conversion(path)
        pipeline(path, options.torchcodec)


if __name__ == "__main__":
    main()
