"""Facts about Apple's chips, from `data/apple_chips.csv`. It needs nothing else of softmetal."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

# Max chips that are sold with fewer cores have fewer memory channels too, from the M3 on.
_FEWER_CHANNELS = {"M3 Max": 0.75, "M4 Max": 0.75, "M5 Max": 0.75}
# Operations of a core and cycle by matrix units of its own, which multiply halves.
_MATRIX_UNITS = {10: 1024}  # by family
_NAME = re.compile(r"(?:Apple )?M(\d+)(?: (Pro|Max|Ultra))?")


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip. Rates are clocks times units, not measurements."""

    name: str  # "M3 Max"
    family: int  # n of MTLGPUFamilyApple<n>
    cores: int
    fp32_peak: float  # operations per second
    bandwidth: float  # bytes per second
    memory: tuple[int, ...]  # GiB that Macs with it are sold with, the least first
    matrix_peak: float | None = None  # operations per second of matrix units, if it has them
    like: str | None = None  # the chip of the table that it is taken to be like

    def with_cores(self, cores: int) -> Chip:
        """The same chip as it is sold with another number of GPU cores."""
        share = cores / self.cores
        fewer = share < 1 and self.like is None
        return replace(
            self,
            cores=cores,
            fp32_peak=self.fp32_peak * share,
            bandwidth=self.bandwidth * (_FEWER_CHANNELS.get(self.name, 1.0) if fewer else 1.0),
            matrix_peak=self.matrix_peak and self.matrix_peak * share,
        )


@cache
def chips() -> dict[str, Chip]:
    """The table by name, in the order of the file: `Apple M3 Max` without its first word. Chips
    have all their GPU cores."""
    text = Path(__file__).with_name("data").joinpath("apple_chips.csv").read_text()
    return {row["chip"]: _chip(row) for row in csv.DictReader(text.splitlines())}


def chip_of_device(name: str, cores: int | None = None) -> Chip | None:
    """The chip of a device by its name, `Apple M3 Max`, and its number of GPU cores. One that the
    table lacks is taken to be like the newest of its kind, an Ultra like two Max, and says so.

    >>> chip_of_device("Apple M3 Max", cores=30).bandwidth / 1e9
    307.2
    >>> chip_of_device("Apple M7 Pro").like
    'M5 Pro'
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    plain = found[0].removeprefix("Apple ")
    chip = chips().get(plain) or _extrapolated(plain, int(found[1]), found[2])
    if chip is None or cores is None or cores == chip.cores:
        return chip
    return chip.with_cores(cores)


def _extrapolated(name: str, generation: int, tier: str | None) -> Chip | None:
    newest = max(int(known.removeprefix("M").partition(" ")[0]) for known in chips())
    kind = "" if tier is None else f" {'Max' if tier == 'Ultra' else tier}"
    like = chips().get(f"M{min(generation, newest)}{kind}")
    if like is None:
        return None
    chip = replace(like, name=name, like=like.name)
    if tier != "Ultra":
        return chip
    doubled = chip.with_cores(2 * chip.cores)  # two Max chips
    return replace(
        doubled, bandwidth=2 * chip.bandwidth, memory=tuple(2 * size for size in chip.memory)
    )


def _chip(row: dict[str, str]) -> Chip:
    family, cores = int(row["gpu_family"].removeprefix("apple")), int(row["gpu_cores"])
    units = _MATRIX_UNITS.get(family)
    return Chip(
        name=row["chip"],
        family=family,
        cores=cores,
        fp32_peak=float(row["fp32_tflops"]) * 1e12,
        bandwidth=float(row["memory_gb_per_s"]) * 1e9,
        memory=tuple(map(int, row["memory_gib"].split())),
        matrix_peak=units and units * cores * float(row["gpu_clock_ghz"]) * 1e9,
    )
