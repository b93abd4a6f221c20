"""The table of chips, and that it can be read where nothing else of softmetal works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from softmetal.chips import chip_of_device, chips

ALONE = """
import sys
for name in ("ziglang", "numpy"):
    sys.modules[name] = None  # an import of it fails
from softmetal.chips import chips
print(len(chips()), *(name for name in sys.modules if name.startswith("softmetal")))
"""


@pytest.mark.parametrize("name", chips())
def test_every_chip_is_described(name):
    chip = chips()[name]
    assert chip.name == name
    assert 7 <= chip.family <= 10
    assert chip.memory
    assert list(chip.memory) == sorted(set(chip.memory))
    # Every core has 128 units, each of two operations a clock of 1.2 to 1.7 GHz.
    assert 1.2e9 < chip.fp32_peak / (chip.cores * 128 * 2) < 1.7e9
    assert 60e9 < chip.bandwidth < 900e9


def test_larger_chips_of_a_generation_have_more():
    for small, large in (("M1", "M1 Pro"), ("M2 Pro", "M2 Max"), ("M3 Max", "M3 Ultra")):
        a, b = chips()[small], chips()[large]
        assert (a.cores, a.bandwidth, a.fp32_peak) < (b.cores, b.bandwidth, b.fp32_peak)
        assert a.memory[-1] < b.memory[-1]


def test_the_table_needs_nothing_else():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    count, *modules = done.stdout.split()
    assert int(count) == len(chips())
    assert set(modules) == {"softmetal", "softmetal.errors", "softmetal.chips"}


# Apple's and others' published figures: cores of the GPU, GB/s, TFLOP/s of float32 where known.
SOLD = [
    ("Apple M1", 7, 68.3, 2.29),
    ("Apple M1 Max", 24, 409.6, 7.96),
    ("Apple M2 Pro", 16, 204.8, 5.73),
    ("Apple M3 Max", 30, 300, 10.6),
    ("Apple M3 Ultra", 60, 819, 21.2),
    ("Apple M4 Max", 32, 410, 12.9),
    ("Apple M4 Max", 40, 546, 16.2),
]


@pytest.mark.parametrize(("name", "cores", "bandwidth", "peak"), SOLD)
def test_chips_with_fewer_cores(name, cores, bandwidth, peak):
    chip = chip_of_device(name, cores)
    assert (chip.cores, chip.like) == (cores, None)
    assert chip.bandwidth / 1e9 == pytest.approx(bandwidth, rel=0.03)
    assert chip.fp32_peak / 1e12 == pytest.approx(peak, rel=0.01)


def test_matrix_units_are_the_m5_s():
    """1,024 operations a core and cycle: about 16 and 65 TFLOP/s."""
    assert {name for name, chip in chips().items() if chip.matrix_peak} == {
        "M5",
        "M5 Pro",
        "M5 Max",
    }
    assert chips()["M5"].matrix_peak / 1e12 == pytest.approx(16.2, rel=0.01)
    assert chip_of_device("Apple M5 Max", 20).matrix_peak / 1e12 == pytest.approx(32.3, rel=0.01)


@pytest.mark.parametrize(
    ("name", "cores", "like", "times"),
    [
        ("Apple M6", None, "M5", 1),
        ("M7 Pro", None, "M5 Pro", 1),
        ("Apple M6 Max", 48, "M5 Max", 48 / 40),
        ("Apple M5 Ultra", None, "M5 Max", 2),
        ("Apple M0", None, None, 0),
        ("Apple M12 Ultra", None, "M5 Max", 2),
        ("Apple Paravirtual device", None, None, 0),
        ("NVIDIA H200", None, None, 0),
        ("Apple M3 Huge", None, None, 0),
    ],
)
def test_newer_chips_are_taken_to_be_like_the_newest(name, cores, like, times):
    chip = chip_of_device(name, cores)
    if like is None:
        assert chip is None
        return
    known = chips()[like]
    assert (chip.name, chip.like, chip.family) == (name.removeprefix("Apple "), like, known.family)
    assert chip.cores == (cores or known.cores * times)
    assert chip.fp32_peak == pytest.approx(known.fp32_peak * times)
    assert chip.matrix_peak == pytest.approx(known.matrix_peak * times)
    assert chip.bandwidth == known.bandwidth * (2 if "Ultra" in name else 1)
