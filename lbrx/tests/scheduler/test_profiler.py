"""Profiles: records, tables, traces and plots."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import lbrx


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
    assert modelled.times[0] == pytest.approx(seen.records[0].nbytes / 410e9, rel=0.05)
    with pytest.raises(lbrx.DeviceError, match=r"no chip 'M9'.*M3 Max"):
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
    path.write_text("no json")
    with lbrx.profile() as again:
        pass
    assert again.roofline.device == first.device
    assert json.loads(path.read_text())["version"] == 1


def test_command_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import lbrx, sys\nprint((lbrx.ones((4,)) + 1).tolist(), sys.argv[1:])\n")
    command = [sys.executable, "-m", "lbrx", "profile", "--chip", "M1", str(script), "--own", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[2.0, 2.0, 2.0, 2.0] ['--own', 'x']")
    assert "add:single" in done.stdout
    assert "M1 (modelled)" in done.stdout
    failed = subprocess.run(
        [*command[:4], "nothing.py"], capture_output=True, text=True, check=False
    )
    assert (failed.returncode, failed.stderr) == (
        1,
        "lbrx: nothing.py is not a file: give a Python script\n",
    )
