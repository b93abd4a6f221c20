"""What a report says of the machine: enough to judge its figures, nothing that names its owner."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.metal import Context
from lbrx.process import memory_limit
from lbrx.version import VERSION


def describe(gpu: Context, threads: int) -> dict[str, Any]:
    """Facts for the report's `machine`."""
    return {
        "device": gpu.info.name,
        "software_metal": gpu.info.soft,
        "processor": _processor(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
        "threads": threads,
        "memory": memory_limit(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "lbrx": VERSION,
        "date": datetime.now(UTC).isoformat(" ", "minutes"),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
