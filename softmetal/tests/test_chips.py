"""The table of chips, and that it can be read where nothing else of softmetal works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from softmetal.chips import chips

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
