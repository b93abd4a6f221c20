"""Host programs as people write them with PyObjC: wrappers, semaphores, chained handlers."""

from __future__ import annotations

import array
import ctypes
import struct
import threading
from typing import Any

import numpy as np
import pytest

import softmetal as Metal  # noqa: N812
from softmetal.api import foundation, libdispatch
from softmetal.errors import ValidationError

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                device float* c [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  c[i] = a[i] + b[i];
}
kernel void increment(device float* a [[buffer(0)]], uint i [[thread_position_in_grid]]) { a[i] += 1; }
kernel void scale(device float* a [[buffer(0)]], constant float& s [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) { a[i] *= s; }
"""
FOREVER = libdispatch.DISPATCH_TIME_FOREVER
N = 100


class Engine:
    """The wrapper that every project writes: one device, one queue, pipelines by name."""

    def __init__(self) -> None:
        self.device = Metal.MTLCreateSystemDefaultDevice()
        self.queue = self.device.newCommandQueue()
        made, error = self.device.newLibraryWithSource_options_error_(SOURCE, None, None)
        assert error is None
        self.pipelines = {
            name: self.device.newComputePipelineStateWithFunction_error_(
                made.newFunctionWithName_(name), None
            )[0]
            for name in made.functionNames()
        }

    def buffer(self, values: np.ndarray) -> Any:
        return self.device.newBufferWithBytes_length_options_(
            values, values.nbytes, Metal.MTLResourceStorageModeShared
        )

    def encode(self, name: str, buffers: list[Any], constant: Any = None) -> Any:
        commands = self.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        pipeline = self.pipelines[name]
        encoder.setComputePipelineState_(pipeline)
        places = foundation.NSRange(0, len(buffers))
        encoder.setBuffers_offsets_withRange_(buffers, [0] * len(buffers), places)
        if constant is not None:
            encoder.setBytes_length_atIndex_(constant, 4, len(buffers))
        width = min(pipeline.maxTotalThreadsPerThreadgroup(), 32)
        encoder.dispatchThreads_threadsPerThreadgroup_(
            Metal.MTLSizeMake(N, 1, 1), Metal.MTLSizeMake(width, 1, 1)
        )
        encoder.endEncoding()
        return commands

    def run(self, name: str, buffers: list[Any], constant: Any = None) -> None:
        commands = self.encode(name, buffers, constant)
        commands.commit()
        commands.waitUntilCompleted()
        assert commands.status() == Metal.MTLCommandBufferStatusCompleted
        assert commands.GPUEndTime() >= commands.GPUStartTime() > 0


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def view(buffer: Any) -> np.ndarray:
    return np.frombuffer(buffer.contents().as_buffer(buffer.length()), dtype=np.float32)


def test_a_wrapper_class(engine: Engine) -> None:
    a, b = np.arange(N, dtype=np.float32), np.ones(N, np.float32)
    buffers = [engine.buffer(a), engine.buffer(b), engine.buffer(b * 0)]
    engine.run("add", buffers)
    np.testing.assert_array_equal(view(buffers[2]), a + 1)


@pytest.mark.parametrize(
    "constant",
    [
        struct.pack("f", 3), bytearray(struct.pack("f", 3)), memoryview(struct.pack("f", 3)),
        np.array([3], np.float32), np.float32(3), ctypes.c_float(3), (ctypes.c_float * 1)(3),
        array.array("f", [3]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_set_bytes_takes(engine: Engine, constant: Any) -> None:
    buffer = engine.buffer(np.ones(N, np.float32))
    engine.run("scale", [buffer], constant)
    assert (view(buffer) == 3).all()


def test_triple_buffering_with_a_semaphore(engine: Engine) -> None:
    free = libdispatch.dispatch_semaphore_create(3)
    buffers = [engine.buffer(np.zeros(N, np.float32)) for _ in range(3)]
    in_flight: list[int] = []
    for frame in range(30):
        assert libdispatch.dispatch_semaphore_wait(free, FOREVER) == 0
        commands = engine.encode("increment", [buffers[frame % 3]])

        def finished(_: Any) -> None:
            in_flight.append(1)
            libdispatch.dispatch_semaphore_signal(free)

        commands.addCompletedHandler_(finished)
        commands.commit()
    commands.waitUntilCompleted()
    assert len(in_flight) == 30
    assert all((view(buffer) == 10).all() for buffer in buffers)


def test_handlers_chain_command_buffers(engine: Engine) -> None:
    buffer, done, left = engine.buffer(np.zeros(N, np.float32)), threading.Event(), [5]

    def another(_: Any = None) -> None:
        if not left[0]:
            done.set()
            return
        left[0] -= 1
        commands = engine.encode("increment", [buffer])
        commands.addCompletedHandler_(another)
        commands.commit()

    another()
    assert done.wait(60)
    assert (view(buffer) == 5).all()


def test_a_failing_handler_stops_nothing(engine: Engine, caplog: Any) -> None:
    commands, seen = engine.queue.commandBuffer(), []
    commands.addScheduledHandler_(lambda c: 1 / 0)
    commands.addCompletedHandler_(lambda c: 1 / 0)
    commands.addCompletedHandler_(lambda c: seen.append(c.status()))
    commands.commit()
    commands.waitUntilCompleted()
    assert seen == [Metal.MTLCommandBufferStatusCompleted]
    assert "ZeroDivisionError" in caplog.text


def test_threadgroup_memory_that_a_kernel_never_touches(engine: Engine) -> None:
    """llama.cpp sets its length to 0; leaving it out is a mistake."""
    source = """kernel void k(device float* a [[buffer(0)]], threadgroup char* s [[threadgroup(0)]],
                             uint i [[thread_position_in_grid]]) { if (a[i] > 9) s[0] = 1; a[i] = 2; }"""
    made, _ = engine.device.newLibraryWithSource_options_error_(source, None, None)
    make = engine.device.newComputePipelineStateWithFunction_error_
    pipeline, error = make(made.newFunctionWithName_("k"), None)
    assert error is None
    buffer, one = engine.buffer(np.ones(4, np.float32)), Metal.MTLSizeMake(4, 1, 1)
    commands = engine.queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    with pytest.raises(ValidationError, match="threadgroup argument `s`"):
        encoder.dispatchThreads_threadsPerThreadgroup_(one, one)
    encoder.setThreadgroupMemoryLength_atIndex_(0, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_(one, one)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None
    assert (view(buffer) == 2).all()


# ---- libdispatch --------------------------------------------------------------------------------


def test_semaphores_time_out() -> None:
    semaphore = libdispatch.dispatch_semaphore_create(1)
    assert libdispatch.dispatch_semaphore_wait(semaphore, libdispatch.DISPATCH_TIME_NOW) == 0
    assert libdispatch.dispatch_semaphore_wait(semaphore, libdispatch.DISPATCH_TIME_NOW) != 0
    soon = libdispatch.dispatch_time(libdispatch.DISPATCH_TIME_NOW, 1000)
    assert libdispatch.dispatch_semaphore_wait(semaphore, soon) != 0
    assert libdispatch.dispatch_semaphore_signal(semaphore) == 0  # no thread was waiting
    assert libdispatch.dispatch_semaphore_wait(semaphore, FOREVER) == 0


def test_a_serial_queue_keeps_its_order() -> None:
    queue, order = libdispatch.dispatch_queue_create(b"serial", None), list[int]()
    for n in range(100):
        libdispatch.dispatch_async(queue, lambda n=n: order.append(n))
    libdispatch.dispatch_sync(queue, lambda: order.append(100))
    assert order == list(range(101))
    nested = list[str]()
    libdispatch.dispatch_sync(
        queue, lambda: libdispatch.dispatch_sync(queue, lambda: nested.append("inner"))
    )
    assert nested == ["inner"]


def test_a_failing_block_does_not_stop_its_queue(caplog: Any) -> None:
    queue, seen = libdispatch.dispatch_queue_create(b"mine", None), list[int]()
    libdispatch.dispatch_async(queue, lambda: 1 / 0)
    libdispatch.dispatch_sync(queue, lambda: seen.append(1))
    assert seen == [1]
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(ZeroDivisionError):
        libdispatch.dispatch_sync(queue, lambda: 1 / 0)
    libdispatch.dispatch_sync(queue, lambda: seen.append(2))
    assert seen == [1, 2]


def test_groups() -> None:
    group, done = libdispatch.dispatch_group_create(), threading.Event()
    queue = libdispatch.dispatch_get_global_queue(libdispatch.DISPATCH_QUEUE_PRIORITY_DEFAULT, 0)
    gate, seen = threading.Event(), list[int]()
    for n in range(5):
        libdispatch.dispatch_group_async(group, queue, lambda n=n: (gate.wait(), seen.append(n)))
    libdispatch.dispatch_group_notify(group, queue, done.set)
    assert libdispatch.dispatch_group_wait(group, libdispatch.DISPATCH_TIME_NOW) != 0
    assert not done.is_set()
    gate.set()
    assert libdispatch.dispatch_group_wait(group, FOREVER) == 0
    assert done.wait(60)
    assert sorted(seen) == list(range(5))
    libdispatch.dispatch_group_enter(group)
    libdispatch.dispatch_group_leave(group)
    libdispatch.dispatch_group_notify(group, queue, gate.clear)


def test_later_and_again() -> None:
    queue, rung, seen = libdispatch.dispatch_get_main_queue(), threading.Event(), list[int]()
    soon = libdispatch.dispatch_time(libdispatch.DISPATCH_TIME_NOW, libdispatch.NSEC_PER_MSEC)
    libdispatch.dispatch_after(soon, queue, rung.set)
    libdispatch.dispatch_apply(4, queue, seen.append)
    assert seen == [0, 1, 2, 3]
    assert rung.wait(60)
    assert libdispatch.dispatch_time(FOREVER, 5) == FOREVER
