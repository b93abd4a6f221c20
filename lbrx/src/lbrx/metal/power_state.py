"""What slows a Mac down: its thermal state, and low power mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lbrx.metal import binding

THERMAL = ("nominal", "fair", "serious", "critical")  # NSProcessInfoThermalState, from 0 on


@dataclass(frozen=True)
class PowerState:
    """The state of a Mac at one moment."""

    thermal: str
    """nominal, fair, serious or critical: from serious on the system lowers clocks."""
    low_power: bool

    @property
    def slows(self) -> bool:
        """Whether measured times are longer than this Mac can do."""
        return self.low_power or self.thermal in THERMAL[2:]

    def __str__(self) -> str:
        return f"thermal state {self.thermal}" + (", low power mode" if self.low_power else "")


def power_state() -> PowerState | None:
    """The state now; None where the system does not tell it."""
    info: Any = binding.process_info()
    if info is None:
        return None
    state = int(info.thermalState())
    known = THERMAL[state] if 0 <= state < len(THERMAL) else f"number {state}"
    return PowerState(known, bool(info.isLowPowerModeEnabled()))
