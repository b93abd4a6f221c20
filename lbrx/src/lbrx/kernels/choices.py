"""Measured choices on disk: the fastest variant for each class of problems on a device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from lbrx import stored_json
from lbrx.metal.calibration_file import device_file, replace_file

FORMAT = 1
log = logging.getLogger("lbrx")

Choices = Mapping[tuple[str, str], str]
"""(family, shape class) to variant."""


def path(device: str) -> Path:
    """Where the choices for a device are kept."""
    return device_file("tuning", device)


def read(device: str) -> Choices:
    """The choices for a device; empty if there is no file or the file is not valid."""
    file = path(device)
    try:
        text = file.read_text()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as problem:
        _warn(file, str(problem))
        return {}
    try:
        return _parsed(text, device)
    except ValueError as problem:
        _warn(file, str(problem))
        return {}


def _parsed(text: str, device: str) -> Choices:
    stored = stored_json.parsed(text)
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    if stored.get("device") != device:
        raise ValueError(f"it is about {stored.get('device')!r}, not {device!r}")
    families = stored.get("choices")
    if not isinstance(families, dict) or not all(isinstance(f, dict) for f in families.values()):
        raise ValueError("its choices are not a table")
    variants = {
        (f, kind): variant for f, kinds in families.items() for kind, variant in kinds.items()
    }
    if not all(isinstance(variant, str) for variant in variants.values()):
        raise ValueError("its choices are not names of variants")
    return variants


def _warn(file: Path, reason: str) -> None:
    log.warning("%s is ignored, %s: run `lbrx tune` again or delete it", file, reason)


def write(device: str, choices: Choices) -> Path:
    """Replace the stored choices atomically."""
    families: dict[str, dict[str, str]] = {}
    for (family, kind), variant in sorted(choices.items()):
        families.setdefault(family, {})[kind] = variant
    file = path(device)
    replace_file(file, {"format": FORMAT, "device": device, "choices": families})
    return file
