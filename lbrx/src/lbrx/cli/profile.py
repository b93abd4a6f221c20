"""lbrx profile: run a script and show how long its kernels took."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from lbrx.errors import LbrxError
from lbrx.scheduler.profiler import profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="a Python file; arguments after it go to the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--trace", metavar="FILE", help="write a trace that Perfetto shows")
    parser.add_argument("--plot", metavar="FILE", help="write a roofline plot as SVG")
    parser.add_argument("--chip", help="also model the times on an Apple chip, such as 'M3 Max'")


def run(options: argparse.Namespace) -> int:
    path = Path(options.script)
    if not path.is_file():
        raise LbrxError(f"{path} is not a file: give a Python script")
    sys.argv = [str(path), *options.arguments]
    with profile() as seen:
        runpy.run_path(str(path), run_name="__main__")
    print(seen.table())
    if options.chip:
        print(seen.model(options.chip).table())
    if options.trace:
        seen.save_trace(options.trace)
    if options.plot:
        seen.save_plot(options.plot)
    return 0
