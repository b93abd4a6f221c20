"""The thermal state and low power mode of a Mac, played."""

from __future__ import annotations

import pytest

import lbrx
from lbrx.metal import binding
from lbrx.metal.power_state import PowerState, power_state


class ProcessInfo:
    """NSProcessInfo, whose thermal state is another one at each call."""

    def __init__(self, *states, low_power=False):
        self.states, self.low_power = list(states), low_power

    def thermalState(self):
        return self.states.pop(0)

    def isLowPowerModeEnabled(self):
        return self.low_power


@pytest.mark.parametrize(
    ("state", "low_power", "text", "slows"),
    [
        (0, False, "thermal state nominal", False),
        (1, False, "thermal state fair", False),
        (2, False, "thermal state serious", True),
        (3, True, "thermal state critical, low power mode", True),
        (0, True, "thermal state nominal, low power mode", True),
        (9, False, "thermal state number 9", False),
    ],
)
def test_states(state, low_power, text, slows, monkeypatch):
    info = ProcessInfo(state, low_power=low_power)
    monkeypatch.setattr(binding, "process_info", lambda: info)
    found = power_state()
    assert (str(found), found.slows) == (text, slows)


def test_only_a_mac_tells_it():
    assert power_state() is None


@pytest.mark.parametrize(("states", "noted"), [((0, 1), False), ((0, 2), True), ((3, 0), True)])
def test_a_profile_says_what_slowed_it(states, noted, monkeypatch):
    info = ProcessInfo(*states)
    monkeypatch.setattr(binding, "process_info", lambda: info)
    x = lbrx.ones((64, 64), device="metal")
    with lbrx.profile() as profile:
        lbrx.eval(x * 2)
    assert len(profile.power) == 2
    assert all(isinstance(state, PowerState) for state in profile.power)
    assert ("this device can be faster" in " ".join(profile.table().split())) == noted
