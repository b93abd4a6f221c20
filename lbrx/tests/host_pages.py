"""Tests that share mapped files with the device."""

from __future__ import annotations

import os

import pytest

# Linux maps files at multiples of its own pages, and SOFTMETAL_STRICT=host plays those of macOS.
shares_mapped_files = pytest.mark.skipif(
    "host" in os.environ.get("SOFTMETAL_STRICT", ""),
    reason="Linux does not map files at multiples of 16 KiB",
)
