"""What the checks refuse, that the text has the values and a remedy, and which calls make them."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from metal_programs import Program, read

from softmetal import validation as v
from softmetal.errors import ValidationError
from softmetal.types import Argument
from softmetal.validation import Binding

ARGUMENTS = (
    Argument("x", "buffer", 0, "device float4*", 16, 16, True, False),
    Argument("scratch", "threadgroup", 1, "threadgroup float*", 4, 4, True, False),
)
GOOD = (Binding(64, 16),)
LIMIT = 32768

# (check, arguments that pass, arguments that are refused, what the text must say)
TABLE = [
    (v.check_view, (8, 8), (9, 8), "9 bytes.*at most 8"),
    (v.check_view, (0, 8), (-1, 8), "-1"),
    (v.check_element, (0,), (-1,), "index -1.*pass 0 or more"),
    (v.check_slice, (slice(1, 3),), (slice(1, None),), "1:None:None.*give its end"),
    (v.check_slice, (slice(None, 3, 1),), (slice(0, 4, 2),), "0:4:2.*no step"),
    (v.check_elements, ((b"a", b"b"), 2), ((b"a",), 2), "1 values for 2 bytes"),
    (v.check_elements, ((b"a",), 1), ((97,), 1), "97 is not a byte string of length 1"),
    (v.check_buffer_index, (30,), (31,), "31.*0 to 30"),
    (v.check_buffer_index, (0,), (-1,), "-1.*0 to 30"),
    (v.check_buffer_index, (2, 3), (3, 3), "3.*0 to 2"),
    (v.check_buffer, (b"", "filling"), (None, "filling"), "filling.*None"),
    (v.check_length, (1,), (0,), "0 bytes.*at least 1"),
    (v.check_length, (1,), (-1,), "-1 bytes"),
    (v.check_storage, (0, {0, 2}, "a heap"), (1, {0, 2}, "a heap"), "managed.*heap.*shared or pri"),
    (v.check_storage, (2, {0, 2}, "a heap"), (9, {0, 2}, "a heap"), "9.*heap.*shared or private"),
    (v.check_cpu_visible, (0, "w"), (2, "w"), "'w'.*shared.*blit"),
    (v.check_managed, (1, "didModifyRange_"), (0, "didModifyRange_"), "didModify.*shared.*leave"),
    (v.check_offset, (63, 64), (64, 64), "64.*0 to 63"),
    (v.check_range, (2, 3, 5, "bytes"), (2, 4, 5, "bytes"), "bytes 2 to 6.*5"),
    (v.check_range, (0, 0, 0, "bytes"), (-1, 1, 5, "bytes"), "-1"),
    (v.check_inline_bytes, (4096, 4096), (4097, 4097), "4097.*4096.*buffer"),
    (v.check_inline_bytes, (4, 8), (8, 4), "8 bytes.*only 4"),
    (v.check_inline_bytes, (1, 1), (0, 0), "0 bytes"),
    (v.check_threadgroup_length, (32, 0, LIMIT), (20, 0, LIMIT), "20.*multiple of 16.*32"),
    (v.check_threadgroup_length, (0, 0, LIMIT), (32784, 0, LIMIT), "32784.*32768"),
    (v.check_threadgroup_length, (64, 0, 64), (80, 0, 64), "80.*64.*maxThreadgroupMemory"),
    (v.check_threadgroup_length, (16, 30, LIMIT), (16, 31, LIMIT), "31.*0 to 30"),
    (v.check_threadgroup_total, (1, (16, 16), "k", 33), (1, (16, 17), "k", 33), "`k`.*34.*33.*1 l"),
    (v.check_threadgroup, ((32, 32, 1), 1024, "k"), ((1536, 1, 1), 1024, "k"), "1536.*1024.*`k`"),
    (v.check_threadgroup, ((1, 1, 1), 1, "k"), ((32, 0, 1), 1024, "k"), "32 x 0 x 1.*at least 1"),
    (
        v.check_threadgroup,
        ((8, 8, 1), 64, "k", (8, 8, 1)),
        ((4, 8, 1), 64, "k", (8, 8, 1)),
        "requires",
    ),
    (v.check_simd_multiple, ((16, 2, 1), "k"), ((33, 1, 1), "k"), "33.*`k`.*32.*64"),
    (v.check_grid, ((1, 1, 2**32 - 1),), ((2**32, 1, 1),), "4294967296"),
    (v.check_grid, ((1, 1, 1),), ((1, -1, 1),), "-1"),
    (v.check_grid, ((1, 1, 1),), ((1, 0, 1),), "1 x 0 x 1.*leave the dispatch out"),
    (v.check_buffers, (ARGUMENTS, GOOD, "k"), (ARGUMENTS, (), "k"), "`x`.*setBuffer_offset"),
    (
        v.check_buffers,
        (ARGUMENTS, GOOD, "k"),
        (ARGUMENTS, (Binding(),), "k"),
        "`x`.*device float4.*`k`.*index 0.*setBuffer_offset_atIndex_",
    ),
    (
        v.check_buffers,
        (ARGUMENTS, GOOD, "k"),
        (ARGUMENTS, (Binding(64, 12),), "k"),
        "`x`.*`k`.*16 bytes.*12.*bind 16",
    ),
    (
        v.check_buffers,
        (ARGUMENTS, GOOD, "k"),
        (ARGUMENTS, (Binding(72, 64),), "k"),
        "`x`.*`k`.*8 bytes after.*multiple of 16",
    ),
    (
        v.check_buffers,
        (ARGUMENTS, GOOD, "k"),
        (ARGUMENTS, (Binding(64, 16, inline=True),), "k"),
        "`x`.*`k`.*setBytes.*read-only.*device const",
    ),
    (
        v.check_scratch,
        (ARGUMENTS, (0, 16), "k"),
        (ARGUMENTS, (), "k"),
        "`scratch`.*4 bytes.*0: call setThreadgroupMemoryLength_atIndex_",
    ),
    (v.check_indirect, (4, 12, 16), (8, 12, 16), "8 to 20"),
    (v.check_indirect, (4, 12, 16), (2, 12, 16), "multiple of 4"),
    (v.check_copy, (0, 8, 4, 12, 8), (4, 8, 0, 12, 8), "from bytes 4 to 12"),
    (v.check_copy, (0, 8, 0, 0, 0), (0, 8, 8, 12, 8), "to bytes 8 to 16"),
    (v.check_copy, (0, 8, 0, 8, 8), (0, 8, 0, 8, -1), "-1"),
    (v.check_copy, (1, 8, 2, 8, 5), (4, 8, 0, 8, 5), "from bytes 4 to 9"),
    (v.check_fill, (255,), (256,), "256.*0 to 255"),
    (v.check_open, (False, "a dispatch"), (True, "a dispatch"), "a dispatch after endEncoding"),
    (v.check_pipeline, (1, "a dispatch"), (0, "a dispatch"), "setComputePipelineState_"),
    (v.check_indirect_pipeline, (True, "k"), (False, "k"), "`k`.*setSupportIndirect"),
    (v.check_inherited, (False, "buffers", "call()"), (True, "buffers", "call()"), "buffers.*call"),
    (v.check_command_type, (96, 32), (32, 64), "type 64.*types 32.*setCommandTypes_.96"),
    (v.check_indirect_size, (1, 31), (0, 31), "0 commands.*at least 1"),
    (v.check_indirect_size, (1, 0), (1, 32), "32.*0 to 31"),
    (v.check_indirect_index, (3, 4), (4, 4), "4.*0 to 3.*setMaxKernelBufferBindCount_.5"),
    (v.check_uncommitted, (False, "commit"), (True, "commit"), "commit after commit"),
    (v.check_committed, (True, "wait"), (False, "wait"), "wait before commit"),
    (v.check_no_encoder, (False, "commit"), (True, "commit"), "endEncoding"),
    (v.check_heap_options, ((2, 0), (2, 0)), ((2, 0), (0, 0)), "resourceOptions"),
    (v.check_heap_options, ((0, 1), (0, 1)), ((0, 1), (0, 0)), "CPU cache mode 0.*resourceOptions"),
    (v.check_heap_type, (True, True), (True, False), "newBufferWithLength_options_offset_"),
    (v.check_heap_type, (False, False), (False, True), "MTLHeapTypePlacement"),
    (v.check_heap_offset, (512, 256), (300, 256), "300.*256.*512"),
    (v.check_event_value, (2**64 - 1,), (2**64,), "18446744073709551616"),
    (v.check_event_value, (0,), (-1,), "-1"),
    (v.check_signal, (3, 3), (2, 3), "2.*3 or more"),
    (v.check_fence, (True, False), (False, False), "updateFence_"),
    (v.check_fence, (True, False), (True, True), "same encoder"),
    (v.check_alive, ((), "commit"), (("'a'", "'b'", "'a'"), "commit"), "'a', 'b' before commit"),
    (v.check_max_threads, (0,), (2048,), "2048.*1024"),
]


@pytest.mark.parametrize(("check", "good", "bad", "text"), TABLE)
def test_refusals(check, good, bad, text):
    check(*good)
    with pytest.raises(ValidationError, match=text):
        check(*bad)


def test_every_check_is_in_the_table():
    names = {name for name in vars(v) if name.startswith("check_")}
    assert names == {row[0].__name__ for row in TABLE}


def test_a_refusal_is_a_value_error():
    with pytest.raises(ValueError, match="31"):
        v.check_buffer_index(31)


# ---- the calls that are refused ----

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct Settings { float4 scale; uint count; };
kernel void settings(device float* y [[buffer(0)]], constant Settings& s [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) { y[i] = s.scale.x * s.count; }
kernel void wide(device float4* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }
kernel void shared_struct(device float* y [[buffer(0)]],
                          threadgroup Settings* s [[threadgroup(0)]]) { y[0] = s->scale.x; }
kernel void large(device float* y [[buffer(0)]], threadgroup float* t [[threadgroup(0)]],
                  uint i [[thread_position_in_threadgroup]]) {
  threadgroup float own[4096]; own[i] = i; t[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = own[31 - i] + t[31 - i]; }
kernel void too_large(device float* y [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup float own[8193]; own[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = own[31 - i]; }
"""
ONE = (1, 1, 1)


