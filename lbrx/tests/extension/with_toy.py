"""Programs that run where the toy distribution is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(folder: Path | None, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python with the packages of a folder, or without any more."""
    path = os.pathsep.join(filter(None, (str(folder or ""), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )
