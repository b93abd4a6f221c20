"""Where memory ends for `bounds`: of a buffer, of a part of a heap, of a declared extent."""

from __future__ import annotations

import pytest
from fault_host import CONCURRENT, Host, size
from fault_model import HEAD

import softmetal
from softmetal.errors import SoftmetalError

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")

LENGTHS = (3, 100, 1000, 5000)
BLUR = (
    HEAD
    + """
kernel void blur(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                 constant uint& last [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = (x[i] + x[min(i + 1, last)]) / 2;
}
kernel void back(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
  out[i] = (x[i] + x[int(i) - 1]) / 2;
}
"""
)


class Program:
    """Dispatches `blur` of `count` elements of memory that has room for more."""

    def __init__(self, count: int, last: int) -> None:
        self.host = Host(BLUR)
        self.count, self.last = count, last.to_bytes(4, "little")
        self.commands = self.host.commands()

    def encoder(self):
        return self.commands.computeCommandEncoderWithDispatchType_(CONCURRENT)

    def dispatch(self, encoder, kernel="blur"):
        encoder.setComputePipelineState_(self.host.pipeline(kernel))
        encoder.setBytes_length_atIndex_(self.last, 4, 2)
        encoder.dispatchThreads_threadsPerThreadgroup_(size((self.count,)), size((32,)))

    def findings(self, encoder):
        encoder.endEncoding()
        self.host.commit(self.commands)
        return self.host.findings()


def part_of(host, kind, count):
    """(buffer, offset) of `count` floats with memory behind them, declared or not."""
    if kind == "buffer":
        return host.buffer(count), 0
    if kind == "offset":  # the end of a buffer
        return host.buffer(count + 64), 256
    if kind in ("extent", "view"):  # a part of a buffer, which has to be declared
        return host.buffer(count + 128), 256 if kind == "view" else 0
    heap = host.heap(1 << 14)
    return heap.newBufferWithLength_options_(4 * count, heap.resourceOptions()), 0


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("kind", ["buffer", "offset", "extent", "view", "heap", "used heap"])
@pytest.mark.parametrize("over", [0, 1])
def test_the_end_of_memory(kind, count, over):
    with softmetal.checking("bounds"):
        program = Program(count, count - 1 + over)
        buffer, offset = part_of(program.host, kind, count)
        encoder = program.encoder()
        encoder.setBuffer_offset_atIndex_(buffer, offset, 0)
        encoder.setBuffer_offset_atIndex_(program.host.buffer(count), 0, 1)
        if kind in ("extent", "view"):
            softmetal.declare_extent(encoder, 0, 4 * count)
        if kind == "used heap":
            encoder.useHeap_(buffer.heap())
        program.dispatch(encoder)
        found = program.findings(encoder)
    assert len(found) == over
    if found and kind == "used heap":  # as near to another argument
        assert "reads 4 bytes beyond" in found[0]
    elif found:
        end = count + (64 if kind == "offset" else 0)  # counted from the buffer's first byte
        assert f"beyond buffer 0 'x': element {end} of {end} float (byte {4 * end}" in found[0]


def test_an_extent_begins_at_the_offset():
    with softmetal.checking("bounds"):
        program = Program(64, 63)
        encoder = program.encoder()
        encoder.setBuffer_offset_atIndex_(program.host.buffer(192), 256, 0)
        encoder.setBuffer_offset_atIndex_(program.host.buffer(), 0, 1)
        program.dispatch(encoder, "back")
        softmetal.declare_extent(encoder, 0, 256)
        program.dispatch(encoder, "back")
        (found,) = program.findings(encoder)
    assert "before buffer 0 'x': element -1 of 64 float (byte -4 of 256), thread (0, 0, 0)" in found


def test_an_extent_ends_with_its_binding():
    with softmetal.checking("bounds"):
        program = Program(64, 64)
        encoder, x = program.encoder(), program.host.buffer(128)
        encoder.setBuffer_offset_atIndex_(program.host.buffer(), 0, 1)
        for bind in (
            lambda: encoder.setBuffer_offset_atIndex_(x, 0, 0),
            lambda: encoder.setBufferOffset_atIndex_(4, 0),
            lambda: encoder.setBuffers_offsets_withRange_([x], [0], (0, 1)),
        ):
            encoder.setBuffer_offset_atIndex_(x, 0, 0)
            softmetal.declare_extent(encoder, 0, 256)
            bind()
            program.dispatch(encoder)
        assert program.findings(encoder) == []


