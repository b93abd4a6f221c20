"""Energy as the platform counts it: RAPL on Linux, the energy model of Apple's chips on a Mac.
Where it cannot be read there is no figure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lbrx.bench.apple_energy import AppleEnergyMeter, find_energy_model

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter(Protocol):
    """Counts the energy of this machine."""

    def joules(self) -> float:
        """Energy since the first call."""


@dataclass
class PackageMeter:
    """The packages' counters, summed. A counter wraps around at its own maximum."""

    counters: tuple[Path, ...]
    _last: dict[Path, int] = field(default_factory=dict)
    _total: int = 0  # microjoules since the first reading

    def joules(self) -> float:
        """Energy since the first call, of all packages."""
        for folder in self.counters:
            now = int((folder / "energy_uj").read_text())
            gained = now - self._last.get(folder, now)
            if gained < 0:
                gained += int((folder / "max_energy_range_uj").read_text())
            self._last[folder] = now
            self._total += gained
        return self._total / 1e6


def find_meter(root: Path = POWERCAP) -> EnergyMeter | None:
    """The meter of this machine; None if it has none that this process may read."""
    if (model := find_energy_model()) is not None:
        return AppleEnergyMeter(model)
    found = []
    for folder in sorted(root.glob("intel-rapl:*")):
        if folder.name.count(":") != 1:  # a part of a package, which is counted in it
            continue
        try:
            int((folder / "energy_uj").read_text())
        except (OSError, ValueError):
            return None
        found.append(folder)
    return PackageMeter(tuple(found)) if found else None
