"""lbrx profile: run a script and show how long its kernels took."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lbrx.errors import LbrxError
from lbrx.scheduler.profiler import chip_roofline, profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="a Python file")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="arguments of the script; after -- also those that are options here",
    )
    _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", metavar="FILE", help="write a trace that Perfetto shows")
    parser.add_argument("--plot", metavar="FILE", help="write a roofline plot as SVG")
    parser.add_argument("--chip", help="also model the times on an Apple chip, such as 'M3 Max'")


def run(options: argparse.Namespace) -> int:
    path = Path(options.script)
    if not path.is_file():
        raise LbrxError(f"{path} is not a file: give a Python script")
    arguments = _split(options)
    for output in (options.trace, options.plot):
        if output and not Path(output).parent.is_dir():
            raise LbrxError(f"{output}: there is no folder {Path(output).parent}: create it first")
    if options.chip:
        chip_roofline(options.chip)  # an unknown name is an error before the script runs
    with profile() as seen:
        status = _run_script(path, arguments)
    if status is None:
        return 1
    # Files first: what reads the tables may close the pipe early.
    if options.trace:
        seen.save_trace(options.trace)
    if options.plot:
        seen.save_plot(options.plot)
    print(seen.table())
    if options.chip:
        print(seen.model(options.chip).table())
    return status


def _split(options: argparse.Namespace) -> list[str]:
    """Our options may also follow the script: put them into `options`, return the script's."""
    given: list[str] = options.arguments
    end = given.index("--") if "--" in given else len(given)
    ours = argparse.ArgumentParser("lbrx profile", add_help=False, allow_abbrev=False)
    _add_options(ours)
    _, own = ours.parse_known_args(given[:end], options)
    return own + given[end + 1 :]


def _run_script(path: Path, arguments: Sequence[str]) -> int | None:
    """Run it as Python would; returns its exit status, None if it raised an exception, which is
    shown as Python shows it: from the script's first frame on."""
    try:
        with _as_main_program(path, arguments):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return ending.code or 0
        print(ending.code, file=sys.stderr)
        return 1
    except Exception as problem:
        frames = problem.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != str(path):
            frames = frames.tb_next
        traceback.print_exception(type(problem), problem, frames)
        return None
    return 0


@contextmanager
def _as_main_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """With sys.argv and sys.path as they are if Python runs the script."""
    argv, folders = sys.argv, sys.path
    sys.argv = [str(path), *arguments]
    sys.path = [str(path.resolve().parent), *folders]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, folders
