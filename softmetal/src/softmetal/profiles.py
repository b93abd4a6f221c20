"""Apple's chips as profiles: what a soft device says of itself under SOFTMETAL_PROFILE.

A profile changes what programs are told and the limits they are held to, never how kernels run.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from softmetal.errors import SettingError

# The least memory that Macs with each chip are sold with, in GiB: a profile's unless one is given.
_LEAST_MEMORY = {
    "M1": 8, "M1 Pro": 16, "M1 Max": 32, "M1 Ultra": 64,
    "M2": 8, "M2 Pro": 16, "M2 Max": 32, "M2 Ultra": 64,
    "M3": 8, "M3 Pro": 18, "M3 Max": 36, "M3 Ultra": 96,
    "M4": 16, "M4 Pro": 24, "M4 Max": 36, "M5": 16,
}  # fmt: skip
_TIERS = {"": "g", "Pro": "s", "Max": "s", "Ultra": "d"}  # the last letter of applegpu_g15s
_MOST_MEMORY = 4096  # GiB


@dataclass(frozen=True, slots=True)
class Profile:
    """One chip, with an amount of memory."""

    chip: str  # "M3 Max"
    family: int  # n of MTLGPUFamilyApple<n>
    cores: int
    memory: int  # bytes
    threadgroup_memory: int = 32 << 10  # the same, like the rest below, from Apple7 to Apple10
    max_threads: int = 1024

    @property
    def name(self) -> str:
        """As SOFTMETAL_PROFILE has it: apple-m3-max."""
        return f"apple-{self.chip.lower().replace(' ', '-')}"

    @property
    def device_name(self) -> str:
        return f"Apple {self.chip}"

    @property
    def architecture(self) -> str:
        """What MTLArchitecture calls the GPU: applegpu_g13g is an M1's."""
        number, _, tier = self.chip.removeprefix("M").partition(" ")
        return f"applegpu_g{12 + int(number)}{_TIERS[tier]}"

    @property
    def working_set(self) -> int:
        return self.memory * 3 // 4

    @property
    def max_buffer(self) -> int:
        """Three quarters of the working set, as Macs of every size report."""
        return self.working_set * 3 // 4


@cache
def all_profiles() -> tuple[Profile, ...]:
    """Every chip of the table, in its order."""
    text = Path(__file__).with_name("data").joinpath("apple_chips.csv").read_text()
    return tuple(
        Profile(
            chip=row["chip"],
            family=int(row["gpu_family"].removeprefix("apple")),
            cores=int(row["gpu_cores"]),
            memory=_LEAST_MEMORY[row["chip"]] << 30,
        )
        for row in csv.DictReader(text.splitlines())
    )


def find(text: str) -> Profile | None:
    """The profile of `apple-m3-max` or, with 64 GiB, `apple-m3-max:64`; None of an empty text."""
    if not text:
        return None
    name, colon, memory = text.partition(":")
    found = next((profile for profile in all_profiles() if profile.name == name), None)
    if found is None:
        known = ", ".join(profile.name for profile in all_profiles())
        raise SettingError(f"SOFTMETAL_PROFILE={text!r} is not a profile: give one of {known}")
    if not colon:
        return found
    if not (memory.isascii() and memory.isdigit() and 1 <= int(memory) <= _MOST_MEMORY):
        raise SettingError(
            f"SOFTMETAL_PROFILE={text!r}: {memory!r} is not an amount of memory: give GiB as a "
            f"whole number up to {_MOST_MEMORY}, as in {name}:{found.memory >> 30}"
        )
    return replace(found, memory=int(memory) << 30)


def table() -> list[tuple[str, ...]]:
    """The profiles with a row of titles, for people."""
    titles = ("profile", "device", "family", "architecture", "GPU cores", "memory", "working set",
              "longest buffer")  # fmt: skip
    return [
        titles,
        *(
            (
                p.name,
                p.device_name,
                f"Apple{p.family}",
                p.architecture,
                str(p.cores),
                *(f"{size / 2**30:g} GiB" for size in (p.memory, p.working_set, p.max_buffer)),
            )
            for p in all_profiles()
        ),
    ]
