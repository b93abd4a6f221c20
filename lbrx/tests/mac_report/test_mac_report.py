"""The report of a Mac, made here with softmetal, and with failures in every step."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lbrx.errors import FormatError
from lbrx.mac_report import __main__ as command
from lbrx.mac_report import privacy, reader, running, suite
from lbrx.mac_report.report import Entry, Report, Status, StepResult, entries_of, load, shortened
from lbrx.mac_report.steps import STEPS, Recorder

QUICK = [replace(step, seconds=60.0) for step in command.STEPS]

# How a step can go wrong: the program of its process, and what becomes of it.
FAILURES = {
    "an exception": ("raise ValueError('no device')", Status.FAILED, "no device"),
    "a signal": ("import os; os.abort()", Status.CRASHED, "SIGABRT"),
    "a segmentation fault": ("import ctypes; ctypes.string_at(0)", Status.CRASHED, "SIGSEGV"),
    "a hang": ("import time; time.sleep(600)", Status.TIMED_OUT, "stopped after"),
    "a hang of a child": (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])",
        Status.TIMED_OUT, "stopped after",
    ),
    "a status": ("import sys; sys.exit(3)", Status.FAILED, "status 3"),
    "output that is not text": ("import sys; sys.stdout.buffer.write(bytes(range(256))); sys.exit(1)", Status.FAILED, "status 1"),
}  # fmt: skip

GOOD = """
import sys
with open(sys.argv[1], "a") as file:
    file.write('{"name": "a", "status": "ok", "text": "", "values": {"n": 1}}\\n{"name": "cut sho')
