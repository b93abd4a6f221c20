"""What another object of a dead cycle keeps in its `__del__` still works, and ends once, later."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import numpy as np
import pytest
from metal_programs import SOURCE, read

import softmetal
from softmetal.api.device import MTLDevice, _executor
from softmetal.lifetime import AtDeallocation, Untracked

SHARED, PRIVATE = 0, softmetal.MTLResourceStorageModePrivate
ENDS = ("free", "free_event", "free_queue", "forget", "unload")


class Recording:
    """An executor that counts what is given back to it."""

    def __init__(self, executor):
        self._executor = executor
        self.ended = Counter()

    def __getattr__(self, name):
        method = getattr(self._executor, name)
        if name not in ENDS:
            return method

        def end(handle, *others):
            self.ended[name] += 1
            method(handle, *others)

        return end


@pytest.fixture
def device():
    gc.freeze()  # collections below look at the objects of the test only
    yield MTLDevice(Recording(_executor("cpu")))
    gc.unfreeze()


def filled(device, buffer, value):
    """Whether a copy on the device and the host see the same memory."""
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.blitCommandEncoder()
    encoder.fillBuffer_range_value_(buffer, (0, buffer.length()), value)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None
    return bytes(buffer.contents().as_buffer(buffer.length())) == bytes([value]) * buffer.length()


def pipeline(device):
    library, _ = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    function = library.newFunctionWithName_("add_one")
    return device.newComputePipelineStateWithFunction_error_(function, None)[0]


def adds_one(device, state):
    x = device.newBufferWithBytes_length_options_(np.arange(8, dtype="i4").tobytes(), 32, SHARED)
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(state)
    encoder.setBuffer_offset_atIndex_(x, 0, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_((8, 1, 1), (8, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    return list(read(x)) == list(range(1, 9))


def signals(device, event):
    commands = device.newCommandQueue().commandBuffer()
    commands.encodeSignalEvent_value_(event, event._reached() + 1)
    commands.commit()
    commands.waitUntilCompleted()
    return commands.status() == softmetal.MTLCommandBufferStatusCompleted


def heap(device):
    descriptor = softmetal.MTLHeapDescriptor.new()
    descriptor.setSize_(1 << 16)
    descriptor.setStorageMode_(softmetal.MTLStorageModeShared)
    return device.newHeapWithDescriptor_(descriptor)


def committed(device):
    queue = device.newCommandQueue()
    event = device.newSharedEvent()
    commands = queue.commandBuffer()
    commands.encodeWaitForEvent_value_(event, 1)
    commands.commit()
    event.setSignaledValue_(1)
    return commands


def completes(device, commands):
    commands.waitUntilCompleted()
    return commands.status() == softmetal.MTLCommandBufferStatusCompleted


def runs(device, queue):
    commands = queue.commandBuffer()
    commands.commit()
    return completes(device, commands)


KINDS = {
    "buffer": (lambda d: d.newBufferWithLength_options_(256, SHARED), filled, "free"),
    "heap": (
        heap,
        lambda d, h: filled(d, h.newBufferWithLength_options_(256, SHARED), 5),
        "free",
    ),
    "event": (lambda d: d.newEvent(), signals, "free_event"),
    "shared event": (lambda d: d.newSharedEvent(), signals, "free_event"),
    "pipeline": (pipeline, adds_one, "unload"),
    "queue": (lambda d: d.newCommandQueue(), runs, "free_queue"),
    "command buffer": (committed, completes, "forget"),
}


class Holder:
    """One object of a dead cycle, which the collector finalises before or after what it holds."""

    def __init__(self, make, kept, first):
        self.kept = kept
        if first:
            self.me = self
        self.item = make()
        self.me = self

    def __del__(self):
        self.kept.append(self.item)


def collected(make, first):
    """An item that was in a dead cycle and that a finaliser has kept."""
    kept = []
    Holder(make, kept, first)
    gc.collect()
    return kept.pop()


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_finaliser_keeps_works_and_ends_once(device, kind, times, older):
    make, works, end = KINDS[kind]
    box = [make(device)] if older else []  # the collector finalises older objects first
    item = collected(box.pop if older else lambda: make(device), first=not older)
    for _ in range(times - 1):  # a cache may hold it and lose it in a cycle again and again
        box.append(item)
        del item
        item = collected(box.pop, first=older)
    ended = device._executor.ended
    before = ended[end]
    arguments = (item, 7) if works is filled else (item,)
    assert works(device, *arguments)
    gc.collect()
    during = ended[end]
    assert before == 0
    del item, arguments
    assert ended[end] == during + 1
    gc.collect()
    assert ended[end] == during + 1


def test_a_part_of_a_heap_is_not_given_to_others_while_it_is_kept(device):
    parts = heap(device)
    kept = collected(lambda: parts.newBufferWithLength_options_(4096, SHARED), first=True)
    other = parts.newBufferWithLength_options_(4096, SHARED)
    assert kept.heapOffset() != other.heapOffset()
    assert parts.usedSize() == 8192
    kept.makeAliasable()
    assert parts.usedSize() == 4096
    del kept
    assert parts.usedSize() == 4096
    assert filled(device, other, 3)


@pytest.mark.parametrize("first", [False, True])
def test_a_deallocator_is_called_when_the_memory_is_not_used(device, first):
    calls, memory = [], bytearray(4096)

    def make():
        return device.newBufferWithBytesNoCopy_length_options_deallocator_(
            memory, 4096, SHARED, lambda pointer, length: calls.append(length)
        )

    kept = collected(make, first)
    assert calls == []
    assert filled(device, kept, 9)
    assert memory == b"\t" * 4096
    with pytest.raises(BufferError):  # it is exported
        memory.append(1)
    del kept
    assert calls == [4096]
    memory.append(1)


def test_an_unretained_buffer_that_is_kept_was_not_released(device):
    queue, commands = device.newCommandQueue(), []

    def make():
        buffer = device.newBufferWithLength_options_(64, SHARED)
        commands.append(queue.commandBufferWithUnretainedReferences())
        encoder = commands[0].blitCommandEncoder()
        encoder.fillBuffer_range_value_(buffer, (0, 64), 1)
        encoder.endEncoding()
        return buffer

    kept = collected(make, first=True)
    commands[0].commit()
    commands[0].waitUntilCompleted()
    assert commands[0].error() is None
    assert bytes(kept.contents().as_buffer(64)) == b"\1" * 64


def test_a_view_of_a_kept_buffer_does_not_outlive_it(device, monkeypatch):
    from softmetal.api import host

    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    views = []

    def make():
        buffer = device.newBufferWithLength_options_(64, SHARED)
        views.append(buffer.contents().as_buffer(64))
        return buffer

    before = len(host.findings)
    kept = collected(make, first=True)
    assert host.findings[before:] == []
    del kept
    assert len(host.findings) == before + 1
    del host.findings[before:]


def test_a_kept_event_notifies(device):
    import threading

    told = threading.Event()
    listener = softmetal.MTLSharedEventListener.alloc().init()

    def make():
        event = device.newSharedEvent()
        event.notifyListener_atValue_block_(listener, 1, lambda *_: told.set())
        event._listener.join(0.2)  # it refers to the event at times
        return event

    kept = collected(make, first=True)
    kept.notifyListener_atValue_block_(listener, 2, lambda *_: told.set())
    kept.setSignaledValue_(2)
    assert told.wait(60)


# ---- the means ----


def test_untracked_objects_exist_until_their_last_reference_is_gone():
    ends = []

    class Ring:
        def __init__(self, end):
            self.end, self.me = end, self

    present = Untracked()
    reference = weakref.ref(present, ends.append)
    Ring((AtDeallocation(ends.append, 1), present))
    gc.collect()
    assert ends == [1]
    assert reference() is present
    del present
    assert ends == [1, reference]


def test_the_collector_is_told_from_a_deallocation():
    """What `ended` rests on, of every CPython that runs it."""
    seen = []

    class Each:
        def __del__(self):
            seen.append(gc.is_finalized(self))

    each = Each()
    del each
    each = Each()
    each.me = each
    del each
    gc.collect()
    assert seen == [False, True]
