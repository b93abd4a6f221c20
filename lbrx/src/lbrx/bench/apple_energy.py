"""The energy model of Apple's chips by IOReport, a private library of macOS that needs no root."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CORE_FOUNDATION = "/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation"
IO_REPORT = "/usr/lib/libIOReport.dylib"
UTF8 = 0x08000100  # kCFStringEncodingUTF8
_JOULES = {"mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9}
_LONGEST = 128  # bytes of a name
# Channels that are sums: single cores and clusters have channels too. An Ultra's begin with a die.
_UNITS: dict[str, Callable[[str], bool]] = {
    "cpu": lambda name: name.endswith("CPU Energy"),
    "gpu": lambda name: name.endswith("GPU Energy"),
    "neural-engine": lambda name: name.startswith("ANE"),
    "memory": lambda name: name.startswith("DRAM"),
}

_P, _U64 = ctypes.c_void_p, ctypes.c_uint64
_CF_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "CFStringCreateWithCString": (_P, [_P, ctypes.c_char_p, ctypes.c_uint32]),
    "CFStringGetCString": (ctypes.c_ubyte, [_P, ctypes.c_char_p, ctypes.c_long, ctypes.c_uint32]),
    "CFDictionaryGetValue": (_P, [_P, _P]),
    "CFArrayGetCount": (ctypes.c_long, [_P]),
    "CFArrayGetValueAtIndex": (_P, [_P, ctypes.c_long]),
    "CFRelease": (None, [_P]),
}
_REPORT_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "IOReportCopyChannelsInGroup": (_P, [_P, _P, _U64, _U64, _U64]),
    "IOReportCreateSubscription": (_P, [_P, _P, ctypes.POINTER(_P), _U64, _P]),
    "IOReportCreateSamples": (_P, [_P, _P, _P]),
    "IOReportChannelGetChannelName": (_P, [_P]),
    "IOReportChannelGetUnitLabel": (_P, [_P]),
    "IOReportSimpleGetIntegerValue": (ctypes.c_int64, [_P, ctypes.c_int32]),
}


class EnergyModel:
    """The counters of a chip: what CPU, GPU, Neural Engine and memory have used since some time."""

    def __init__(self, foundation: ctypes.CDLL, reports: ctypes.CDLL) -> None:
        self._cf = _Calls(foundation, _CF_CALLS)
        self._io = _Calls(reports, _REPORT_CALLS)
        self._key = self._text("IOReportChannels")
        group = self._text("Energy Model")
        wanted = self._io.IOReportCopyChannelsInGroup(group, None, 0, 0, 0)
        self._cf.CFRelease(group)
        if not wanted:
            raise OSError("this system has no energy model")
        self._channels = _P()
        found = ctypes.byref(self._channels)
        self._subscription = self._io.IOReportCreateSubscription(None, wanted, found, 0, None)
        self._cf.CFRelease(wanted)
        if not self._subscription:
            raise OSError("this process may not read the energy model")

    def _text(self, text: str) -> Any:
        return self._cf.CFStringCreateWithCString(None, text.encode(), UTF8)

    def _read(self, string: Any) -> str:
        room = ctypes.create_string_buffer(_LONGEST)
        known = string and self._cf.CFStringGetCString(string, room, _LONGEST, UTF8)
        return room.value.decode("utf-8", "replace").strip() if known else ""

    def by_unit(self) -> dict[str, float]:
        """Joules of each unit that the system counts."""
        samples = self._io.IOReportCreateSamples(self._subscription, self._channels, None)
        if not samples:
            raise OSError("the energy model gives no samples")
        try:
            channels = self._cf.CFDictionaryGetValue(samples, self._key)
            found: dict[str, float] = {}
            for index in range(self._cf.CFArrayGetCount(channels) if channels else 0):
                channel = self._cf.CFArrayGetValueAtIndex(channels, index)
                name = self._read(self._io.IOReportChannelGetChannelName(channel))
                scale = _JOULES.get(self._read(self._io.IOReportChannelGetUnitLabel(channel)))
                unit = next((unit for unit, is_of in _UNITS.items() if is_of(name)), None)
                if unit is not None and scale is not None:
                    value = self._io.IOReportSimpleGetIntegerValue(channel, 0)
                    found[unit] = found.get(unit, 0.0) + value * scale
            return found
        finally:
            self._cf.CFRelease(samples)

    def close(self) -> None:
        """Give back what was made; the model cannot be read afterwards."""
        for made in (self._key, self._channels, self._subscription):
            self._cf.CFRelease(made)


@dataclass
class AppleEnergyMeter:
    """The model as a meter of all units."""

    model: EnergyModel
    _first: float | None = None

    def joules(self) -> float:
        """Energy since the first call."""
        now = sum(self.model.by_unit().values())
        if self._first is None:
            self._first = now
        return now - self._first


def find_energy_model(
    foundation: str = CORE_FOUNDATION, reports: str = IO_REPORT
) -> EnergyModel | None:
    """The energy model of this Mac; None elsewhere, and where it cannot be read."""
    if sys.platform != "darwin":
        return None
    try:
        model = EnergyModel(ctypes.CDLL(foundation), ctypes.CDLL(reports))
        return model if model.by_unit() else None
    except (OSError, AttributeError):  # no such library, or not such functions
        return None


class _Calls:
    """Functions of a library with their types."""

    def __init__(self, library: ctypes.CDLL, calls: dict[str, tuple[Any, list[Any]]]) -> None:
        self._library = library  # stays open
        self._functions = {name: getattr(library, name) for name in calls}
        for name, (result, arguments) in calls.items():
            self._functions[name].restype = result
            self._functions[name].argtypes = arguments

    def __getattr__(self, name: str) -> Any:
        return self._functions[name]