"""


def stand_in(text):
    """The process of a step that runs this program instead."""
    return lambda step, results: [sys.executable, "-c", text, str(results)]


def silent(text):
    pass


@pytest.mark.parametrize("failing", [step.name for step in command.STEPS])
def test_each_step_goes_on_when_another_fails(failing, tmp_path):
    text, status, _ = FAILURES["a signal"]

    def process(step, results):
        return stand_in(text if step.name == failing else GOOD)(step, results)

    report = running.run_all(QUICK, silent, process)
    assert [s.name for s in report.steps] == [s.name for s in command.STEPS]
    assert {s.name: s.status for s in report.steps if s.status is not Status.OK} == {
        failing: status
    }
    kept = [s.entries for s in report.steps if s.name != failing]
    assert (
        kept == [(Entry("a", Status.OK, "", {"n": 1}),)] * 4
    )  # without the line that is cut short
    path = tmp_path / "report.json"
    running.save(report, path)
    assert f"1. the step {failing} crashed: ended by signal 6" in reader.page(load(path))


@pytest.mark.parametrize("kind", FAILURES)
def test_a_step_that_goes_wrong(kind, monkeypatch):
    text, status, expected = FAILURES[kind]
    monkeypatch.setattr(running, "GRACE", 0.0)
    seconds = 0.5 if "hang" in kind else 60.0
    step = replace(QUICK[0], seconds=seconds)
    (result,) = running.run_all([step], silent, stand_in(text)).steps
    assert result.status is status
    assert expected in result.text


def test_a_process_that_does_not_start():
    (result,) = running.run_all(QUICK[:1], silent, lambda step, results: ["/nonexistent"]).steps
    assert result.status is Status.CRASHED
    assert "did not start" in result.text


def test_progress_is_shown(monkeypatch):
    monkeypatch.setattr(running, "INTERVAL", 0.01)
    said: list[str] = []
    running.run_all(QUICK[:1], said.append, stand_in(GOOD + "\nimport time; time.sleep(0.3)"))
    assert said[0].startswith("[1/1] system and device")
    assert any("done" in line for line in said[1:-1])
    assert said[-1].strip().startswith("ok, 1 entries, 0 failed")


# ---- the steps themselves, on softmetal ----


def recorded(name, tmp_path, seconds=60.0):
    file = tmp_path / "results"
    file.touch()
    STEPS[name](Recorder(file, seconds))
    return {entry.name: entry for entry in entries_of(file.read_text().splitlines())}


def test_system(tmp_path):
    found = recorded("system", tmp_path)
    assert {e.status for e in found.values()} == {Status.OK}
    assert found["system"].values["python"].startswith("3.")
    assert found["device 0"].values["max_threads"] == 1024


def test_an_injected_fault_of_the_device_is_an_entry(tmp_path, monkeypatch):
    from lbrx.mac_report import system

    def no_device():
        raise RuntimeError("Metal is not supported on this Mac")

    monkeypatch.setattr(system, "devices", no_device)
    found = recorded("system", tmp_path)
    assert found["devices"].status is Status.FAILED
    assert "not supported on this Mac" in found["devices"].text
    assert found["selectors"].status is Status.OK


def test_shaders_with_their_diagnostics(tmp_path, monkeypatch):
    """A folder with one good, one warned of and one wrong shader."""
    from lbrx.mac_report import shaders
    from lbrx.metal import Context

    (tmp_path / "good.metal").write_text("kernel void f(device float* x) { x[0] = 1; }")
    (tmp_path / "wrong.metal").write_text("kernel void f(device float* x) { x[0] = y; }")
    monkeypatch.setenv("LBRX_SHADERS", str(tmp_path))
    gpu = Context()
    monkeypatch.setattr(shaders, "context", lambda: gpu)
    monkeypatch.setattr(shaders, "sample_pipelines", lambda gpu: [])
    found = recorded("shaders", tmp_path)
    assert found["good.metal"].status is Status.OK
    assert found["good.metal"].values["kernels"] == 1
    assert found["wrong.metal"].status is Status.FAILED
    assert "undeclared identifier 'y'" in found["wrong.metal"].text
    gpu.close()


def test_without_time_the_rest_is_skipped(tmp_path):
    for name in ("shaders", "results", "speed"):
        found = recorded(name, tmp_path, seconds=-1.0)
        assert found
        assert {entry.status for entry in found.values()} == {Status.SKIPPED}
        (tmp_path / "results").unlink()


def test_results_and_a_wrong_one(tmp_path, monkeypatch):
    from lbrx.mac_report import results

    cases = [c for c in results._cases() if c.name in ("softmax", "int32", "matmul float32")]
    wrong = replace(cases[0], name="wrong", compute=lambda x: x * (2 if x.device == "cpu" else 1))
    monkeypatch.setattr(results, "_cases", lambda: [*cases, wrong])
    found = recorded("results", tmp_path)
    assert [n for n, e in found.items() if e.status is not Status.OK] == ["wrong"]
    assert "from numpy's result" in found["wrong"].text
    assert {"replay", "custom kernel", "events"} <= found.keys()


def test_speed(tmp_path, monkeypatch):
    from lbrx.mac_report import speed

    cases = speed._cases
    monkeypatch.setattr(speed, "_cases", lambda info: cases(info)[:1])
    (entry,) = recorded("speed", tmp_path).values()
    assert entry.status is Status.OK
    assert entry.values["gigabytes_per_second"] > 0


TESTS = """
import pytest
def test_right(): pass
def test_wrong(): assert 1 == 2, "one is not two"
@pytest.mark.skip
def test_skipped(): pass
"""


def test_the_suite(tmp_path, monkeypatch):
    (tmp_path / "softmetal" / "tests").mkdir(parents=True)
    (tmp_path / "softmetal" / "tests" / "test_some.py").write_text(TESTS)
    monkeypatch.setenv("LBRX_REPORT_ROOT", str(tmp_path))
    monkeypatch.setattr(suite, "SELECTIONS", (("softmetal/tests", ()), ("lbrx/tests", ())))
    found = recorded("tests", tmp_path)
    assert found["softmetal/tests"].values == {"passed": 1, "failed": 1, "skipped": 1}
    assert "one is not two" in found["softmetal.tests.test_some.test_wrong"].text
    assert "pytest reported nothing" in found["lbrx/tests"].text  # there is no such folder
    monkeypatch.setenv("LBRX_REPORT_ROOT", str(tmp_path / "elsewhere"))
    (tmp_path / "results").unlink()
    assert recorded("tests", tmp_path)["tests"].status is Status.SKIPPED


def test_the_selections_exist():
    root = Path(__file__).parents[3]
    assert all((root / place).exists() for place, _ in suite.SELECTIONS)


def test_the_whole_takes_less_than_15_minutes():
    assert sum(step.seconds + running.GRACE for step in command.STEPS) < 15 * 60 + 1
    assert {step.name for step in command.STEPS} == STEPS.keys()


def test_the_command(tmp_path):
    """A process, as `make mac-report` starts it; reading the file gives the same page."""
    out = tmp_path / "report.json"
    run = [sys.executable, "-m", "lbrx.mac_report"]
    made = subprocess.run(
        [*run, "--steps", "system", "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "[1/1] system and device" in made.stdout
    read = subprocess.run([*run, str(out)], capture_output=True, text=True, check=True)
    assert read.stdout.strip() in made.stdout
    assert "softmetal, not Apple's Metal" in read.stdout


@pytest.mark.full
def test_every_step_of_the_command(tmp_path):
    out = tmp_path / "report.json"
    run = [sys.executable, "-m", "lbrx.mac_report", "--out", str(out)]
    # The tests of softmetal that it runs are not written for the rules of PyObjC's bridge.
    plain = {name: value for name, value in os.environ.items() if name != "SOFTMETAL_STRICT"}
    root = Path(__file__).parents[3]
    made = subprocess.run(run, capture_output=True, text=True, check=False, cwd=root, env=plain)
    report = load(out)
    assert [step.name for step in report.steps] == list(STEPS)
    failed = [e for step in report.steps for e in step.entries if e.status is Status.FAILED]
    assert failed == [], made.stdout


def test_on_what_takes_itself_for_a_mac(tmp_path, monkeypatch):
    """The paths of lbrx that only a Mac takes, on macOS 14 and an M1, with softmetal as PyObjC."""
    path = os.pathsep.join(
        [str(Path(__file__).parent / "as_a_mac"), os.environ.get("PYTHONPATH", "")]
    )
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m1")
    monkeypatch.setenv("SOFTMETAL_STRICT", "bridge,host")
    monkeypatch.setenv("SOFTMETAL_MACOS", "14")
    out = tmp_path / "report.json"
    run = [sys.executable, "-m", "lbrx.mac_report", "--steps", "system,results", "--out", str(out)]
    made = subprocess.run(run, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    report = load(out)
    known = {entry.name: entry for step in report.steps for entry in step.entries}
    assert known["device 0"].values["name"] == "Apple M1"
    assert not known["device 0"].values["soft"]
    assert known["selectors"].values["newLogStateWithDescriptor_error_"] is False
    assert len(report.step("results").entries) > 18


@pytest.mark.parametrize("arguments", [["--steps", "nonsense"], ["/nonexistent.json"]])
def test_mistakes_are_one_line(arguments, capsys):
    assert command.main(arguments) == 1
    assert capsys.readouterr().err.startswith("lbrx: ")


# ---- privacy ----

SECRETS = privacy.Secrets(
    folders=(("/Users/jappleseed/lbrx", "<here>"), ("/Users/jappleseed", "<home>")),
    names=(("Johns-MacBook-Pro", "<host>"), ("John Appleseed", "<user>"), ("jappleseed", "<user>")),
)
CLEANED = {
    "/Users/jappleseed/lbrx/a.py:3": "<here>/a.py:3",
    "/Users/jappleseed/.cache/x": "<home>/.cache/x",
    "/Users/other/secret.txt": "/Users/<user>/secret.txt",
    "/home/other/secret.txt": "/home/<user>/secret.txt",
    "ran on Johns-MacBook-Pro.local": "ran on <host>.local",
    "by JOHN APPLESEED": "by <user>",
    "user=jappleseed;": "user=<user>;",
    "/var/folders/zz/abc123/T/tmp1": "<temporary>",
    "/private/var/folders/zz/abc123/T/tmp1": "<temporary>",
    "mail john@example.com now": "mail <address> now",
    "at 192.168.1.17": "at <address>",
    "en0 a4:83:e7:12:34:56": "en0 <address>",
    "F4E1C0DE-1234-5678-9ABC-DEF012345678": "<identifier>",
    "simdgroup_matrix error 1.5e-3, macOS 14.6.1": "simdgroup_matrix error 1.5e-3, macOS 14.6.1",
    "softmax.metal:12:3: error: no jappleseeds": "softmax.metal:12:3: error: no jappleseeds",
}


@pytest.mark.parametrize(("text", "expected"), CLEANED.items())
def test_cleaned(text, expected):
    nested = {"a": [text], text: (1, 2.5, None, True)}
    assert privacy.cleaned(nested, SECRETS) == {"a": [expected], expected: [1, 2.5, None, True]}


def test_nothing_of_this_machine_is_in_a_report(tmp_path, monkeypatch):
    """Every text of a report, with the real names of this machine put into all of them."""
    monkeypatch.setenv("USER", "Jane.Doe")
    monkeypatch.setattr("socket.gethostname", lambda: "janes-studio.example.org")
    personal = [str(Path.home()), str(Path.cwd()), "Jane.Doe", "janes-studio"]
    text = f"at {personal[0]}/x and {personal[1]}/y by Jane.Doe on janes-studio.example.org"
    entry = Entry(text, Status.FAILED, text, {"note": text})
    step = StepResult("system", Status.FAILED, 1.0, (entry,), text)
    path = tmp_path / "r.json"
    running.save(Report("0", "2026-01-01", (step,)), path)
    written = path.read_text()
    assert [word for word in personal if word in written] == []
    assert written.count("<host>") == 4


def test_names_of_accounts_that_are_words_stay():
    named = privacy._named({"root", "metal", "ab", None, "jane"}, "<user>")
    assert named == [("jane", "<user>")]


# ---- the reader ----


def test_what_to_mend_first():
    device = {"name": "Apple M3 Max", "soft": False, "cores": 40}
    error = "softmax.h:12:3: error: cannot bind rvalue"
    shaders = [Entry(f"{n}.metal", Status.FAILED, error) for n in ("softmax", "norm")]
    shaders += [Entry("sort.metal", Status.FAILED, "x:1:1: error: unknown type name 'foo'")]
    shaders += [Entry("copy.metal", Status.OK, "copy.h:1:2: warning: unused variable 'z'")]
    results = [
        Entry("close", Status.FAILED, "ArithmeticError: close", {"error": 2e-5, "tolerance": 1e-5}),
        Entry("far", Status.FAILED, "ArithmeticError: far", {"error": 7.0, "tolerance": 1e-5}),
        Entry("nan", Status.FAILED, "ArithmeticError: nan", {"error": float("nan")}),
    ]
    report = Report("1", "2026-01-01", (
        StepResult("system", Status.OK, 1, (Entry("device 0", Status.OK, "", device),)),
        StepResult("shaders", Status.FAILED, 1, tuple(shaders)),
        StepResult("results", Status.FAILED, 1, tuple(results)),
        StepResult("tests", Status.CRASHED, 1, (), "ended by signal 11 (SIGSEGV)\nFatal Python error"),
        StepResult("speed", Status.OK, 1, (Entry("copy", Status.OK, "", {"gigabytes_per_second": 300.0, "of_bandwidth": 0.75}),)),
    ))  # fmt: skip
    page = reader.page(report)
    problems = re.findall(r"^ +\d+\. (.*)$", page, re.MULTILINE)
    assert [p.split(":")[0] for p in problems] == [
        "the step tests crashed",
        *["shaders"] * 2,
        *["results"] * 3,
        "warning, 1 times",
    ]
    assert "2 times: cannot bind rvalue (softmax.metal, norm.metal)" in problems[1]
    assert [p.split(": ")[1] for p in problems[3:6]] == ["nan", "far", "close"]
    assert "device: Apple M3 Max, 40 cores" in page
    assert "300.0 GB/s, 75% of the chip's peak" in page


MALFORMED = {
    "nothing": b"",
    "not JSON": b"{",
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "another format": b'{"format": 2}',
    "no steps": b'{"format": 1, "version": "", "day": ""}',
    "an unknown status": b'{"format": 1, "version": "", "day": "", "steps": [{"name": "a", "status": "?", "seconds": 1, "entries": [], "text": ""}]}',
    "an entry without a name": b'{"format": 1, "version": "", "day": "", "steps": [{"name": "a", "status": "ok", "seconds": 1, "entries": [{}], "text": ""}]}',
    "deep nesting": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_reports(kind, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(MALFORMED[kind])
    with pytest.raises(FormatError, match=re.escape(str(path))):
        load(path)


def test_a_report_survives_the_file(tmp_path):
    entry = Entry("a", Status.SKIPPED, "text", {"x": 1.5})
    report = Report("1", "2026-01-01", (StepResult("tests", Status.TIMED_OUT, 2.5, (entry,), "t"),))
    path = tmp_path / "r.json"
    running.save(report, path)
    assert load(path) == report
    assert json.loads(path.read_text())["format"] == 1


def test_long_texts_are_shortened():
    assert shortened("x" * 10, 10) == "x" * 10
    short = shortened("a" * 50 + "b" * 50, 10)
    assert short.startswith("aaaaa\n... 90 characters")
    assert short.endswith("\nbbbbb")