def test_extents_hold_for_every_dispatch_until_then():
    with softmetal.checking("bounds"):
        program = Program(64, 64)
        encoder = program.encoder()
        encoder.setBuffer_offset_atIndex_(program.host.buffer(128), 0, 0)
        encoder.setBuffer_offset_atIndex_(program.host.buffer(), 0, 1)
        softmetal.declare_extent(encoder, 0, 512)
        program.dispatch(encoder)
        softmetal.declare_extent(encoder, 0, 256)
        program.dispatch(encoder, "back")
        program.dispatch(encoder)
        found = program.findings(encoder)
    assert {line.split("'")[1] for line in found} == {"blur", "back"}


def indirect(program, buffer, length):
    """`blur` as an indirect command, with a declared extent."""
    host = program.host
    descriptor = softmetal.MTLIndirectCommandBufferDescriptor.new()
    descriptor.setCommandTypes_(softmetal.MTLIndirectCommandTypeConcurrentDispatchThreads)
    descriptor.setInheritBuffers_(False)
    descriptor.setInheritPipelineState_(False)
    descriptor.setMaxKernelBufferBindCount_(3)
    make = host.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
    commands = make(descriptor, 1, 0)
    slot = commands.indirectComputeCommandAtIndex_(0)
    slot.setComputePipelineState_(host.pipeline("blur"))
    last = host.buffer(1)
    last.contents().as_buffer(4)[:] = program.last
    for index, bound in enumerate((buffer, host.buffer(program.count), last)):
        slot.setKernelBuffer_offset_atIndex_(bound, 0, index)
    if length:
        softmetal.declare_extent(slot, 0, length)
    slot.concurrentDispatchThreads_threadsPerThreadgroup_(size((program.count,)), size((32,)))
    return commands


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("copied", [False, True])
def test_extents_of_indirect_commands(count, over, copied):
    with softmetal.checking("bounds"):
        program = Program(count, count - 1 + over)
        commands = indirect(program, program.host.buffer(count + 64), 4 * count)
        if copied:
            source, commands = commands, indirect(program, program.host.buffer(count + 64), 0)
            blit = program.commands.blitCommandEncoder()
            blit.copyIndirectCommandBuffer_sourceRange_destination_destinationIndex_(
                source, (0, 1), commands, 0
            )
            blit.endEncoding()
        encoder = program.encoder()
        encoder.executeCommandsInBuffer_withRange_(commands, (0, 1))
        found = program.findings(encoder)
    assert len(found) == over
    assert all(f"beyond buffer 0 'x': element {count} of {count} float" in line for line in found)


@pytest.mark.parametrize(
    ("index", "length", "message"),
    [
        (0, 257, "an extent of bytes 0 to 257 is out of range: there are 256"),
        (0, -1, "an extent of bytes 0 to -1 is out of range"),
        (3, 4, r"declare_extent at index 3: no buffer \(None\)"),
        (31, 4, "buffer index 31 is out of range: a kernel has the indices 0 to 30"),
        (-1, 4, "buffer index -1 is out of range"),
    ],
)
def test_wrong_extents_are_refused(index, length, message):
    program = Program(64, 63)
    encoder = program.encoder()
    encoder.setBuffer_offset_atIndex_(program.host.buffer(), 0, 0)
    with pytest.raises(SoftmetalError, match=message):
        softmetal.declare_extent(encoder, index, length)
    encoder.endEncoding()
    with pytest.raises(SoftmetalError, match="declare_extent"):
        softmetal.declare_extent(encoder, 0, 4)


def test_an_extent_changes_nothing_without_checks():
    program = Program(64, 127)
    x = program.host.buffer(128)
    memory = memoryview(x.contents().as_buffer(512)).cast("f")
    memory[:] = memoryview(bytearray(512)).cast("f")
    memory[64] = 2.0
    out, encoder = program.host.buffer(), program.encoder()
    encoder.setBuffer_offset_atIndex_(x, 0, 0)
    encoder.setBuffer_offset_atIndex_(out, 0, 1)
    softmetal.declare_extent(encoder, 0, 256)
    program.dispatch(encoder)
    assert program.findings(encoder) == []
    assert memoryview(out.contents().as_buffer(256)).cast("f")[63] == 1.0
