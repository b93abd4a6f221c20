"""The description of a device: this one, Apple's profiles, and the command line."""

from __future__ import annotations

import json
import os
import plistlib
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from lbrx.cli import main
from lbrx.cli.devices import table
from lbrx.metal import device, devices
from lbrx.metal.device import chips, default_device, describe, registry_cores

soft_only = pytest.mark.skipif(sys.platform == "darwin", reason="about the software device")


@pytest.mark.metal
def test_this_device():
    info = devices()[0]
    assert info.name
    assert info.max_threads >= 512
    assert info.max_buffer > 0
    assert 0 < info.memory_limit <= info.working_set * 3 // 2
    assert info.cores is None or info.cores > 0


@soft_only
def test_a_processor_is_not_a_chip(monkeypatch):
    monkeypatch.delenv("SOFTMETAL_PROFILE", raising=False)
    monkeypatch.setenv("SOFTMETAL_THREADS", "3")
    info = devices()[0]
    assert (info.chip, info.bandwidth, info.fp32_peak) == (None, None, None)
    assert not info.simd_hardware
    assert info.soft
    assert info.cores == 3


@soft_only
@pytest.mark.parametrize("name", chips())
def test_every_profile(name, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_PROFILE", f"apple-{name.lower().replace(' ', '-')}")
    info, chip = devices()[0], chips()[name]
    assert (info.name, info.chip) == (f"Apple {name}", name)
    assert (info.cores, info.family) == (chip.cores, chip.family)
    assert (info.bandwidth, info.fp32_peak) == (chip.bandwidth, chip.fp32_peak)
    assert info.simd_hardware
    assert info.simdgroup_matrix
    assert info.bfloat
    assert info.native_bfloat == (chip.family >= 9)
    assert info.threadgroup_memory == 32 << 10


PROGRAM = """
import numpy as np
from lbrx.metal import context
gpu = context()
buffer, always = gpu.upload(np.zeros(100, np.uint8)), np.float32([1, 0]).tobytes()
pipeline = gpu.shaders.pipeline("random", "random_bernoulli_bool")
gpu.queue.dispatch(pipeline, [buffer, bytes(16), always], (25, 1, 1), (32, 1, 1))
assert (buffer.array() == 1).all()
print(gpu.info.name, gpu.info.working_set >> 30)
"""


@soft_only
@pytest.mark.parametrize(
    ("profile", "text"),
    [
        ("apple-m1", "Apple M1 6"),
        ("apple-m3-max:64", "Apple M3 Max 48"),
        ("apple-m5", "Apple M5 12"),
    ],
)
def test_work_under_a_profile(profile, text, lbrx_cache):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "SOFTMETAL_PROFILE": profile, "LBRX_CACHE": lbrx_cache},
    )
    assert done.stdout.strip() == text, done.stderr


def test_the_table_of_chips():
    """Apple's own figures of two chips."""
    assert len(chips()) == 18
    first, large = chips()["M1"], chips()["M2 Ultra"]
    assert (first.family, first.cores, first.memory) == (7, 8, (8, 16))
    assert (large.family, large.cores, large.memory) == (8, 76, (64, 128, 192))
    assert large.bandwidth == pytest.approx(800e9, rel=0.03)
    assert large.fp32_peak == pytest.approx(27.2e12)


def test_the_registry_s_count_of_cores():
    entries = [{"IOClass": "AGXAcceleratorG13X", "gpu-core-count": 14}]
    assert registry_cores(plistlib.dumps(entries)) == 14
    assert registry_cores(plistlib.dumps([{"IOClass": "other"}])) is None
    assert registry_cores(b"") is None
    assert registry_cores(b"no list") is None


# ---- lbrx devices ----


def test_devices_as_json(capsys):
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [asdict(info) for info in devices()]


def test_devices_as_a_table(capsys):
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    best = devices()[0]
    played = " (softmetal)" if best.soft and best.chip else ""
    assert lines[0].split(maxsplit=1) == ["device", f"{best.name}{played}"]


def test_the_table_says_what_is_soft_and_what_is_modelled():
    info = replace(devices()[0], soft=True, name="Apple M2", chip="M2", bandwidth=102.4e9)
    rows = dict(table(info))
    assert rows["device"] == "Apple M2 (softmetal)"
    assert rows["memory bandwidth"] == "102.4 GB/s (chip table)"


@soft_only
def test_a_wrong_setting_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m0")
    assert main(["devices"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lbrx: SOFTMETAL_PROFILE='apple-m0' is not a profile")
    assert error.count("\n") == 1


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "lbrx", "devices", "--help"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "Show the Metal devices and what they can do." in done.stdout


@pytest.mark.parametrize(
    ("name", "cores", "chip", "like", "bandwidth", "peak"),
    [
        ("Apple M3 Max", 30, "M3 Max", None, 307.2, 10.6),
        ("Apple M3 Max", 40, "M3 Max", None, 409.6, 14.1),
        ("Apple M9 Max", 48, "M9 Max", "M5 Max", 614, 19.4),
        ("Apple M9", None, "M9", "M5", 153.6, 4.04),
    ],
)
def test_rates_by_the_cores_that_a_mac_has(
    name, cores, chip, like, bandwidth, peak, monkeypatch, capsys
):
    """And of chips that are newer than the table: they say what they are taken to be."""
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m3-max")
    made = default_device()
    monkeypatch.setattr(type(made), "name", lambda self: name)
    monkeypatch.setattr(device, "_cores", lambda *given: cores)
    info = describe(made)
    assert (info.chip, info.like, info.cores) == (chip, like, cores or 10)
    assert info.bandwidth / 1e9 == pytest.approx(bandwidth)
    assert info.fp32_peak / 1e12 == pytest.approx(peak, rel=0.01)
    rows = dict(table(info))
    assert ("M9" in rows["FP32 peak"]) == (like is not None)
    if like:
        assert f"{chip} is not in the chip table, taken as {like}" in rows["memory bandwidth"]
