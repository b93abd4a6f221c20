"""lbrx video: facts of clips, frames as pictures, conversion, kernels on frames, differences."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.extension.commands import progress_bars
from lbrx.extension.errors import LbrxError

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from lbrx.extension.tensors import Tensor
    from lbrx_video.clip import Clip
    from lbrx_video.clip_facts import ClipFacts
    from lbrx_video.clip_writer import ClipWriter

SUMMARY = "show, convert and compare video clips, and run kernels on their frames"
KINDS = ("auto", "hardware", "software", "kernels")  # of decoders and encoders
BATCH = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART", help="what to do")
    info = _part(parts, "info", "show what is in a clip")
    _add_clip(info)
    info.add_argument("--json", action="store_true", help="print JSON")
    frames = _part(parts, "frames", "write frames as PNG files")
    _add_clip(frames)
    frames.add_argument("folder", help="where the files go: 000120.png is frame 120 of the clip")
    _add_range(frames)
    _add_size(frames, "the pictures")
    frames.add_argument("--bits", type=int, default=8, help="8 or 16 bits for each channel (8)")
    _add_force(frames)
    convert = _part(parts, "convert", "write a clip in another codec, size or container")
    _add_clip(convert)
    _add_out(convert)
    _add_range(convert)
    _add_size(convert, "the frames")
    convert.add_argument(
        "--rate", help="frames in a second of OUT, which has the same frames (the clip's)"
    )
    convert.add_argument("--no-audio", action="store_true", help="leave audio tracks out")
    _add_encoding(convert)
    apply = _part(parts, "apply", "run a Metal kernel on every frame")
    apply.add_argument("kernel", help="a .metal file with one kernel: see docs/video.md")
    _add_clip(apply)
    _add_out(apply)
    apply.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a parameter of the kernel: numbers with commas, or @FILE.npy for an array",
    )
    _add_range(apply)
    _add_encoding(apply)
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


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", help="the file to write: .mov, .mp4, .mkv, .avi, .mxf or .nut")


def _add_size(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--size", metavar="HxW", help=f"height and width of {what}")
    parser.add_argument("--filter", default="bilinear", help="of resizing (bilinear)")


def _add_encoding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--codec", help="prores, h264, hevc or ffv1 (h264 for .mp4 and .m4v, else prores)"
    )
    parser.add_argument("--profile", help="of the codec, such as hq or 4444 for prores")
    parser.add_argument("--encoder", choices=KINDS, default="auto", help="who encodes (auto)")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"frames at a time ({BATCH})")
    _add_force(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace existing files")


def _check_new(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise LbrxError(f"{path} exists: add --force to replace it")


def _add_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--start", default="0", help="first frame, or a time such as 1.5s (0)")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--stop", help="the frame or time before which to stop")
    end.add_argument("--frames", type=int, metavar="N", help="how many frames, at most")
    parser.add_argument("--step", type=int, default=1, help="every so many frames (1)")


def run(options: argparse.Namespace) -> int:
    parts = {
        "info": _info,
        "frames": _frames,
        "convert": _convert,
        "apply": _apply,
        "compare": _compare,
    }
    return parts[options.part](options)


# ---- ranges ----


def _is_whole(options: argparse.Namespace) -> bool:
    given = (_place(options.start), options.stop, options.frames, options.step)
    return given == (0, None, None, 1)


def _batches(
    clip: Clip, options: argparse.Namespace, frames: int, **conversion: Any
) -> Iterator[tuple[int, Tensor]]:
    """The frames that are asked for, in batches, each with the number of its first frame. Raises
    LbrxError if there are none."""
    for name in ("step", "frames"):
        if (given := getattr(options, name)) is not None and given < 1:
            raise LbrxError(f"--{name} {given}: give 1 or more")
    number = clip.number(_place(options.start), "--start")
    stop = None if options.stop is None else clip.number(_place(options.stop), "--stop")
    if options.frames is not None:
        stop = number + options.frames * options.step
    first = number
    for batch in clip.batches(frames, number, stop, options.step, **conversion):
        yield number, batch
        number += batch.shape[0] * options.step
    if number == first:
        end = "" if stop is None else f" and before frame {stop}"
        raise LbrxError(
            f"{clip.path} has {len(clip)} frames, none of them from frame {first} on{end}: "
            "give other places"
        )


def _place(text: str) -> int | float:
    """A frame number, or seconds where the text ends in s or has a point."""
    try:
        place = float(text.removesuffix("s")) if text.endswith("s") or "." in text else int(text)
        if isinstance(place, int) or math.isfinite(place):
            return place
    except ValueError:
        pass
    raise LbrxError(f"{text!r} is not a place: give a frame such as 120, or 5.0s")


# ---- info ----


def _info(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    import lbrx_video as video

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
        ("size", f"{facts.width} x {facts.height}{_shape(facts)}"),
        ("rate", f"{_rate(facts.rate)} frames/s"),
        ("frames", f"{length}{seconds}"),
        ("pixels", f"{facts.pixel_format}, {facts.depth} bits"),
        ("color", f"{facts.color}{_assumed(facts)}"),
        ("bit rate", "not stated" if not facts.bit_rate else f"{facts.bit_rate / 1e6:.1f} Mb/s"),
        *(("audio", str(track)) for track in facts.audio),
    ]
    print("\n".join(f"{title:<10} {value}" for title, value in rows))
    return 0


def _shape(facts: ClipFacts) -> str:
    aspect = facts.pixel_aspect
    shape = "" if aspect == 1 else f", pixels {aspect.numerator}:{aspect.denominator}"
    return f"{shape}{', interlaced' if facts.interlaced else ''}"


def _assumed(facts: ClipFacts) -> str:
    taken = facts.color.matrix_name is None and facts.matrix_name is not None
    return f"; read with matrix {facts.matrix_name}" if taken else ""


def _rate(rate: Fraction) -> str:
    exact = f" ({rate})" if rate.denominator > 1 else ""
    return f"{float(rate):.5g}{exact}"


def _plain(value: object) -> object:
    return float(value) if isinstance(value, Fraction) else str(value)


# ---- frames ----


def _frames(options: argparse.Namespace) -> int:
    import lbrx_video as video
    from lbrx_video.pictures import save_picture

    folder = Path(options.folder)
    count = 0
    size = None if options.size is None else _size(options.size)
    with video.open(options.clip, decoder=options.decoder) as clip:
        if folder.exists() and not folder.is_dir():
            raise LbrxError(f"{folder} is a file: give a folder")
        given = {"size": size, "filter": options.filter}
        for first, batch in _batches(clip, options, BATCH, **given):
            folder.mkdir(parents=True, exist_ok=True)
            for i, frame in enumerate(batch):
                path = folder / f"{first + i * options.step:06d}.png"
                _check_new(path, options.force)
                save_picture(path, frame, options.bits)
                count += 1
    print(f"{folder}: {count} pictures")
    return 0


def _size(text: str) -> tuple[int, int]:
    parts = re.fullmatch(r"(\d{1,9})x(\d{1,9})", text.lower(), re.ASCII)
    if parts is None:
        raise LbrxError(f"--size {text}: give height x width, such as 1080x1920")
    return int(parts[1]), int(parts[2])


# ---- convert and apply ----


def _convert(options: argparse.Namespace) -> int:
    import lbrx_video as video
    from lbrx_video.codecs import default_codec, holds_alpha
    from lbrx_video.pixel_formats import FORMATS

    _check_out(options)
    size = None if options.size is None else _size(options.size)
    rate = None if options.rate is None else _given_rate(options.rate)
    codec = options.codec or default_codec(Path(options.out).suffix)
    with video.open(options.clip, decoder=options.decoder) as clip:
        form = FORMATS.get(clip.facts.pixel_format)
        alpha = form is not None and form.alpha
        alpha = alpha and holds_alpha(codec, options.profile, options.encoder)
        audio = _is_whole(options) and rate in (None, clip.rate) and not options.no_audio
        made = video.writer(
            *(options.out, codec, options.profile),
            like=clip,
            size=size,
            rate=rate,
            alpha=alpha,
            audio=audio,
            encoder=options.encoder,
        )
        given = {"size": size, "filter": options.filter, "alpha": alpha}
        batches = (batch for _, batch in _batches(clip, options, options.batch, **given))
        return _write(options, clip, made, audio, lambda frames, number: frames, batches)


def _given_rate(text: str) -> Fraction:
    try:
        return Fraction(text) if "/" in text else Fraction(float(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise LbrxError(f"--rate {text}: give a number such as 25, 23.976 or 30000/1001") from None


def _apply(options: argparse.Namespace) -> int:
    import lbrx_video as video
    from lbrx.extension.tensors import stack
    from lbrx_video.user_kernels import FrameKernel

    _check_out(options)
    parameters = dict(_parameter(text) for text in options.set)
    with video.open(options.clip, decoder=options.decoder) as clip:
        kernel = FrameKernel(Path(options.kernel), parameters, clip.rate)
        audio = _is_whole(options)
        made = video.writer(
            *(options.out, options.codec, options.profile),
            like=clip,
            audio=audio,
            encoder=options.encoder,
        )
        found = _batches(clip, options, options.batch, device="metal")
        batches = (batch for _, batch in found)
        return _write(options, clip, made, audio, lambda *given: stack(kernel(*given)), batches)


def _check_out(options: argparse.Namespace) -> None:
    if options.batch < 1:
        raise LbrxError(f"--batch {options.batch}: give 1 or more")
    if Path(options.out).exists() and Path(options.out).samefile(options.clip):
        raise LbrxError(f"{options.out} is the clip that is read: give another name")
    _check_new(Path(options.out), options.force)


def _write(
    options: argparse.Namespace,
    clip: Clip,
    made: ClipWriter,
    audio: bool,
    change: Callable[[Tensor, int], Tensor],
    batches: Iterator[Tensor],
) -> int:
    """Write batches, each changed by a function of its frames and of the number of frames that were
    written before."""
    began = time.perf_counter()
    total = len(clip) if _is_whole(options) else options.frames
    with made as out, _bar(total, options.quiet) as shown:
        for batch in batches:
            out.write(change(batch, out.frames))
            shown(out.frames)
    seconds = time.perf_counter() - began
    sound = "" if audio or not clip.facts.audio else ", without the audio"
    print(f"{out.path}: {out.frames} frames{sound}, {out.frames / seconds:.1f} frames/s")
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
    """A progress bar with frames a second."""
    with progress_bars(_columns, quiet) as bar:
        if bar is None:
            yield lambda done: None
            return
        task = bar.add_task("frames", total=total, speed=0.0)
        began = time.perf_counter()
        yield lambda done: bar.update(
            task, completed=done, speed=done / (time.perf_counter() - began)
        )


def _columns() -> Sequence[ProgressColumn]:
    from rich import progress as rich

    return (
        rich.TextColumn("frames"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[speed]:.1f} frames/s"),
        rich.TimeRemainingColumn(),
    )


# ---- compare ----


def _compare(options: argparse.Namespace) -> int:
    import lbrx_video as video
    from lbrx_video.metrics import compare

    with (
        video.open(options.first, decoder=options.decoder) as first,
        video.open(options.second, decoder=options.decoder) as second,
    ):
        found = compare(first, second)
    matrix, other = found.matrices
    if matrix != other and "rgb" not in found.matrices:
        meaning = "equal codes are different colors" if found.coded else "colors are compared"
        print(
            f"lbrx: warning: {options.first} is read with matrix {matrix}, {options.second} "
            f"with {other}: {meaning}",
            file=sys.stderr,
        )
    if options.json:
        psnr = {name: None if math.isinf(value) else value for name, value in found.psnr.items()}
        facts = {"frames": found.frames, "matrices": found.matrices, "psnr": psnr}
        print(json.dumps({**facts, "ssim": found.ssim}, indent=2))
        return 0
    print(f"{'':<10} {'PSNR dB':>9} {'SSIM':>9}")
    for name, value in found.psnr.items():
        print(f"{name:<10} {value:>9.2f} {found.ssim[name]:>9.5f}")
    mine, theirs = found.frames
    more = "" if mine == theirs else f": {options.first} has {mine}, {options.second} {theirs}"
    print(f"{min(found.frames)} frames compared{more}")
    return 0
