"""lbrx tune: measure the device's speeds and the fastest kernel variants, and remember them."""

from __future__ import annotations

import argparse
import time

from lbrx.cli.devices import speeds
from lbrx.kernels import choices
from lbrx.metal import calibration_file, context
from lbrx.scheduler.calibrating import calibrate
from lbrx.scheduler.tune import TunedChoice, tune


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--family", action="append", default=[], help="only this kernel family; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="measure fewer rounds")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure the device's speeds again; without it they are measured once",
    )


def run(options: argparse.Namespace) -> int:
    gpu = context()
    choosing = tune(gpu, options.family, quick=options.quick)
    print(f"device: {gpu.info.name}")
    start = time.perf_counter()
    if options.calibrate or gpu.info.calibration is None:
        print("measuring the device's speeds, which takes some seconds", flush=True)
        for title, value in speeds(calibrate(gpu)):
            print(f"{title}: {value}")
        print(f"speeds in {calibration_file.path(gpu.info.measured_as)}")
    print(f"{'family':<12} {'shape class':<36} {'variant':<18} {'time':>12}", flush=True)
    for rows in choosing:
        for row in rows:
            print(line(row), flush=True)
    print(f"{time.perf_counter() - start:.1f} s; choices in {choices.path(gpu.info.name)}")
    return 0


def line(row: TunedChoice) -> str:
    """A row of the table."""
    chosen = "  chosen" if row.chosen else ""
    time_us = f"{row.seconds * 1e6:,.1f} us"
    return f"{row.family:<12} {row.shape_class:<36} {row.variant:<18} {time_us:>12}{chosen}"