class Bench(Program):
    """Objects of a program, created by the rows that need them."""

    def __init__(self, metal, device) -> None:
        super().__init__(metal, device)
        self.own, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
        assert self.own is not None, error

    def state(self, name):
        make = self.device.newComputePipelineStateWithFunction_error_
        return make(self.own.newFunctionWithName_(name), None)

    def memory(self, length, options=0):
        return self.device.newBufferWithLength_options_(length, options)

    def commands(self):
        return self.queue.commandBuffer()

    def compute(self, kernel=None, *lengths):
        """An encoder with a kernel and buffers of these lengths."""
        encoder = self.commands().computeCommandEncoder()
        if kernel is not None:
            state, error = self.state(kernel)
            assert state is not None, error
            encoder.setComputePipelineState_(state)
        for index, length in enumerate(lengths):
            encoder.setBuffer_offset_atIndex_(self.memory(length), 0, index)
        return encoder

    def blit(self):
        return self.commands().blitCommandEncoder()

    def heap(self, **properties):
        descriptor = self.metal.MTLHeapDescriptor.new()
        settings = {"Size": 4096, "StorageMode": self.metal.MTLStorageModeShared} | properties
        for name, value in settings.items():
            getattr(descriptor, f"set{name}_")(value)
        return self.device.newHeapWithDescriptor_(descriptor)

    def indirect(self, count=2, **properties):
        descriptor = self.metal.MTLIndirectCommandBufferDescriptor.new()
        settings = {
            "CommandTypes": self.metal.MTLIndirectCommandTypeConcurrentDispatch,
            "InheritBuffers": False,
            "InheritPipelineState": False,
            "MaxKernelBufferBindCount": 2,
        }
        for name, value in (settings | properties).items():
            getattr(descriptor, f"set{name}_")(value)
        make = self.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
        return make(descriptor, count, 0)


