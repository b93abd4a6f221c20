"""What a report says, and what to mend first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from lbrx.errors import FormatError
from lbrx.mac_report.report import Entry, Report, Status, StepResult
from lbrx.metal import calibration_file

MOST = 30  # problems that are shown
RATES = {"gigabytes_per_second": "GB/s", "gigaflops": "GFLOP/s"}
_LINE = re.compile(r"(?:[\w./<>-]+:\d+:\d+: )?((?:fatal )?error|warning): (.+)")


def page(report: Report) -> str:
    """The report for a reader: its device, its steps, and problems by importance."""
    lines = [f"lbrx {report.version}, {report.day}", *_device(report), ""]
    for step in report.steps:
        bad = sum(entry.status is Status.FAILED for entry in step.entries)
        counted = f"{len(step.entries)} entries, {bad} failed"
        lines.append(f"{step.name:<11} {step.status:<9} {step.seconds:6.0f} s  {counted}")
    problems = list(_problems(report))
    lines += ["", "What to mend first:" if problems else "Nothing to mend was found."]
    lines += [f"{i:3}. {text}" for i, text in enumerate(problems[:MOST], 1)]
    if len(problems) > MOST:
        lines.append(f"     ... and {len(problems) - MOST} more")
    return "\n".join([*lines, *_speeds(report)])


def _device(report: Report) -> Iterator[str]:
    step = report.step("system")
    known = {entry.name: entry.values for entry in step.entries} if step else {}
    device, system = known.get("device 0", {}), known.get("system", {})
    soft = " (softmetal, not Apple's Metal)" if device.get("soft") else ""
    yield f"device: {device.get('name', 'not known')}{soft}, {device.get('cores')} cores"
    yield f"macOS: {system.get('macos') or 'none'}, Python {system.get('python')}"


def _problems(report: Report) -> Iterator[str]:
    for step in report.steps:
        if step.status in (Status.CRASHED, Status.TIMED_OUT) or _failed_outright(step):
            reason = step.text.strip().splitlines() or ["no reason given"]
            more = f" ({reason[-1][:200]})" if len(reason) > 1 else ""
            yield f"the step {step.name} {step.status}: {reason[0]}{more}"
    orders = {"shaders": _diagnosed, "results": _by_error, "validation": _by_error}
    for step in report.steps:
        yield from orders.get(step.name, _each)(step)
    yield from _warnings(report.step("shaders"))


def _failed_outright(step: StepResult) -> bool:
    """Whether it failed without an entry that says why."""
    return step.status is Status.FAILED and all(e.status is not Status.FAILED for e in step.entries)


def _failures(step: StepResult) -> list[Entry]:
    return [entry for entry in step.entries if entry.status is Status.FAILED]


def _each(step: StepResult) -> Iterator[str]:
    for entry in _failures(step):
        yield f"{step.name}: {entry.name}: {_last_line(entry.text)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no text"


def _diagnosed(step: StepResult) -> Iterator[str]:
    """Errors of the compiler, those that most shaders have first."""
    files: dict[str, list[str]] = defaultdict(list)
    for entry in _failures(step):
        errors = [m[2] for m in _LINE.finditer(entry.text) if "error" in m[1]]
        files[errors[0] if errors else _last_line(entry.text)].append(entry.name)
    for text, names in sorted(files.items(), key=lambda item: -len(item[1])):
        yield f"shaders: {len(names)} times: {text[:300]} ({', '.join(names[:3])})"


def _by_error(step: StepResult) -> Iterator[str]:
    """Exceptions first, then wrong results by their distance from what is allowed."""

    def distance(entry: Entry) -> float:
        error, allowed = entry.values.get("error"), entry.values.get("tolerance", 0)
        if not isinstance(error, int | float) or error != error:
            return float("inf")
        return error / max(float(allowed), 1e-30)

    for entry in sorted(_failures(step), key=distance, reverse=True):
        yield f"results: {entry.name}: {_last_line(entry.text)}"


def _warnings(step: StepResult | None) -> Iterator[str]:
    files: dict[str, list[str]] = defaultdict(list)
    for entry in step.entries if step is not None else ():
        for text in {m[2] for m in _LINE.finditer(entry.text) if m[1] == "warning"}:
            files[text].append(entry.name)
    for text, names in sorted(files.items(), key=lambda item: -len(item[1])):
        yield f"warning, {len(names)} times: {text[:200]} ({names[0]})"


def _speeds(report: Report) -> Iterator[str]:
    for name in ("speed", "costs", "model", "neural engine"):
        step = report.step(name)
        entries = [e for e in step.entries if e.status is Status.OK] if step is not None else []
        if entries:
            yield f"\n{name}:"
        for entry in entries:
            yield f"{entry.name:<32} {_figures(entry.values)}"


def _figures(values: Mapping[str, Any]) -> str:
    """Rates with their shares of the chip's peak, and other numbers under their names."""
    rates = [f"{values[key]} {unit}" for key, unit in RATES.items() if key in values]
    share = values.get("of_bandwidth", values.get("of_fp32_peak"))
    of_peak = [f"{share:.0%} of the chip's peak"] if isinstance(share, float) else []
    others = [
        f"{key.replace('_', ' ')} {value}" for key, value in values.items() if not rates and value
    ]
    joules = [f"{values['joules']:.3g} J"] if rates and values.get("joules") else []
    power = values.get("power")
    slowed = [power] if rates and power and power != "thermal state nominal" else []
    return ", ".join([*rates, *of_peak, *joules, *slowed, *others])


def adopt_calibration(report: Report) -> Iterator[str]:
    """Let lbrx's estimates for the report's device use what was measured on it; says so. A soft
    device's figures are those of its host, and stay there."""
    step = report.step("calibration")
    for entry in step.entries if step is not None else ():
        if entry.name != "speeds" or entry.status is not Status.OK or entry.values.get("soft"):
            continue
        try:
            device, path = calibration_file.adopt(entry.values.get("stored"))
        except ValueError as problem:
            raise FormatError(f"the report's calibration is wrong: {problem}") from problem
        yield f"\nlbrx's estimates for {device} use the measured speeds from now on: {path}"
