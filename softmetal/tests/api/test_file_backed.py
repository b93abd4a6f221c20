"""A mapped file that becomes shorter is an error of the command buffer that reads it."""

from __future__ import annotations

import pytest
from child_scripts import run_child

START = """
import mmap, os, tempfile
import numpy as np
import softmetal
from softmetal import mps

device = softmetal.MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()
SIZE = 4 << 20


def shrinking():
    '''A buffer over a mapped file, and the file.'''
    file = tempfile.TemporaryFile()
    file.truncate(SIZE)
    pages = mmap.mmap(file.fileno(), SIZE)
    return device.newBufferWithBytesNoCopy_length_options_deallocator_(pages, SIZE, 0, None), file


def outcome(commands):
    commands.commit()
    commands.waitUntilCompleted()
    return commands.error() and commands.error().localizedDescription()


def copy(source, target, size, offset=0):
    commands = queue.commandBuffer()
    blit = commands.blitCommandEncoder()
    blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        source, 0, target, offset, size)
    blit.endEncoding()
    return outcome(commands)


def fill(target, size):
    commands = queue.commandBuffer()
    blit = commands.blitCommandEncoder()
    blit.fillBuffer_range_value_(target, (0, size), 7)
    blit.endEncoding()
    return outcome(commands)


def product(a, b, c, n, type_):
    data = {"f4": mps.MPSDataTypeFloat32, "f2": mps.MPSDataTypeFloat16}[type_]
    row = n * int(type_[1])
    describe = mps.MPSMatrixDescriptor.matrixDescriptorWithRows_columns_rowBytes_dataType_
    matrices = [mps.MPSMatrix.alloc().initWithBuffer_descriptor_(x, describe(n, n, row, data))
                for x in (a, b, c)]
    make = mps.MPSMatrixMultiplication.alloc()
    multiply = make.initWithDevice_resultRows_resultColumns_interiorColumns_(device, n, n, n)
    commands = queue.commandBuffer()
    multiply.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(commands, *matrices)
    return outcome(commands)


gone, file = shrinking()
file.truncate(0)
whole, other, third = (device.newBufferWithLength_options_(SIZE, 0) for _ in range(3))
"""
END = "beyond the end of a mapped file"

CASES = {
    "copy from": ("copy(gone, whole, 64)", "a copy"),
    "long copy from": ("copy(gone, whole, SIZE)", "a copy"),
    "copy to": ("copy(whole, gone, 64)", "a copy"),
    "long copy to": ("copy(whole, gone, SIZE)", "a copy"),
    "overlapping copy": ("copy(gone, gone, SIZE - 64, 64)", "a copy"),
    "fill": ("fill(gone, 64)", "a fill"),
    "long fill": ("fill(gone, SIZE)", "a fill"),
    **{
        f"{place} of a product, {type_}, {n}": (
            f"product(*{operands}, {n}, {type_!r})",
            "a matrix multiplication",
        )
        for place, operands in {
            "left": "(gone, whole, other)",
            "right": "(whole, gone, other)",
            "result": "(whole, other, gone)",
        }.items()
        for type_ in ("f4", "f2")
        for n in (8, 300, 1000)
    },
}


@pytest.mark.parametrize("threads", [1, 2])
def test_every_command_of_the_runtime(threads: int) -> None:
    """Each twice, then one that works."""
    body = f"""
cases = {[(name, code, subject) for name, (code, subject) in CASES.items()]!r}
for name, code, subject in cases:
    for _ in range(2):
        text = eval(code)
        assert text and text.startswith(f"{{subject}} accessed address 0x"), (name, text)
        assert text.endswith({END!r}), (name, text)
    works = eval(code.replace("gone", "third"))
    assert works is None, (name, works)
print("all")
"""
    done = run_child(START + body, threads=threads)
    assert (done.stdout, done.stderr, done.returncode) == ("all\n", "", 0)


INDIRECT = """
source = '''#include <metal_stdlib>
kernel void one(device uint* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }'''
library, error = device.newLibraryWithSource_options_error_(source, None, None)
descriptor = softmetal.MTLComputePipelineDescriptor.new()
descriptor.setComputeFunction_(library.newFunctionWithName_("one"))
descriptor.setSupportIndirectCommandBuffers_(True)
pipeline, *_ = device.newComputePipelineStateWithDescriptor_options_reflection_error_(
    descriptor, 0, None, None)
indirect = softmetal.MTLIndirectCommandBufferDescriptor.new()
indirect.setCommandTypes_(softmetal.MTLIndirectCommandTypeConcurrentDispatch)
slots = device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(indirect, 1, 0)


def attempt(arguments, execute):
    commands = queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(whole, 0, 0)
    if execute:
        encoder.executeCommandsInBuffer_indirectBuffer_indirectBufferOffset_(slots, arguments, 0)
    else:
        encoder.dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup_(
            arguments, 0, softmetal.MTLSizeMake(8, 1, 1))
    encoder.endEncoding()
    return outcome(commands)


for execute in (False, True):
    text = attempt(gone, execute)
    assert text.startswith("an indirect command accessed address 0x"), text
    assert attempt(other, execute) is None
print("both")
"""


def test_values_that_commands_read_when_they_run() -> None:
    done = run_child(START + INDIRECT)
    assert (done.stdout, done.stderr, done.returncode) == ("both\n", "", 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_products_fail_a_thousand_times(threads: int) -> None:
    """A fault leaves nothing behind that is used up."""
    body = """
texts = {product(gone, whole, other, n, "f4") for n in (64, 700) for _ in range(500)}
assert all(text and text.startswith("a matrix multiplication") for text in texts), texts
assert product(whole, other, third, 700, "f4") is None
print("still works")
"""
    done = run_child(START + body, threads=threads)
    assert (done.stdout, done.stderr, done.returncode) == ("still works\n", "", 0)


def test_a_file_that_shrinks_while_it_is_read() -> None:
    """Products of whole files, whose ends another thread cuts off and puts back."""
    body = """
import threading
buffer, file = shrinking()
stop, seen = threading.Event(), set()


def cut():
    while not stop.is_set():
        file.truncate(SIZE // 2)
        file.truncate(SIZE)


thread = threading.Thread(target=cut)
thread.start()
for _ in range(60):
    seen.add((product(buffer, whole, other, 1000, "f4") or "done").split(" accessed")[0])
    seen.add((copy(buffer, whole, SIZE) or "done").split(" accessed")[0])
stop.set()
thread.join()
assert seen <= {"done", "a matrix multiplication", "a copy"}, seen
print("alive", product(whole, other, third, 500, "f4"))
"""
    done = run_child(START + body)
    assert (done.stdout, done.stderr, done.returncode) == ("alive None\n", "", 0)