@pytest.fixture(scope="module")
def bench(metal, device):
    return Bench(metal, device)


def dispatch(encoder, grid=ONE, group=ONE):
    encoder.dispatchThreads_threadsPerThreadgroup_(grid, group)


def offset_by(bench, kernel, offset):
    encoder = bench.compute(kernel)
    encoder.setBuffer_offset_atIndex_(bench.memory(64), offset, 0)
    dispatch(encoder)


def inline(bench, kernel, *sizes):
    encoder = bench.compute(kernel, 64)
    for index, size in enumerate(sizes):
        encoder.setBytes_length_atIndex_(bytes(size), size, index)
    dispatch(encoder)


def scratch(bench, kernel, length):
    encoder = bench.compute(kernel, 128)
    encoder.setThreadgroupMemoryLength_atIndex_(length, 0)
    dispatch(encoder, (32, 1, 1), (32, 1, 1))


def whole_simdgroups(bench, threads):
    descriptor = bench.metal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(bench.own.newFunctionWithName_("wide"))
    descriptor.setThreadGroupSizeIsMultipleOfThreadExecutionWidth_(True)
    make = bench.device.newComputePipelineStateWithDescriptor_options_reflection_error_
    encoder = bench.compute(None, 16 * threads)
    encoder.setComputePipelineState_(make(descriptor, 0, None, None)[0])
    dispatch(encoder, (threads, 1, 1), (threads, 1, 1))


