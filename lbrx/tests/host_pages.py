"""Tests that share mapped files with the device."""

from __future__ import annotations

import os

import pytest

# Linux maps files at multiples of its own pages, and SOFTMETAL_STRICT=host plays those of macOS.
LARGE_PAGES = "host" in os.environ.get("SOFTMETAL_STRICT", "")
REASON = "Linux does not map files at multiples of 16 KiB"
shares_mapped_files = pytest.mark.skipif(LARGE_PAGES, reason=REASON)
