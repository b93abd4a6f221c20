"""How a device runs recorded commands again: by indirect command buffers, or encoded each time."""

from __future__ import annotations

from typing import NamedTuple

from lbrx import env
from lbrx.device_info import DeviceInfo
from lbrx.errors import SettingError

# Before it, executing indirect commands faults unless their encoder has used their pipelines.
FIRST_FAMILY = 9
OFFSET_LIMIT = 1 << 32  # bytes: indirect commands of Apple's GPUs keep 32 bits of an offset


class ReplayChoice(NamedTuple):
    """`icb` or `encode`, with the reason."""

    kind: str
    reason: str


def replay_choice(info: DeviceInfo) -> ReplayChoice:
    """The way for a device. Raises SettingError if LBRX_REPLAY has an invalid value, or asks for
    indirect command buffers where they end the process or other programs."""
    wanted, by_device = env.replay(), _by_device(info)
    if wanted == "icb" and by_device.kind == "encode":
        raise SettingError(f"LBRX_REPLAY=icb: {by_device.reason}: give auto or encode")
    return by_device if wanted == "auto" else ReplayChoice(wanted, f"LBRX_REPLAY={wanted}")


def _by_device(info: DeviceInfo) -> ReplayChoice:
    if "virtual" in info.name.lower():
        return ReplayChoice("encode", "virtual machines break indirect command buffers")
    if info.soft and info.chip is None:
        return ReplayChoice("icb", "softmetal runs a list in one call")
    if info.family < FIRST_FAMILY:
        return ReplayChoice("encode", f"indirect commands may fault before Apple{FIRST_FAMILY}")
    return ReplayChoice("icb", f"Apple{FIRST_FAMILY} and later run indirect commands")
