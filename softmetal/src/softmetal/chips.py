"""Facts about Apple's chips, from `data/apple_chips.csv`. It needs nothing else of softmetal."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip with all its GPU cores. Rates are clocks times units, not measurements."""

    name: str  # "M3 Max"
    family: int  # n of MTLGPUFamilyApple<n>
    cores: int
    fp32_peak: float  # operations per second
    bandwidth: float  # bytes per second
    memory: tuple[int, ...]  # GiB that Macs with it are sold with, the least first


@cache
def chips() -> dict[str, Chip]:
    """The table by name, in the order of the file: `Apple M3 Max` without its first word."""
    text = Path(__file__).with_name("data").joinpath("apple_chips.csv").read_text()
    return {row["chip"]: _chip(row) for row in csv.DictReader(text.splitlines())}


def _chip(row: dict[str, str]) -> Chip:
    return Chip(
        name=row["chip"],
        family=int(row["gpu_family"].removeprefix("apple")),
        cores=int(row["gpu_cores"]),
        fp32_peak=float(row["fp32_tflops"]) * 1e12,
        bandwidth=float(row["memory_gb_per_s"]) * 1e9,
        memory=tuple(map(int, row["memory_gib"].split())),
    )
