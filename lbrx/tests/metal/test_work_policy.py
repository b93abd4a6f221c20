"""lbrx.policy: where command buffers end, the thread's class of service, and equal bits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from test_metal_queue import GROUP, kernel

import lbrx
from lbrx.errors import LbrxError
from lbrx.metal import work_policy
from lbrx.metal.command_queue import CommandQueue
from lbrx.metal.work_policy import POLICIES, ThreadService


def lengths(gpu, count):
    """Operations of each command buffer that `count` kernels take on an idle device."""
    queue = CommandQueue(gpu.device.newCommandQueue(), 8)
    buffer = gpu.upload(np.zeros(100, np.uint32))
    gpu.queue.wait()  # which the other queue would not do for it
    tickets = [queue.dispatch(kernel(gpu, "add_one"), [buffer], (100, 1, 1), GROUP)
               for _ in range(count)]  # fmt: skip
    queue.wait()
    assert buffer.array(np.uint32).tolist() == [count] * 100
    return [tickets.count(ticket) for ticket in dict.fromkeys(tickets)]


def test_command_buffers_end_where_the_policy_says(gpu):
    assert lengths(gpu, 40) == [8] * 5
    with lbrx.policy("throughput"):
        assert lengths(gpu, 40) == [32, 8]
    with lbrx.policy("efficiency"):
        assert lengths(gpu, 40) == [32, 8]
    with lbrx.policy("latency"):
        found = lengths(gpu, 40)
    assert found == [4] * 10
    assert lengths(gpu, 40) == [8] * 5


def test_latency_lengthens_command_buffers_while_the_device_works(gpu, monkeypatch):
    monkeypatch.setattr(CommandQueue, "completed", lambda queue: 0)
    with lbrx.policy("latency"):
        queue = CommandQueue(gpu.device.newCommandQueue(), 20)
        buffer = gpu.upload(np.zeros(4, np.uint32))
        tickets = [queue.dispatch(kernel(gpu, "add_one"), [buffer], (4, 1, 1), GROUP)
                   for _ in range(24)]  # fmt: skip
    assert [tickets.count(ticket) for ticket in dict.fromkeys(tickets)] == [4, 10, 10]


@pytest.mark.parametrize("name", POLICIES)
def test_results_have_the_same_bits(name):
    x = lbrx.tensor(np.random.default_rng(8).standard_normal((70, 130)).astype("f4"))

    def work():
        return [((x @ x.T).softmax() * (i + 1)).sum(axis=0).numpy() for i in range(5)]

    want = work()
    with lbrx.policy(name):
        got = work()
    for one, other in zip(want, got, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_policy_that_does_not_exist():
    with pytest.raises(LbrxError, match="'fast' is not a policy: give one of latency, throughput,"):
        lbrx.policy("fast")


class System:
    """<pthread/qos.h> as macOS has it: a thread starts with the default class."""

    def __init__(self, refuses=False):
        self.service, self.refuses, self.calls = 0x15, refuses, []

    def qos_class_self(self):
        return self.service

    def pthread_set_qos_class_self_np(self, service, priority):
        self.calls.append((service, priority))
        if not self.refuses:
            self.service = service
        return int(self.refuses)


def test_the_thread_has_its_class_of_service_within_the_policy(monkeypatch):
    system = System()
    monkeypatch.setattr(work_policy, "thread_service", lambda: ThreadService(system))
    with lbrx.policy("latency"):
        assert system.service == 0x21
        with lbrx.policy("efficiency"):
            assert system.service == 0x11
        assert system.service == 0x21
    assert system.service == 0x15


def test_a_system_that_refuses_is_not_asked_again(monkeypatch):
    system = System(refuses=True)
    monkeypatch.setattr(work_policy, "thread_service", lambda: ThreadService(system))
    with lbrx.policy("throughput"):
        pass
    assert system.calls == [(0x19, 0)]


def test_only_macos_has_classes_of_service(monkeypatch):
    opened = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: opened.append(name) or System())
    monkeypatch.setattr(work_policy.sys, "platform", "linux")
    assert work_policy.thread_service() is None
    monkeypatch.setattr(work_policy.sys, "platform", "darwin")
    assert work_policy.thread_service().change(0x19) == 0x15
    assert opened == [None]
