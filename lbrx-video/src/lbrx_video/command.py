"""lbrx video: facts of clips, frames as pictures, a kernel on every frame, differences of clips."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from lbrx.errors import LbrxError

KINDS = ("auto", "hardware", "software", "kernels")  # of decoders and encoders
BATCH = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART", help="what to do")
    info = _part(parts, "info", "show what is in a clip")
    _add_clip(info)
    info.add_argument("--json", action="store_true", help="print JSON")
    frames = _part(parts, "frames", "write frames as PNG files")
    _add_clip(frames)
    frames.add_argument("folder", help="where the files go: 000000.png and so on")
    _add_range(frames)
    frames.add_argument("--size", metavar="HxW", help="height and width of the pictures")
    frames.add_argument("--filter", default="bilinear", help="of resizing (bilinear)")
    frames.add_argument("--bits", type=int, default=8, help="8 or 16 bits for each channel (8)")
    _add_force(frames)
    apply = _part(parts, "apply", "run a Metal kernel on every frame")
    apply.add_argument("kernel", help="a .metal file with one kernel: see docs/video.md")
    _add_clip(apply)
    apply.add_argument("out", help="the file to write")
    apply.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a parameter of the kernel: numbers with commas, or @FILE.npy for an array",
    )
    _add_range(apply)
    apply.add_argument("--codec", default="prores", help="prores, h264, hevc or ffv1 (prores)")
    apply.add_argument("--profile", help="of the codec, such as hq or 4444 for prores")
    apply.add_argument("--encoder", choices=KINDS, default="auto", help="who encodes (auto)")
    apply.add_argument("--batch", type=int, default=BATCH, help=f"frames at a time ({BATCH})")
    _add_force(apply)
    apply.add_argument("--quiet", action="store_true", help="show no progress bar")
    compare = _part(parts, "compare", "measure how much two clips differ")
    compare.add_argument("first", help="a clip")
    compare.add_argument("second", help="a clip of the same size")
    compare.add_argument("--json", action="store_true", help="print JSON")
    _add_decoder(compare)


def _part(parts: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = parts.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}."
    )
    return parser


def _add_clip(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("clip", help="a video file")
    _add_decoder(parser)


def _add_decoder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--decoder", choices=KINDS, default="auto", help="who decodes (auto)")


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace existing files")


def _check_new(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise LbrxError(f"{path} exists: add --force to replace it")


def _add_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--start", default="0", help="first frame, or a time such as 1.5s (0)")
    parser.add_argument("--stop", help="the frame or time before which to stop")
    parser.add_argument("--step", type=int, default=1, help="every so many frames (1)")


def run(options: argparse.Namespace) -> int:
    parts = {"info": _info, "frames": _frames, "apply": _apply, "compare": _compare}
    return parts[options.part](options)


# ---- info ----


def _info(options: argparse.Namespace) -> int:
    from lbrx import video

    with video.open(options.clip, decoder=options.decoder) as clip:
        facts = clip.facts
    if options.json:
        print(json.dumps(asdict(facts), indent=2, default=_plain))
        return 0
    profile = f" {facts.profile}" if facts.profile else ""
    tag = f" ({facts.tag})" if facts.tag else ""
    length = "not stated" if facts.frames is None else f"{facts.frames:,}"
    seconds = "" if facts.duration is None else f", {float(facts.duration):.3f} s"
    rows = [
        ("clip", str(facts.path)),
        ("container", facts.container),
        ("codec", f"{facts.codec}{profile}{tag}"),
        ("size", f"{facts.width} x {facts.height}{', interlaced' if facts.interlaced else ''}"),
        ("rate", f"{_rate(facts.rate)} frames/s"),
        ("frames", f"{length}{seconds}"),
        ("pixels", f"{facts.pixel_format}, {facts.depth} bits"),
        ("color", str(facts.color)),
        ("bit rate", "not stated" if not facts.bit_rate else f"{facts.bit_rate / 1e6:.1f} Mb/s"),
        *(("audio", str(track)) for track in facts.audio),
    ]
    print("\n".join(f"{title:<10} {value}" for title, value in rows))
    return 0


def _rate(rate: Fraction) -> str:
    exact = f" ({rate})" if rate.denominator > 1 else ""
    return f"{float(rate):.5g}{exact}"


def _plain(value: object) -> object:
    return float(value) if isinstance(value, Fraction) else str(value)


# ---- frames ----


def _frames(options: argparse.Namespace) -> int:
    from lbrx import video
    from lbrx.video.pictures import save_picture

    folder = Path(options.folder)
    count = 0
    size = None if options.size is None else _size(options.size)
    place = (_place(options.start), _place(options.stop), options.step)
    with video.open(options.clip, decoder=options.decoder) as clip:
        if folder.exists() and not folder.is_dir():
            raise LbrxError(f"{folder} is a file: give a folder")
        folder.mkdir(parents=True, exist_ok=True)
        for batch in clip.batches(BATCH, *place, size=size, filter=options.filter):
            for frame in batch:
                path = folder / f"{count:06d}.png"
                _check_new(path, options.force)
                save_picture(path, frame, options.bits)
                count += 1
    print(f"{folder}: {count} pictures")
    return 0


def _place(text: str | None) -> Any:
    """A frame number, or seconds where the text ends in s or has a point."""
    if text is None:
        return None
    try:
        return float(text.removesuffix("s")) if text.endswith("s") or "." in text else int(text)
    except ValueError:
        raise LbrxError(f"{text!r} is not a place: give a frame such as 120, or 5.0s") from None


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise LbrxError(f"--size {text}: give height x width, such as 1080x1920")
    return int(parts[0]), int(parts[1])


# ---- apply ----


def _apply(options: argparse.Namespace) -> int:
    from lbrx import stack, video
    from lbrx.video.user_kernels import FrameKernel

    if options.batch < 1:
        raise LbrxError(f"--batch {options.batch}: give 1 or more")
    if Path(options.out).exists() and Path(options.out).samefile(options.clip):
        raise LbrxError(f"{options.out} is the clip that is read: give another name")
    _check_new(Path(options.out), options.force)
    parameters = dict(_parameter(text) for text in options.set)
    began = time.perf_counter()
    with video.open(options.clip, decoder=options.decoder) as clip:
        kernel = FrameKernel(Path(options.kernel), parameters, clip.rate)
        place = (_place(options.start), _place(options.stop), options.step)
        whole = place == (0, None, 1)
        total = len(clip) if whole else None
        made = video.writer(
            *(options.out, options.codec, options.profile),
            like=clip,
            audio=whole,
            encoder=options.encoder,
        )
        with made as out, _bar(total, options.quiet) as shown:
            for batch in clip.batches(options.batch, *place, device="metal"):
                out.write(stack(kernel(batch, out.frames)))
                shown(out.frames)
    seconds = time.perf_counter() - began
    print(f"{options.out}: {out.frames} frames, {out.frames / seconds:.1f} frames/s")
    return 0


def _parameter(text: str) -> tuple[str, Any]:
    import numpy as np

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise LbrxError(f"--set {text}: give NAME=VALUE")
    if value.startswith("@"):
        try:
            return name, np.load(value[1:], allow_pickle=False)
        except (OSError, ValueError) as problem:
            raise LbrxError(f"--set {text}: {value[1:]} is not an array: {problem}") from None
    try:
        numbers = [
            float(part) if set(part) & set(".eE") else int(part) for part in value.split(",")
        ]
    except ValueError:
        raise LbrxError(f"--set {text}: give numbers with commas, or @FILE.npy") from None
    return name, numbers[0] if len(numbers) == 1 else numbers


@contextmanager
def _bar(total: int | None, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar with frames a second, if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("frames"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[speed]:.1f} frames/s"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("frames", total=total, speed=0.0)
        began = time.perf_counter()
        yield lambda done: bar.update(
            task, completed=done, speed=done / (time.perf_counter() - began)
        )


# ---- compare ----


def _compare(options: argparse.Namespace) -> int:
    from lbrx import video
    from lbrx.video.metrics import compare

    with (
        video.open(options.first, decoder=options.decoder) as first,
        video.open(options.second, decoder=options.decoder) as second,
    ):
        found = compare(first, second)
    if options.json:
        psnr = {name: None if math.isinf(value) else value for name, value in found.psnr.items()}
        print(json.dumps({"frames": found.frames, "psnr": psnr, "ssim": found.ssim}, indent=2))
        return 0
    print(f"{'':<10} {'PSNR dB':>9} {'SSIM':>9}")
    for name, value in found.psnr.items():
        print(f"{name:<10} {value:>9.2f} {found.ssim[name]:>9.5f}")
    mine, theirs = found.frames
    more = "" if mine == theirs else f": {options.first} has {mine}, {options.second} {theirs}"
    print(f"{min(found.frames)} frames compared{more}")
    return 0
