"""Measured speeds of devices on disk, beside the tuner's choices of variants."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lbrx import env, stored_json
from lbrx.device_info import Calibration

FORMAT = 3
log = logging.getLogger("lbrx")


def device_file(kind: str, device: str) -> Path:
    """The file that keeps what was measured of a device."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return env.cache_dir() / f"{kind}-{name}.json"


def replace_file(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        aside = Path(folder) / file.name
        aside.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(aside, file)


def path(device: str) -> Path:
    """Where the calibration of a device is kept."""
    return device_file("calibration", device)


def read(device: str) -> Calibration | None:
    """The calibration of a device; None if there is no file or the file is not valid."""
    file = path(device)
    try:
        return _parsed(stored_json.parsed(file.read_text()), device)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        log.warning("%s is ignored, %s: run `lbrx tune` again or delete it", file, problem)
        return None


def _parsed(stored: Any, device: str) -> Calibration:
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    if stored.get("device") != device:
        raise ValueError(f"it is about {stored.get('device')!r}, not {device!r}")
    products = stored.get("products")
    if not isinstance(products, dict):
        raise ValueError("its products are not a table")
    return Calibration(
        date=str(stored.get("date")),
        bandwidth=_rate(stored, "bandwidth"),
        fp32=_rate(stored, "fp32"),
        fp16=_rate(stored, "fp16"),
        dispatch=_rate(stored, "dispatch"),
        encoding=_rate(stored, "encoding"),
        simd_width=int(_rate(stored, "simd_width")),
        streaming=None if stored.get("streaming") is None else _rate(stored, "streaming"),
        products=tuple((name, _rate(products, name)) for name in products),
    )


def _rate(table: dict[str, Any], name: str) -> float:
    value = table.get(name)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"its {name} is {value!r}, not a positive number")
    return float(value)


def content_of(device: str, found: Calibration) -> dict[str, Any]:
    """A calibration as it is stored."""
    known = {"format": FORMAT, "device": device, **asdict(found)}
    return {**known, "products": dict(found.products)}


def adopt(stored: Any) -> tuple[str, Path]:
    """Store the content of another machine's calibration; returns its device and the file. Raises
    ValueError if it is not valid."""
    device = str(stored.get("device")) if isinstance(stored, dict) else ""
    return device, write(device, _parsed(stored, device))


def write(device: str, found: Calibration) -> Path:
    """Replace the stored calibration atomically."""
    file = path(device)
    replace_file(file, content_of(device, found))
    return file
