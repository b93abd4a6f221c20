"""Tests that share mapped files with the device."""

from __future__ import annotations

import os

import pytest

# Linux maps files at multiples of its own pages, and SOFTMETAL_STRICT=host plays those of macOS:
# lbrx maps its own files again, at addresses that fit, and copies mappings of numpy's.
LARGE_PAGES = "host" in os.environ.get("SOFTMETAL_STRICT", "")
REASON = "numpy does not map files at multiples of 16 KiB on Linux"
shares_mapped_files = pytest.mark.skipif(LARGE_PAGES, reason=REASON)