def ended(encoder):
    encoder.endEncoding()
    return encoder


def committed(commands):
    commands.commit()
    return commands


def with_open_encoder(commands):
    commands.computeCommandEncoder()
    return commands


def indirect_of(bench, execute=False, **properties):
    """A slot with a kernel and its buffer; or an encoder about to execute such slots."""
    commands = bench.indirect(**properties)
    command = commands.indirectComputeCommandAtIndex_(0)
    if not execute:
        command.setComputePipelineState_(bench.pipeline("add_one", indirect=True))
        command.setKernelBuffer_offset_atIndex_(bench.memory(16), 0, 0)
    return commands, command


def execute_inherited(bench):
    commands, command = indirect_of(bench, execute=True, InheritPipelineState=True)
    command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(ONE, ONE)
    encoder = bench.compute("wide", 64)
    encoder.executeCommandsInBuffer_withRange_(commands, (0, 1))


def execute_small_buffer(bench):
    descriptor = bench.metal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(bench.own.newFunctionWithName_("wide"))
    descriptor.setSupportIndirectCommandBuffers_(True)
    make = bench.device.newComputePipelineStateWithDescriptor_options_reflection_error_
    commands = bench.indirect()
    command = commands.indirectComputeCommandAtIndex_(0)
    command.setComputePipelineState_(make(descriptor, 0, None, None)[0])
    command.setKernelBuffer_offset_atIndex_(bench.memory(16), 4, 0)
    command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(ONE, ONE)
    bench.run(lambda e: e.executeCommandsInBuffer_withRange_(commands, (0, 1)))


def signals(bench, *values, before=0):
    event = bench.device.newSharedEvent()
    event.setSignaledValue_(before)
    commands = bench.commands()
    for value in values:
        commands.encodeSignalEvent_value_(event, value)


def host_signals(bench, *values):
    event = bench.device.newSharedEvent()
    for value in values:
        event.setSignaledValue_(value)


