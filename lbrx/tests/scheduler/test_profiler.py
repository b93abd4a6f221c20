"""Profiles: records, tables, traces and plots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict

import numpy as np
import pytest

import lbrx
from lbrx.metal import context
from lbrx.scheduler import report
from lbrx.scheduler.profiler import Record
from lbrx.scheduler.roofline import Roofline, measured_again


@pytest.fixture
def seen(monkeypatch, tmp_path):
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path))
    x = lbrx.tensor(np.ones((64, 128), np.float32), device="metal")
    w = lbrx.tensor(np.ones((128, 32), np.float32), device="metal")
    with lbrx.profile() as profile:
        lbrx.eval((x.tanh() * 2) @ w)
    return profile


def test_records(seen):
    chain, product, *rest = seen.records
    assert chain.kernel == "fused_tanh_multiply"
    assert chain.shapes == "float32[64, 128] -> float32[64, 128]"
    assert chain.nbytes == 2 * 64 * 128 * 4
    assert chain.operations == 2 * 64 * 128
    assert chain.grid == (64 * 128, 1, 1)
    assert product.kernel == "matmul"
    assert product.operations == 2 * 64 * 128 * 32
    assert product.intensity == product.operations / product.nbytes
    for record in (chain, product, *rest):
        assert record.time > 0
        assert record.delay >= 0
        assert record.memory > 0
        assert 0 < record.share(seen.roofline) < 10
    assert chain.start < product.start


def test_work_outside_is_not_seen(seen):
    count = len(seen.records)
    lbrx.eval(lbrx.ones((4,), device="metal") + 1)
    assert len(seen.records) == count


def test_replayed_kernels_are_seen_one_by_one():
    compiled = lbrx.compile(lambda x: (x + 1).softmax(axis=-1) * 2)
    x = lbrx.ones((4, 8), device="metal")
    lbrx.eval(compiled(x))
    with lbrx.profile() as profile:
        lbrx.eval(compiled(x))
    assert [record.kernel for record in profile.records] == ["add", "softmax", "multiply"]
    assert profile.records[0].shapes == "float32[4, 8] -> float32[4, 8]"


def test_one_profile_at_a_time():
    refused = pytest.raises(lbrx.DeviceError, match="end it before starting another")
    with lbrx.profile(), refused, lbrx.profile():
        pass


def test_table_and_model(seen):
    table = seen.table()
    assert "fused_tanh_multiply:single" in table
    assert "measured" in table
    modelled = seen.model("M3 Max")
    assert "M3 Max (modelled)" in modelled.table()
    assert seen.model("m3-max").roofline == seen.model("Apple M3 Max").roofline == modelled.roofline
    assert modelled.times[0] == pytest.approx(seen.records[0].nbytes / 410e9, rel=0.05)
    with pytest.raises(lbrx.DeviceError, match=r"'M9' is not a chip.*m3-max"):
        seen.model("M9")


def test_trace(seen, tmp_path):
    seen.save_trace(tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_text())
    events = content["traceEvents"]
    kernels = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in kernels][:2] == ["fused_tanh_multiply", "matmul"]
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in kernels)
    memory = [event["args"] for event in events if event["ph"] == "C"]
    assert all(args["bytes in use"] > 0 and args["bytes cached"] >= 0 for args in memory)
    assert content["otherData"]["pool high_water"] >= max(args["bytes in use"] for args in memory)


def test_plot(seen, tmp_path):
    seen.save_plot(tmp_path / "x.svg")
    texts = [node.text for node in ET.parse(tmp_path / "x.svg").iter() if node.text]
    assert any("fused_tanh_multiply:single" in text for text in texts)


def test_the_measured_roofline_is_remembered(seen, tmp_path):
    first = seen.roofline
    assert first.bandwidth > 1e8
    assert first.peak > 1e8
    (path,) = tmp_path.glob("roofline-*.json")
    for damaged in ("no json", json.dumps({**asdict(first), "version": 2, "peak": 0})):
        path.write_text(damaged)
        with lbrx.profile() as again:
            pass
        assert again.roofline.device == first.device
        assert json.loads(path.read_text())["version"] == 2
    assert again.roofline.peak > 1e8


# ---- work of several commands ----


def large():
    return lbrx.ones((512, 1024), device="metal") + 0


@pytest.mark.parametrize("replayed", [False, True])
def test_the_work_of_several_commands_is_charged_once(replayed):
    x = large()
    total = lbrx.compile(lambda x: x.sum()) if replayed else lbrx.Tensor.sum
    lbrx.eval(x, total(x))
    with lbrx.profile() as profile:
        for _ in range(2):
            lbrx.eval(total(x))
    records = profile.records
    assert len(records) >= 4  # a sum of partial sums each time
    assert sum(record.nbytes for record in records) == 2 * (512 * 1024 * 4 + 4)
    assert sum(record.operations for record in records) == pytest.approx(2 * 512 * 1024)
    assert all(record.nbytes > 0 for record in records)


ROOFLINE = Roofline("a device", 1e9, 1e10, "2026-01-31 12:00")


def record(kernel="sum", time=1e-3, scope=0, part=0, nbytes=500_000, operations=1e5):
    return Record(
        kernel=kernel,
        variant="serial",
        shapes="float32[512, 1024] -> float32[]",
        grid=(1, 1, 1),
        start=0.0,
        time=time,
        delay=0.0,
        nbytes=nbytes,
        operations=operations,
        choice="cost 1, not simd 2",
        memory=0,
        cached=0,
        scope=scope,
        part=part,
    )


def test_table_and_plot_agree():
    """Both show the best run, also of a kernel that takes two commands."""
    runs = [record(time=2e-3), record(time=1e-3), record(time=4e-3)]
    assert "50%" in report.table(runs, ROOFLINE, 80)
    assert "sum:serial 50%" in report.plot(runs, ROOFLINE)
    parts = [record(time=3e-3, scope=7), record(time=1e-3, scope=7, part=1)] * 2
    table = report.table(parts, ROOFLINE, 80)
    assert "25%" in table  # 1 MB in 4 ms
    assert "1 MB" in table
    assert table.split("sum:serial")[1].split()[0] == "2"  # runs
    assert "sum:serial 25%" in report.plot(parts, ROOFLINE)


def test_more_than_the_roofline_is_explained():
    assert "caches" in report.table([record(time=1e-6)], ROOFLINE, 100)
    assert "caches" not in report.table([record()], ROOFLINE, 100)


def test_a_beaten_roofline_is_measured_again(seen, tmp_path):
    """As one that was measured while the machine was busy; the best of both is kept."""
    seen.table()
    (path,) = tmp_path.glob("roofline-*.json")
    content = json.loads(path.read_text())
    slow = {"bandwidth": 1e3, "peak": 1e18, "date": "2001-01-01 00:00"}
    path.write_text(json.dumps({**content, **slow}))
    x = large()
    with lbrx.profile() as profile:
        lbrx.eval(x * 2)
    assert profile.roofline.bandwidth > 1e8
    assert profile.roofline.peak == 1e18
    assert "2001" not in profile.roofline.date
    assert json.loads(path.read_text()) == {"version": 2, **asdict(profile.roofline)}
    assert profile.roofline.date[:10] in profile.table()


def test_large_records_raise_the_roofline(seen):
    """What a kernel has reached, the device can do, whatever the measurement says."""
    fast = record(time=1e-6, nbytes=1 << 40, operations=1e18)
    small = record(time=1e-9, nbytes=1 << 20, operations=1e3)
    found = measured_again(context(), seen.roofline, [fast, small])
    assert (found.bandwidth, found.peak) == pytest.approx(((1 << 40) * 1e6, 1e24))


# ---- appearance ----

LONG = "fused_" + "_".join(["multiply"] * 30)


@pytest.mark.parametrize("width", [60, 80, 100, 139, 140, 180, 250])
def test_tables_fit_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    records = [record(), record(LONG)]
    for table in (report.table(records, ROOFLINE), report.modelled_table(records, ROOFLINE)):
        assert max(map(len, table.splitlines())) <= width
        assert "sum:serial" in table
    assert "2026-01-31" in report.table(records, ROOFLINE)


@pytest.mark.parametrize("intensity", [1e-3, 0.2, 10, 1e5])
def test_labels_are_within_the_plot(intensity):
    device = Roofline("A device with a long name " * 5, 1e11, 1e13)
    records = [record(LONG, operations=500_000 * intensity), record("short")]
    for node in ET.fromstring(report.plot(records, device)).iter(
        "{http://www.w3.org/2000/svg}text"
    ):
        x, width = float(node.get("x")), len(node.text) * 6
        low = {"start": x, "middle": x - width / 2, "end": x - width}[node.get("text-anchor")]
        assert low >= 0, node.text
        assert low + width <= report.WIDTH, node.text
        assert 0 < float(node.get("y")) < report.HEIGHT


def test_written_files_have_the_mode_of_the_umask(seen, tmp_path):
    before = os.umask(0o027)
    try:
        seen.save_plot(tmp_path / "x.svg")
        seen.save_trace(tmp_path / "x.json")
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("x.svg", "x.json")} == {0o640}
    assert sorted(path.name for path in tmp_path.glob("x*")) == ["x.json", "x.svg"]


# ---- the command line ----

SCRIPT = "import lbrx, sys\nprint((lbrx.ones((4,)) + 1).tolist(), sys.argv[1:])\n"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def command(*arguments, folder=None):
    return subprocess.run(
        [sys.executable, "-m", "lbrx", "profile", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


def test_command_line(script):
    done = command("--chip", "M1", script, "--own", "x")
    assert done.stdout.startswith("[2.0, 2.0, 2.0, 2.0] ['--own', 'x']"), done.stderr
    assert "add:single" in done.stdout
    assert "M1 (modelled)" in done.stdout
    failed = command("nothing.py")
    assert (failed.returncode, failed.stderr) == (
        1,
        "lbrx: nothing.py is not a file: give a Python script\n",
    )


@pytest.mark.parametrize(
    ("arguments", "own"),
    [
        (["script.py", "--trace", "x.json"], []),
        (["--trace", "x.json", "script.py"], []),
        (["script.py", "first", "--trace=x.json", "--own", "x"], ["first", "--own", "x"]),
        (["script.py", "--trace", "x.json", "--", "--trace", "y"], ["--trace", "y"]),
    ],
)
def test_options_before_and_after_the_script(script, arguments, own):
    done = command(*arguments, folder=script.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"[2.0, 2.0, 2.0, 2.0] {own}")
    assert json.loads((script.parent / "x.json").read_text())["traceEvents"]
    assert not (script.parent / "y").exists()


def test_a_pipe_that_is_closed_early_does_not_lose_the_files(script):
    script.write_text("import lbrx\nlbrx.eval(lbrx.ones(4) + 1)\n")
    end, start = os.pipe()
    os.close(end)
    with os.fdopen(start, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-u", "-m", "lbrx", "profile", script.name, "--trace", "x.json"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=script.parent,
        )
    assert (done.returncode, done.stderr) == (141, "")
    assert json.loads((script.parent / "x.json").read_text())["traceEvents"]


def test_an_unknown_chip_is_refused_before_the_script_runs(script):
    done = command(script, "--chip", "M99")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("lbrx: 'M99' is not a chip of the table: give one of ")


def test_an_output_without_a_folder_is_refused_before_the_script_runs(script):
    done = command(script, "--plot", "nowhere/x.svg", folder=script.parent)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "lbrx: nowhere/x.svg: there is no folder nowhere: create it first\n"


@pytest.mark.parametrize("option", ["--trace", "--chip"])
def test_an_option_without_its_value(script, option):
    done = command(script, option)
    assert done.returncode == 2
    assert f"{option}: expected one argument" in done.stderr


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("def f():\n    return 1 / 0\nf()\n", "ZeroDivisionError: division by zero"),
        ("import lbrx\nlbrx.ones((2,)) + lbrx.ones((3,))\n", "lbrx.errors.ShapeError: "),
        ("x = (\n", "SyntaxError: "),
    ],
)
def test_a_failing_script_shows_its_own_frames(script, text, last):
    """As Python shows them, without those of the command that runs it."""
    script.write_text(text)
    done = command(script)
    assert done.returncode == 1
    assert "runpy" not in done.stderr
    assert "cli" not in done.stderr
    assert str(script) in done.stderr
    assert done.stderr.splitlines()[-1].startswith(last)


def test_a_script_that_exits_is_profiled(script):
    script.with_name("beside.py").write_text("STATUS = 3\n")
    script.write_text(f"{SCRIPT}import beside\nsys.exit(beside.STATUS)\n")
    done = command(script)
    assert done.returncode == 3
    assert "add:single" in done.stdout
