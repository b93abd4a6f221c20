"""The null executor records, and lets programs come to their end."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from softmetal.errors import ExecutionError
from softmetal.executors.null import NullExecutor
from softmetal.types import Artifact, Copy, Dispatch, Fill, Mode, Signal, Wait

ONE = (1, 1, 1)


def test_it_records_in_order_and_computes_nothing() -> None:
    executor = NullExecutor()
    kernel = executor.load(Artifact("k", Path("k.so"), Mode.FLAT, (), 0, 1024))
    assert kernel == executor.load(Artifact("k", Path("k.so"), Mode.FLAT, (), 0, 1024))
    address = executor.allocate(100)
    commands = [Dispatch(kernel, ONE, ONE, (address,)), Fill(address, 100, 1), Copy(0, 1, 2)]
    ticket = executor.submit(executor.new_queue(), commands)
    completion = executor.wait(ticket, None)
    assert completion is not None
    assert completion.error is None
    assert completion.start <= completion.end
    assert executor.commands == commands
    assert ctypes.string_at(address, 100) == bytes(100)
    executor.free(address, 100)


def test_signals_and_waits_are_honoured() -> None:
    executor = NullExecutor()
    queues = [executor.new_queue() for _ in range(2)]
    event = executor.new_event()
    waiting = executor.submit(queues[0], [Wait(event, 2), Signal(event, 3)])
    behind = executor.submit(queues[0], [Signal(event, 4)])
    assert executor.wait(waiting, 0) is None
    executor.signal_event(event, 1)
    assert executor.wait(waiting, 0) is None
    executor.submit(queues[1], [Signal(event, 2)])
    assert executor.wait(waiting, None)
    assert executor.wait(behind, None)
    assert executor.event_value(event) == 4
    assert executor.wait_event(event, 4, None)
    assert not executor.wait_event(event, 5, 0)
    assert executor.commands[0] == Signal(event, 2)


def test_memory_is_aligned_writable_and_refused_when_absurd() -> None:
    executor = NullExecutor()
    address = executor.allocate(40000)
    assert address % 16384 == 0
    ctypes.memset(address, 7, 40000)
    executor.free(address, 40000)
    with pytest.raises(MemoryError):
        executor.allocate(1 << 62)


def test_forgotten_tickets_are_unknown() -> None:
    executor = NullExecutor()
    ticket = executor.submit(executor.new_queue(), [])
    executor.forget(ticket)
    for call in (lambda: executor.wait(ticket, 0), lambda: executor.forget(ticket)):
        with pytest.raises(ExecutionError, match="unknown"):
            call()