def fences(bench, *steps):
    """An encoder for each word: u updates, w waits."""
    fence, commands = bench.device.newFence(), bench.commands()
    for word in steps:
        encoder = commands.blitCommandEncoder()
        for letter in word:
            {"u": encoder.updateFence_, "w": encoder.waitForFence_}[letter](fence)
        encoder.endEncoding()


def no_copy(bench, options):
    make = bench.device.newBufferWithBytesNoCopy_length_options_deallocator_
    return make(bytearray(4096), 4096, options, None)


PRIVATE, MANAGED, MEMORYLESS = 32, 16, 48  # MTLResourceStorageMode...
_copy = "copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_"

# (name, a call that works or None, a call that is refused, what the text must say)
CALLS = [
    (
        "unbound",
        lambda b: dispatch(b.compute("settings", 64, 64)),
        lambda b: dispatch(b.compute("settings", 64)),
        "`s` .constant Settings *&. of kernel `settings` at index 1",
    ),
    (
        "small struct",
        lambda b: dispatch(b.compute("settings", 4, 32)),
        lambda b: dispatch(b.compute("settings", 4, 31)),
        "`s`.*32 bytes.*31",
    ),
    ("small element", None, lambda b: dispatch(b.compute("wide", 12)), "`x`.*16 bytes.*12"),
    ("small bytes", None, lambda b: inline(b, "settings", 16, 16), "`s`|`y`"),
    ("written bytes", None, lambda b: inline(b, "settings", 64, 32), "`y`.*setBytes.*read-only"),
    (
        "aligned offset",
        lambda b: offset_by(b, "wide", 48),
        lambda b: offset_by(b, "wide", 8),
        "`x`.*8 bytes after a multiple of 16",
    ),
    ("little left", None, lambda b: offset_by(b, "wide", 56), "`x`.*16 bytes and has 8"),
    (
        "offset of nothing",
        lambda b: b.compute("wide", 64).setBufferOffset_atIndex_(16, 0),
        lambda b: b.compute("wide").setBufferOffset_atIndex_(16, 0),
        "index 0.*no buffer",
    ),
    (
        "range of buffers",
        lambda b: b.compute().setBuffers_offsets_withRange_([None], [0], (0, 1)),
        lambda b: b.compute().setBuffers_offsets_withRange_([None], [0], (0, 2)),
        "0 to 2.*there are 1",
    ),
    ("pipeline", None, lambda b: b.compute().setComputePipelineState_(None), "None"),
    ("grid", None, lambda b: dispatch(b.compute("wide", 64), (0, 1, 1)), "0 x 1 x 1.*leave"),
    ("group", None, lambda b: dispatch(b.compute("wide", 64), ONE, (1, 0, 1)), "1 x 0 x 1"),
    (
        "threads",
        lambda b: dispatch(b.compute("wide", 1 << 14), (1024, 1, 1), (1024, 1, 1)),
        lambda b: dispatch(b.compute("wide", 64), ONE, (1, 1025, 1)),
        "1025 threads.*1024.*`wide`",
    ),
    (
        "whole simdgroups",
        lambda b: whole_simdgroups(b, 64),
        lambda b: whole_simdgroups(b, 48),
        "48 threads.*`wide`.*64",
    ),
    (
        "threadgroup memory",
        lambda b: scratch(b, "large", 16384),
        lambda b: scratch(b, "large", 16400),
        "`large`.*32784.*16384 static and 16400 set.*32768",
    ),
    (
        "threadgroup element",
        lambda b: scratch(b, "shared_struct", 32),
        lambda b: scratch(b, "shared_struct", 16),
        "`s`.*32 bytes.*16",
    ),
    ("threadgroup odd", None, lambda b: scratch(b, "large", 100), "100.*112"),
    (
        "indirect dispatch",
        None,
        lambda b: b.compute(
            "wide", 64
        ).dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup_(
            None, 0, ONE
        ),
        "indirect dispatch.*None",
    ),
    # ---- encoders and command buffers ----
    ("ended", None, lambda b: ended(b.compute()).endEncoding(), "after endEncoding"),
    (
        "second encoder",
        lambda b: b.commands().blitCommandEncoder(),
        lambda b: with_open_encoder(b.commands()).blitCommandEncoder(),
        "blitCommandEncoder while an encoder is open",
    ),
    ("open commit", None, lambda b: with_open_encoder(b.commands()).commit(), "commit while"),
    ("two commits", None, lambda b: committed(b.commands()).commit(), "commit after commit"),
    (
        "late encoder",
        None,
        lambda b: committed(b.commands()).computeCommandEncoder(),
        "computeCommandEncoder after commit",
    ),
    (
        "late handler",
        None,
        lambda b: committed(b.commands()).addCompletedHandler_(print),
        "addCompletedHandler_ after commit",
    ),
    ("early wait", None, lambda b: b.commands().waitUntilCompleted(), "before commit"),
    # ---- blits ----
    (
        "copy too long",
        lambda b: getattr(b.blit(), _copy)(b.memory(8), 3, b.memory(8), 0, 5),
        lambda b: getattr(b.blit(), _copy)(b.memory(8), 4, b.memory(8), 0, 5),
        "from bytes 4 to 9",
    ),
    (
        "copy from nothing",
        None,
        lambda b: getattr(b.blit(), _copy)(None, 0, b.memory(8), 0, 4),
        "copying from.*None",
    ),
    (
        "fill too long",
        lambda b: b.blit().fillBuffer_range_value_(b.memory(8), (3, 5), 1),
        lambda b: b.blit().fillBuffer_range_value_(b.memory(8), (4, 5), 1),
        "4 to 9",
    ),
    (
        "synchronize",
        lambda b: b.blit().synchronizeResource_(b.memory(8, MANAGED)),
        lambda b: b.blit().synchronizeResource_(b.memory(8)),
        "synchronizeResource_.*shared",
    ),
    # ---- memory ----
    ("no bytes", None, lambda b: b.memory(0), "0 bytes"),
    ("memoryless", None, lambda b: b.memory(16, MEMORYLESS), "memoryless.*shared or managed or"),
    (
        "private contents",
        lambda b: b.memory(16, MANAGED).contents(),
        lambda b: b.memory(16, PRIVATE).contents(),
        "private to the device",
    ),
    (
        "modified",
        lambda b: b.memory(16, MANAGED).didModifyRange_((0, 16)),
        lambda b: b.memory(16, PRIVATE).didModifyRange_((0, 16)),
        "didModifyRange_.*private",
    ),
    ("no copy", lambda b: no_copy(b, MANAGED), lambda b: no_copy(b, PRIVATE), "host's memory"),
    (
        "heap storage",
        lambda b: b.heap(StorageMode=2),
        lambda b: b.heap(StorageMode=1),
        "managed for a heap",
    ),
    ("empty heap", None, lambda b: b.heap(Size=0), "0 bytes"),
    (
        "heap options",
        lambda b: b.heap().newBufferWithLength_options_(16, 0),
        lambda b: b.heap().newBufferWithLength_options_(16, 1),
        "CPU cache mode 1",
    ),
    (
        "placement",
        lambda b: b.heap(Type=1).newBufferWithLength_options_offset_(16, 0, 256),
        lambda b: b.heap(Type=1).newBufferWithLength_options_(16, 0),
        "placement heap",
    ),
    (
        "automatic",
        None,
        lambda b: b.heap().newBufferWithLength_options_offset_(16, 0, 0),
        "automatic heap",
    ),
    (
        "heap offset",
        None,
        lambda b: b.heap(Type=1).newBufferWithLength_options_offset_(16, 0, 128),
        "128.*256",
    ),
    # ---- indirect command buffers ----
    ("no commands", lambda b: b.indirect(1), lambda b: b.indirect(0), "0 commands"),
    ("bind count", None, lambda b: b.indirect(MaxKernelBufferBindCount=32), "32.*0 to 31"),
    (
        "bound index",
        lambda b: indirect_of(b)[1].setKernelBuffer_offset_atIndex_(b.memory(16), 0, 1),
        lambda b: indirect_of(b)[1].setKernelBuffer_offset_atIndex_(b.memory(16), 0, 2),
        "2.*maxKernelBufferBindCount 2",
    ),
    (
        "inherited buffers",
        None,
        lambda b: indirect_of(b, InheritBuffers=True),
        "inherits its buffers.*setInheritBuffers_",
    ),
    (
        "inherited pipeline",
        None,
        lambda b: indirect_of(b, InheritPipelineState=True),
        "inherits its pipeline.*setInheritPipelineState_",
    ),
    (
        "command type",
        lambda b: indirect_of(b)[1].concurrentDispatchThreadgroups_threadsPerThreadgroup_(ONE, ONE),
        lambda b: indirect_of(b)[1].concurrentDispatchThreads_threadsPerThreadgroup_(ONE, ONE),
        "type 64.*types 32",
    ),
    (
        "indirect group",
        None,
        lambda b: indirect_of(b)[1].concurrentDispatchThreadgroups_threadsPerThreadgroup_(
            ONE, (2000, 1, 1)
        ),
        "2000 threads.*1024",
    ),
    (
        "indirect grid",
        None,
        lambda b: indirect_of(b)[1].concurrentDispatchThreadgroups_threadsPerThreadgroup_(
            (0, 1, 1), ONE
        ),
        "0 x 1 x 1",
    ),
    ("indirect inherits", None, execute_inherited, "`wide`.*setSupportIndirectCommandBuffers_"),
    ("indirect small buffer", None, execute_small_buffer, "`x`.*16 bytes and has 12"),
    (
        "indirect range",
        lambda b: b.compute().executeCommandsInBuffer_withRange_(b.indirect(), (0, 2)),
        lambda b: b.compute().executeCommandsInBuffer_withRange_(b.indirect(), (1, 2)),
        "1 to 3.*there are 2",
    ),
    # ---- events and fences ----
    ("signals", lambda b: signals(b, 1, 1, 2), lambda b: signals(b, 2, 1), "1.*from 2"),
    ("signal after host", None, lambda b: signals(b, 3, before=4), "3.*from 4"),
    ("host signals", lambda b: host_signals(b, 4, 5), lambda b: host_signals(b, 5, 4), "from 5"),
    (
        "event value",
        None,
        lambda b: b.commands().encodeWaitForEvent_value_(b.device.newEvent(), -1),
        "event value -1",
    ),
    ("fence", lambda b: fences(b, "u", "w"), lambda b: fences(b, "w", "u"), "nothing has updated"),
    ("own fence", lambda b: fences(b, "u", "wu"), lambda b: fences(b, "uw"), "same encoder"),
]


