"""Facts of the system and of its Metal device."""

from __future__ import annotations

import mmap
import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from lbrx.mac_report.report import Status
from lbrx.mac_report.steps import Recorder
from lbrx.metal import binding, devices
from lbrx.metal.device import default_device
from lbrx.process import memory_limit

PACKAGES = """
    lbrx softmetal numpy pyobjc-core pyobjc-framework-Metal pyobjc-framework-MetalPerformanceShaders
""".split()
# Selectors whose presence depends on the version of macOS.
OPTIONAL = (
    "architecture",
    "newResidencySetWithDescriptor_error_",
    "newLogStateWithDescriptor_error_",
)


def record_system(record: Recorder) -> None:
    with record.trying("system") as values:
        values.update(
            macos=platform.mac_ver()[0],
            system=platform.system(),
            release=platform.release(),
            machine=platform.machine(),
            python=platform.python_version(),
            processors=os.cpu_count(),
            memory=memory_limit(),
            page=mmap.PAGESIZE,
            soft=binding.SOFT,
        )
    with record.trying("packages") as values:
        values.update({name: _version(name) for name in PACKAGES})
    with record.trying("devices") as values:
        found = devices()
        for position, info in enumerate(found):
            record.add(f"device {position}", Status.OK, **asdict(info))
        values["count"] = len(found)
    with record.trying("selectors") as values:
        device = default_device()
        values.update({name: hasattr(device, name) for name in OPTIONAL})


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
