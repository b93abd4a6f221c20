"""Conversions and merges that end after some pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lbrx.convert.partial import PartialOutput

# The start of a program that kills itself after as many pieces as `dying.left` says.
DYING = """
import os, signal, sys
import lbrx.convert.pieces as work
from lbrx.convert.partial import PartialOutput

finished = PartialOutput.finished
def dying(self, piece, total):
    finished(self, piece, total)
    dying.left -= 1
    if not dying.left:
        os.kill(os.getpid(), signal.SIGKILL)
PartialOutput.finished = dying
"""


@contextmanager
def interrupted(after: int) -> Iterator[None]:
    """What runs within it is interrupted, as by Ctrl-C, once `after` pieces are finished."""
    finished, count = PartialOutput.finished, []

    def stop(self: PartialOutput, piece: int, total: int) -> None:
        if len(count) >= after:
            raise KeyboardInterrupt
        count.append(piece)
        finished(self, piece, total)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartialOutput, "finished", stop)
        with pytest.raises(KeyboardInterrupt):
            yield