@pytest.mark.parametrize(("good", "bad", "text"), [row[1:] for row in CALLS],
                         ids=[row[0] for row in CALLS])  # fmt: skip
def test_calls_refuse(bench, good, bad, text):
    if good is not None:
        good(bench)
    with pytest.raises(ValidationError, match=text):
        bad(bench)


def test_too_much_static_threadgroup_memory_fails_the_pipeline(bench):
    state, error = bench.state("too_large")
    assert state is None
    text = error.localizedDescription()
    assert "`too_large` would use 32772 bytes" in text
    assert "the device has 32768" in text


BOTH_ENCODERS = ("updateFence_", "waitForFence_")
AFTER_THE_END = {
    "computeCommandEncoder": (
        *BOTH_ENCODERS,
        "setComputePipelineState_",
        "setBuffer_offset_atIndex_",
        "setBufferOffset_atIndex_",
        "setBytes_length_atIndex_",
        "setThreadgroupMemoryLength_atIndex_",
        "dispatchThreads_threadsPerThreadgroup_",
        "dispatchThreadgroups_threadsPerThreadgroup_",
        "memoryBarrierWithScope_",
        "memoryBarrierWithResources_count_",
        "useResource_usage_",
        "useResources_count_usage_",
        "useHeap_",
        "useHeaps_count_",
    ),
    "blitCommandEncoder": (*BOTH_ENCODERS, "fillBuffer_range_value_", _copy),
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in AFTER_THE_END.items() for name in names]
)
def test_an_ended_encoder_refuses_everything(bench, kind, name):
    encoder = ended(getattr(bench.commands(), kind)())
    arguments = {
        "dispatchThreads_threadsPerThreadgroup_": (ONE, ONE),
        "dispatchThreadgroups_threadsPerThreadgroup_": (ONE, ONE),
        "setBytes_length_atIndex_": (b"1234", 4, 0),
    }.get(name, (None, 0, 0, 0, 0)[: name.count("_")])
    with pytest.raises(ValidationError, match="after endEncoding"):
        getattr(encoder, name)(*arguments)


