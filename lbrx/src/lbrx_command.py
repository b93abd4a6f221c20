"""The `lbrx` command, outside of the package so that Ctrl-C during its imports is handled too."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 + the signal's number, as in shells


def main() -> int:
    """Run the command line and return the exit status."""
    try:
        from lbrx.cli import main as run
    except KeyboardInterrupt:
        print("lbrx: interrupted", file=sys.stderr)
        return INTERRUPTED
    return run()
