"""What commands share: progress bars on a terminal."""

from __future__ import annotations

from lbrx.terminal.progress import progress_bars

__all__ = ["progress_bars"]