# ---- unretained references ----


def test_a_buffer_released_before_commit(bench):
    commands = bench.queue.commandBufferWithUnretainedReferences()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(bench.pipeline("add_one"))
    buffer = bench.memory(64)
    buffer.setLabel_("weights")
    encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    dispatch(encoder)
    encoder.endEncoding()
    del buffer
    gc.collect()
    with pytest.raises(ValidationError, match=r"'weights' before commit.*keep it"):
        commands.commit()


def held(bench, commands, event, buffer):
    """Work of `commands` on `buffer` that starts when the event is signalled."""
    commands.encodeWaitForEvent_value_(event, 1)
    blit = commands.blitCommandEncoder()
    blit.fillBuffer_range_value_(buffer, (0, 64), 7)
    blit.endEncoding()
    commands.commit()


@pytest.mark.parametrize("retained", [True, False])
def test_a_buffer_released_while_it_is_used(bench, retained):
    make = "commandBuffer" if retained else "commandBufferWithUnretainedReferences"
    commands, event = getattr(bench.queue, make)(), bench.device.newSharedEvent()
    buffer = bench.memory(64)
    held(bench, commands, event, buffer)
    del buffer
    gc.collect()
    event.setSignaledValue_(1)
    commands.waitUntilCompleted()
    if retained:
        assert commands.error() is None
    else:
        assert "of 64 bytes before the command buffer had completed" in str(commands.error())


