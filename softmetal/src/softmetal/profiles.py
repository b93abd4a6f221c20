"""Apple's chips as profiles: what a soft device says of itself under SOFTMETAL_PROFILE.

A profile changes what programs are told and the limits they are held to, never how kernels run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from softmetal.chips import chips
from softmetal.errors import SettingError

_TIERS = {"": "g", "Pro": "s", "Max": "s", "Ultra": "d"}  # the last letter of applegpu_g15s
_MOST_MEMORY = 4096  # GiB
_VIRTUAL = "Paravirtual device"


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
    def virtual(self) -> bool:
        """Whether it is the device of a virtual machine, as of GitHub's macOS runners."""
        return self.chip == _VIRTUAL

    @property
    def name(self) -> str:
        """As SOFTMETAL_PROFILE has it: apple-m3-max."""
        return f"apple-{self.chip.lower().replace(' ', '-')}"

    @property
    def device_name(self) -> str:
        """What MTLDevice.name() says: Apple M3 Max."""
        return f"Apple {self.chip}"

    @property
    def architecture(self) -> str:
        """What MTLArchitecture calls the GPU: applegpu_g13g is an M1's."""
        if self.virtual:
            return "paravirtual"
        number, _, tier = self.chip.removeprefix("M").partition(" ")
        return f"applegpu_g{12 + int(number)}{_TIERS[tier]}"

    @property
    def working_set(self) -> int:
        """Bytes of recommendedMaxWorkingSetSize(): three quarters of the memory."""
        return self.memory * 3 // 4

    @property
    def max_buffer(self) -> int:
        """Three quarters of the working set, as Macs of every size report."""
        return self.working_set * 3 // 4


@cache
def all_profiles() -> tuple[Profile, ...]:
    """Every chip of the table, with the least memory that it is sold with."""
    return tuple(
        Profile(chip.name, chip.family, chip.cores, chip.memory[0] << 30)
        for chip in chips().values()
    )


def virtual_device() -> Profile:
    """The GPU of a virtual machine of macOS with 7 GiB, which has none of Apple's GPU families."""
    return Profile(_VIRTUAL, family=0, cores=0, memory=7 << 30)


def find(text: str) -> Profile | None:
    """The profile of `apple-m3-max` or, with 64 GiB, `apple-m3-max:64`; None of an empty text."""
    if not text:
        return None
    name, colon, memory = text.partition(":")
    every = (*all_profiles(), virtual_device())
    found = next((profile for profile in every if profile.name == name), None)
    if found is None:
        known = ", ".join(profile.name for profile in every)
        raise SettingError(f"SOFTMETAL_PROFILE={text!r} is not a profile: give one of {known}")
    if not colon:
        return found
    if not (memory.isascii() and memory.isdigit() and 1 <= int(memory) <= _MOST_MEMORY):
        raise SettingError(
            f"SOFTMETAL_PROFILE={text!r}: {memory!r} is not an amount of memory: give GiB as an "
            f"integer up to {_MOST_MEMORY}, as in {name}:{found.memory >> 30}"
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
