"""Every LBRX_* variable, read in one place."""

from __future__ import annotations

import os
from pathlib import Path

from lbrx.errors import SettingError


def device() -> str:
    """LBRX_DEVICE: where tensors are made unless told otherwise; empty for the best there is."""
    name = os.environ.get("LBRX_DEVICE", "")
    if name not in ("", "cpu", "metal"):
        raise SettingError(f"LBRX_DEVICE={name!r} is no device: unset it or give 'cpu' or 'metal'")
    return name


def cache_dir() -> Path:
    """LBRX_CACHE: where pipelines and measured kernel choices are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("LBRX_CACHE") or base / "lbrx")
