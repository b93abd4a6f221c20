"""Ctrl-C while commands are encoded."""

from __future__ import annotations

import signal
import threading
from collections import deque

import numpy as np
import pytest

import lbrx
from lbrx import metal
from lbrx.interrupt import UNINTERRUPTED


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_takes_effect_at_the_end():
    done = []

    def work():
        with UNINTERRUPTED:
            with UNINTERRUPTED:
                interrupt()
            done.append("inner")
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner"]
    with UNINTERRUPTED:
        pass
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_other_threads_are_never_interrupted():
    def hold():
        with UNINTERRUPTED:
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()


def test_what_a_program_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with UNINTERRUPTED:
            interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupting(deque):
    """Interrupt between the commit of a command buffer and its bookkeeping."""

    def append(self, item):
        interrupt()
        super().append(item)


def test_the_queue_goes_on(monkeypatch):
    x = lbrx.arange(64, dtype="float32", device="metal")
    x.numpy()
    queue = metal.context().queue
    with monkeypatch.context() as patch:
        patch.setattr(queue, "_in_flight", Interrupting(queue._in_flight))
        with pytest.raises(KeyboardInterrupt):
            (x * 2 + 1).numpy()
    np.testing.assert_array_equal((x * 3).numpy(), np.arange(64) * 3)
