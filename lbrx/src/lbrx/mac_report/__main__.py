"""python -m lbrx.mac_report [FILE]: make a report, or read one."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from lbrx.errors import LbrxError
from lbrx.mac_report.reader import adopt_calibration, page
from lbrx.mac_report.report import Status, load
from lbrx.mac_report.running import VALIDATED, Step, run_all, save
from lbrx.version import VERSION

STEPS = (
    Step("system", "system and device", 40),
    Step("shaders", "compiling every shader", 190),
    Step("results", "results beside numpy", 90),
    Step("assumptions", "what lbrx assumes of a Mac", 50),
    Step("validation", "results again, under Metal's validation", 50, VALIDATED),
    Step("tests", "the tests that mean something on a Mac", 120),
    Step("speed", "a short benchmark", 80),
    Step("costs", "what commands cost", 20),
    Step("calibration", "the device's speeds, for lbrx's estimates", 50),
    Step("model", "a language model", 50),
    Step("neural engine", "programs for the Neural Engine", 40),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lbrx.mac_report", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a report to read")
    parser.add_argument("--out", type=Path, help="where to write the report")
    parser.add_argument(
        "--resume", action="store_true", help="keep what the file has already, and run the rest"
    )
    names = ",".join(step.name for step in STEPS)
    parser.add_argument("--steps", default=names, help=f"which steps to run (default: {names})")
    options = parser.parse_args(arguments)
    try:
        if options.file is not None:
            report = load(options.file)
            print("\n".join([page(report), *adopt_calibration(report)]))
            return 0
        return _make(options.steps.split(","), options.out, options.resume)
    except LbrxError as problem:
        print(f"lbrx: {problem}", file=sys.stderr)
        return 1


def _make(names: Sequence[str], out: Path | None, resume: bool) -> int:
    known = {step.name: step for step in STEPS}
    if unknown := [name for name in names if name not in known]:
        raise LbrxError(f"{unknown[0]!r} is not a step: give some of {', '.join(known)}")
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = out or Path(f"lbrx-mac-report-{day}.json")
    earlier = load(path) if resume and path.exists() else None
    if earlier is not None and earlier.version != VERSION:
        raise LbrxError(f"{path} is of lbrx {earlier.version}: leave --resume out")
    report = run_all(
        [known[name] for name in names],
        lambda text: print(text, flush=True),
        earlier=earlier,
        keep=lambda report: save(report, path),  # so that an interrupted one can be resumed
    )
    save(report, path)
    print(
        f"\n{page(load(path))}\n\nThe report is in {path}: please send it, see docs/howto/mac.md."
    )
    return 0 if all(step.status is Status.OK for step in report.steps) else 1


if __name__ == "__main__":
    raise SystemExit(main())
