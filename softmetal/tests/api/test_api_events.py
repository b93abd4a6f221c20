"""Events, listeners, fences, counters, residency sets and captures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from metal_programs import Program, read

import softmetal
from softmetal.errors import ValidationError


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


# ---- events ----


@pytest.mark.metal
def test_shared_events_between_host_and_queues(program):
    device = program.device
    event, other = device.newSharedEvent(), device.newCommandQueue()
    x = program.buffer(np.zeros(4, "i4"))
    late = other.commandBuffer()
    late.encodeWaitForEvent_value_(event, 2)
    blit = late.blitCommandEncoder()
    blit.fillBuffer_range_value_(x, (0, 16), 1)
    blit.endEncoding()
    late.encodeSignalEvent_value_(event, 3)
    late.commit()
    assert not event.waitUntilSignaledValue_timeoutMS_(3, 1)
    early = program.queue.commandBuffer()
    early.encodeSignalEvent_value_(event, 2)
    early.commit()
    assert event.waitUntilSignaledValue_timeoutMS_(3, 60_000)
    assert event.signaledValue() == 3
    late.waitUntilCompleted()
    assert read(x)[0] == 0x01010101


@pytest.mark.metal
def test_listeners_are_told_in_order(program, metal):
    event, done, seen = program.device.newSharedEvent(), threading.Event(), []
    listener = metal.MTLSharedEventListener.alloc().init()

    def block(which, value):
        seen.append((which.signaledValue() >= value, value))
        if value == 3:
            done.set()

    for value in (3, 1, 2):
        event.notifyListener_atValue_block_(listener, value, block)
    event.setSignaledValue_(1)
    commands = program.queue.commandBuffer()
    commands.encodeSignalEvent_value_(event, 3)
    commands.commit()
    assert done.wait(60)
    assert seen == [(True, 1), (True, 2), (True, 3)]


def test_listeners_on_a_dispatch_queue(program, caplog):
    from softmetal.api import libdispatch

    queue = libdispatch.dispatch_queue_create(b"mine", None)
    listener = softmetal.MTLSharedEventListener.alloc().initWithDispatchQueue_(queue)
    assert listener.dispatchQueue() is queue
    event, done = program.device.newSharedEvent(), threading.Event()
    event.notifyListener_atValue_block_(listener, 1, lambda e, v: 1 / 0)
    event.notifyListener_atValue_block_(listener, 2, lambda e, v: done.set())
    event.setSignaledValue_(2)
    assert done.wait(60)
    assert "notification block failed" in caplog.text


def test_event_handles(program):
    event = program.device.newSharedEvent()
    event.setLabel_("sync")
    handle = event.newSharedEventHandle()
    assert handle.label() == "sync"
    program.device.newSharedEventWithHandle_(handle).setSignaledValue_(4)
    assert event.signaledValue() == 4


def test_fences_and_plain_events_are_accepted(program):
    fence, event = program.device.newFence(), program.device.newEvent()
    commands = program.queue.commandBuffer()
    for step in range(3):
        encoder = commands.computeCommandEncoder()
        if step:
            encoder.waitForFence_(fence)
        encoder.updateFence_(fence)
        encoder.endEncoding()
    commands.encodeSignalEvent_value_(event, 1)
    commands.encodeWaitForEvent_value_(event, 1)
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None


WAITING = """
import sys, softmetal
device = softmetal.MTLCreateSystemDefaultDevice()
commands = device.newCommandQueue().commandBuffer()
event = device.newSharedEvent()
commands.encodeWaitForEvent_value_(event, 1)
commands.commit()
try:
    print("waiting", flush=True)
    commands.waitUntilCompleted()
except KeyboardInterrupt:
    event.setSignaledValue_(1)
    commands.waitUntilCompleted()
    print("interrupted", commands.status(), flush=True)
"""


def test_control_c_ends_a_wait():
    child = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    os.kill(child.pid, signal.SIGINT)
    assert child.stdout.read() == "interrupted 4\n"
    assert child.wait() == 0


# ---- counters, residency, capture ----


def test_timestamps(program):
    device = program.device
    descriptor = softmetal.MTLCounterSampleBufferDescriptor.new()
    descriptor.setCounterSet_(device.counterSets()[0])
    descriptor.setSampleCount_(4)
    samples, error = device.newCounterSampleBufferWithDescriptor_error_(descriptor, None)
    assert error is None
    encoding = softmetal.MTLComputePassDescriptor.computePassDescriptor()
    attachment = encoding.sampleBufferAttachments().objectAtIndexedSubscript_(0)
    attachment.setSampleBuffer_(samples)
    attachment.setStartOfEncoderSampleIndex_(0)
    attachment.setEndOfEncoderSampleIndex_(2)
    commands = program.queue.commandBuffer()
    encoder = commands.computeCommandEncoderWithDescriptor_(encoding)
    encoder.sampleCountersInBuffer_atSampleIndex_withBarrier_(samples, 1, True)
    encoder.endEncoding()
    resolved = program.buffer(np.zeros(3, "u8"))
    blit = commands.blitCommandEncoder()
    blit.resolveCounters_inRange_destinationBuffer_destinationOffset_(samples, (0, 3), resolved, 0)
    blit.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    times = np.frombuffer(samples.resolveCounterRange_((0, 3)), "u8")
    assert 0 < times[0] <= times[1] <= times[2]
    np.testing.assert_array_equal(read(resolved, "u8"), times)
    cpu, gpu = device.sampleTimestamps_gpuTimestamp_(None, None)
    assert cpu >= times[2]
    assert gpu >= times[2]
    with pytest.raises(ValidationError, match="4"):
        samples.resolveCounterRange_((2, 3))
    descriptor.setSampleCount_(0)
    nothing, error = device.newCounterSampleBufferWithDescriptor_error_(descriptor, None)
    assert nothing is None
    assert "at least 1" in error.localizedDescription()


def test_residency_sets(program):
    descriptor = softmetal.MTLResidencySetDescriptor.alloc().init()
    descriptor.setLabel_("weights")
    residency, error = program.device.newResidencySetWithDescriptor_error_(descriptor, None)
    assert error is None
    a, b = program.buffer(np.zeros(1024, "i4")), program.buffer(np.zeros(1, "i4"))
    residency.addAllocation_(a)
    residency.addAllocations_count_([a, b], 2)
    assert residency.allocationCount() == 2
    assert residency.allocatedSize() == 0
    residency.commit()
    assert residency.allocatedSize() == a.allocatedSize() + b.allocatedSize()
    residency.requestResidency()
    program.queue.addResidencySet_(residency)
    program.queue.removeResidencySet_(residency)
    residency.removeAllocation_(a)
    assert residency.allAllocations() == [b]
    assert residency.containsAllocation_(b)
    assert not residency.containsAllocation_(a)
    residency.removeAllAllocations()
    residency.endResidency()
    assert residency.label() == "weights"


def test_captures_say_that_there_are_none(program, caplog):
    manager = softmetal.MTLCaptureManager.sharedCaptureManager()
    scope = manager.newCaptureScopeWithCommandQueue_(program.queue)
    scope.beginScope()
    scope.endScope()
    manager.startCaptureWithScope_(scope)
    assert "cannot capture" in caplog.text
    started, error = manager.startCaptureWithDescriptor_error_(
        softmetal.MTLCaptureDescriptor.new(), None
    )
    assert not started
    assert error.domain() == softmetal.MTLCaptureErrorDomain
    assert not manager.isCapturing()
