"""Barriers between kernels only where they are needed."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
import softmetal
from lbrx.metal.buffer import Block, Buffer
from lbrx.metal.hazards import Hazards


def accesses(reads=(), writes=()):
    return [*((0, buffer, False) for buffer in reads), *((0, buffer, True) for buffer in writes)]


def test_commands_wait_for_what_they_touch():
    block = Block(None, 0, 100)
    low, high, all_of_it = (Buffer(block, *part, None) for part in ((0, 40), (40, 60), (0, 100)))
    other = Buffer(Block(None, 0, 100), 0, 100, None)
    hazards = Hazards()
    assert not hazards.admit(accesses(reads=[low], writes=[other]))
    assert not hazards.admit(accesses(reads=[low, high]))  # reads do not conflict
    assert hazards.admit(accesses(reads=[other]))  # after a write
    assert not hazards.admit(accesses(reads=[low]))  # the barrier came before
    assert hazards.admit(accesses(writes=[all_of_it]))  # after a read
    assert hazards.admit(accesses(writes=[low]))  # after a write
    assert not hazards.admit(accesses(writes=[high]))  # another range


def graph():
    """Kernels that depend on each other, and others that do not."""
    x = lbrx.tensor(np.arange(64, dtype=np.float32), device="metal")
    parts = [(x * n).cumsum() for n in (1.0, 2.0, 3.0)]
    return (parts[0] + parts[1]).cumsum() - parts[2]


def test_any_order_that_the_barriers_allow_is_right():
    with softmetal.checking("race"):
        got = graph().numpy()
    x = np.arange(64.0)
    np.testing.assert_allclose(got, np.cumsum(3 * np.cumsum(x)) - 3 * np.cumsum(x), rtol=1e-5)


def test_a_missing_barrier_is_found(monkeypatch):
    monkeypatch.setattr(Hazards, "admit", lambda self, accesses: False)
    with softmetal.checking("race"), pytest.raises(lbrx.DeviceError, match="no barrier"):
        graph().numpy()
