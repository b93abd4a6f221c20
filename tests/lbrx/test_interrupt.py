"""Ctrl-C in the middle of work on the device."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

import lbrx
from lbrx.interrupt import UNINTERRUPTED
from lbrx.metal.command_queue import CommandQueue


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_takes_effect_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with UNINTERRUPTED:
            with UNINTERRUPTED:
                interrupt()
            done.append("inner")
        done.append("never")
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


@pytest.mark.parametrize("method", ["_end_encoder", "_reap", "_current", "_use", "_counted"])
def test_the_queue_goes_on(method, monkeypatch):
    """An interrupt at any place of it costs the work under way, and nothing after."""
    ordinary = getattr(CommandQueue, method)
    x = lbrx.arange(64, dtype="float32", device="metal")
    x.numpy()

    def interrupted(self, *given):
        monkeypatch.setattr(CommandQueue, method, ordinary)
        result = ordinary(self, *given)
        interrupt()
        return result

    monkeypatch.setattr(CommandQueue, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        (x * 2 + 1).numpy()
    np.testing.assert_array_equal((x * 3).numpy(), np.arange(64) * 3)
