"""The test suites of a checkout, as far as they mean something on a Mac."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from lbrx.mac_report.report import Status
from lbrx.mac_report.steps import Recorder

_DEFAULT = ("-m", "not full", "-k", "not check")  # softmetal's checking modes are not there
# What to run and pytest's selection, the most telling first. Nothing here runs kernels that fault
# or never end on purpose: a GPU does not survive that as softmetal does.
SELECTIONS = (
    ("softmetal/tests", ("-m", "metal")),
    ("lbrx/tests/metal/test_metal_buffers.py", _DEFAULT),
    ("lbrx/tests/test_custom_kernel.py", _DEFAULT),
    ("lbrx/tests/scheduler/test_replay.py", _DEFAULT),
    ("lbrx/tests/test_ops.py", _DEFAULT),
)


def record_tests(record: Recorder) -> None:
    root = _checkout()
    if root is None or find_spec("pytest") is None:
        record.add("tests", Status.SKIPPED, "they need a checkout of lbrx and pytest")
        return
    for place, selection in SELECTIONS:
        if not record.skips(place):
            _run(record, root, place, selection)


def _checkout() -> Path | None:
    """LBRX_REPORT_ROOT: the checkout whose tests a Mac's report runs; by default the current folder
    or one above it."""
    given = os.environ.get("LBRX_REPORT_ROOT")
    places = [Path(given)] if given else [Path.cwd(), *Path.cwd().parents]
    return next((place for place in places if (place / SELECTIONS[0][0]).is_dir()), None)


def _run(record: Recorder, root: Path, place: str, selection: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selection]
        try:
            ran = subprocess.run(
                [*command, f"--junitxml={file}", place],
                cwd=root,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=max(1.0, record.seconds_left),
                check=False,
            )
        except subprocess.TimeoutExpired:
            record.add(place, Status.SKIPPED, "its time was over")
            return
        results = list(_results(file))
    if not results:
        record.add(place, Status.FAILED, f"pytest reported nothing:\n{ran.stdout}{ran.stderr}")
        return
    failed = [(name, text) for name, status, text in results if status is Status.FAILED]
    for name, text in failed:
        record.add(name, Status.FAILED, text)
    skipped = sum(status is Status.SKIPPED for _, status, _ in results)
    passed = len(results) - len(failed) - skipped
    status = Status.FAILED if failed else Status.OK
    record.add(place, status, passed=passed, failed=len(failed), skipped=skipped)


def _results(file: Path) -> Iterator[tuple[str, Status, str]]:
    try:
        cases = ElementTree.parse(file).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        return
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        bad = [*case.iter("failure"), *case.iter("error")]
        if bad:
            yield name, Status.FAILED, bad[0].text or bad[0].get("message") or ""
        else:
            skipped = next(case.iter("skipped"), None) is not None
            yield name, Status.SKIPPED if skipped else Status.OK, ""
