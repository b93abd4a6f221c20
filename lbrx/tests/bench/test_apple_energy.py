"""The energy model of Apple's chips, played by a library with IOReport's calls."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from lbrx.bench import apple_energy, energy
from lbrx.bench.apple_energy import AppleEnergyMeter, EnergyModel, find_energy_model
from lbrx.bench.timing import Effort, interleaved


@pytest.fixture
def played(tmp_path):
    """A library of its own for each test, whose samples begin anew."""
    source = Path(__file__).with_name("energy_model.c")
    output = tmp_path / "energy_model.so"
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        output,
        source,
    ]
    subprocess.run(command, check=True)
    return str(output)


def number(library, name):
    return ctypes.c_long.in_dll(library, name)


def test_units_are_sums_of_their_channels(played):
    library = ctypes.CDLL(played)
    model = EnergyModel(library, library)
    samples = [model.by_unit() for _ in range(3)]
    want = [
        {"cpu": 1.0, "gpu": 3.0, "neural-engine": 0.0, "memory": 0.1},
        {"cpu": 1.5, "gpu": 5.0, "neural-engine": 0.25, "memory": 0.2},
        {"cpu": 2.6, "gpu": 9.0, "neural-engine": 0.5, "memory": 0.3},
    ]
    assert samples == [pytest.approx(each) for each in want]
    assert number(library, "living").value == 3  # key, channels, subscription
    model.close()
    assert number(library, "living").value == 0


def test_the_meter_counts_from_its_first_reading(played):
    library = ctypes.CDLL(played)
    meter = AppleEnergyMeter(EnergyModel(library, library))
    assert [round(meter.joules(), 6) for _ in range(3)] == [0.0, 2.85, 8.3]


@pytest.mark.parametrize("refusal", [1, 2, 3])
def test_what_cannot_be_read_is_no_model(played, refusal, monkeypatch):
    monkeypatch.setattr(apple_energy.sys, "platform", "darwin")
    library = ctypes.CDLL(played)
    ctypes.c_int.in_dll(library, "refuses").value = refusal
    assert find_energy_model(played, played) is None


def test_it_is_looked_for_on_macs_alone(played, monkeypatch, tmp_path):
    assert find_energy_model(played, played) is None
    monkeypatch.setattr(apple_energy.sys, "platform", "darwin")
    assert find_energy_model(played, str(tmp_path / "missing.dylib")) is None
    empty = tmp_path / "empty.c"
    empty.write_text("int nothing;")
    other = tmp_path / "empty.so"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-shared", "-o", other, empty], check=True
    )
    assert find_energy_model(played, str(other)) is None
    assert find_energy_model(played, played).by_unit()["gpu"] == pytest.approx(5.0)


def test_timings_have_its_joules(played, monkeypatch, tmp_path):
    monkeypatch.setattr(apple_energy.sys, "platform", "darwin")
    monkeypatch.setattr(
        energy, "find_energy_model", lambda: find_energy_model(played, played), raising=True
    )
    meter = energy.find_meter(tmp_path)
    assert isinstance(meter, AppleEnergyMeter)
    timing = interleaved({"nothing": lambda: None}, Effort(2, 0.1), meter)["nothing"]
    assert timing.joules is not None
