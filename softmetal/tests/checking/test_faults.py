"""Every seeded fault is found by its mode; every corrected twin is clean under all of them."""

from __future__ import annotations

import re

import pytest
from fault_host import ALL_MODES, run_fault
from fault_model import MARK, Fault
from faults import FAULTS

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")

EVERY = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
PLACE = re.compile(r"program_source:(\d+):\d+")


def places(finding: str) -> set[int]:
    return {int(line) for line in PLACE.findall(finding)}


def test_the_table_is_whole():
    assert len(FAULTS) >= 45
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert MARK in fault.faulty, fault.name
        assert (fault.host is None) != (fault.launch is None), fault.name
        assert fault.host or fault.faulty != fault.fixed.replace("fixed(", "faulty("), fault.name


def assert_found(fault: Fault, findings: list[str]) -> None:
    assert findings, "nothing was found"
    first = findings[0]
    assert first.startswith(f"{fault.mode}: "), first
    for kernel in fault.kernels:
        assert f"kernel '{kernel}'" in first
    assert fault.names in first
    named = places(first)
    assert named, f"no place in: {first}"
    assert named <= fault.lines, f"expected lines {fault.lines}: {first}"


@EVERY
def test_a_fault_is_found_by_its_mode(fault):
    assert_found(fault, run_fault(fault, False, fault.mode, seed=1))


@EVERY
def test_a_corrected_twin_is_clean(fault):
    for seed in (1, 2, 77):
        assert run_fault(fault, True, *ALL_MODES, seed=seed) == [], f"seed {seed}"


@pytest.mark.full
@EVERY
def test_a_fault_is_found_under_any_seed_and_with_all_modes(fault):
    for seed in range(10, 16):
        findings = run_fault(fault, False, *ALL_MODES, seed=seed)
        modes = {finding.partition(":")[0] for finding in findings}
        assert fault.mode in modes, f"seed {seed}: {findings}"