def test_a_buffer_released_after_the_work(bench):
    commands, event = bench.queue.commandBufferWithUnretainedReferences(), bench.device.newEvent()
    buffer, done = bench.memory(64), bench.device.newSharedEvent()
    commands.encodeSignalEvent_value_(event, 1)
    held(bench, commands, event, buffer)
    after = bench.queue.commandBuffer()
    after.encodeSignalEvent_value_(done, 1)
    after.commit()
    assert done.waitUntilSignaledValue_timeoutMS_(1, 60_000)
    assert (read(buffer, "u1") == 7).all()
    del buffer
    gc.collect()
    commands.waitUntilCompleted()
    assert commands.error() is None


def test_work_on_arrays_of_the_host_is_checked_by_address(bench):
    if not bench.device.hasUnifiedMemory():
        pytest.skip("the device has its own, aligned copy of the array")
    array = np.zeros(64, "f4")[1:]  # 4 bytes into a multiple of 16
    make = bench.device.newBufferWithBytesNoCopy_length_options_deallocator_
    encoder = bench.compute("wide")
    encoder.setBuffer_offset_atIndex_(make(array, array.nbytes, 0, None), 0, 0)
    with pytest.raises(ValidationError, match="4 bytes after a multiple of 16"):
        dispatch(encoder)
