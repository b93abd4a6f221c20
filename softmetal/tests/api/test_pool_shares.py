"""Work shared by many threads: every threadgroup runs once, however the grid is cut."""

from __future__ import annotations

import pytest
from child_scripts import run_child

SCRIPT = """
import numpy as np
import softmetal

SOURCE = '''
#include <metal_stdlib>
using namespace metal;
kernel void flat(device atomic_uint* seen, constant uint2& size,
                 uint3 at [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&seen[(at.z * size.y + at.y) * size.x + at.x], 1u,
                            memory_order_relaxed);
}
kernel void grouped(device atomic_uint* seen, constant uint2& size,
                    uint3 at [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  for (uint i = 0; i < lane; i++) atomic_fetch_add_explicit(&seen[0], 0u, memory_order_relaxed);
  atomic_fetch_add_explicit(&seen[(at.z * size.y + at.y) * size.x + at.x], 1u,
                            memory_order_relaxed);
}
'''
device = softmetal.MTLCreateSystemDefaultDevice()
library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
assert error is None, error
queue = device.newCommandQueue()
GRIDS = [(1, 1, 1), (7, 1, 1), (4099, 1, 1), (3, 5, 7), (1, 1000, 3), (130, 70, 2), (70000, 2, 1)]
for name in ("flat", "grouped"):
    function = library.newFunctionWithName_(name)
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    for grid in GRIDS:
        threads = grid[0] * grid[1] * grid[2]
        seen = device.newBufferWithLength_options_(4 * threads, 0)
        for repeat in range(1, 6):  # the cost that is learned changes how the grid is cut
            commands = queue.commandBuffer()
            encoder = commands.computeCommandEncoder()
            encoder.setComputePipelineState_(pipeline)
            encoder.setBuffer_offset_atIndex_(seen, 0, 0)
            size = np.array(grid[:2], np.uint32).tobytes()
            encoder.setBytes_length_atIndex_(size, 8, 1)
            encoder.dispatchThreads_threadsPerThreadgroup_(grid, (16, 2, 1))
            encoder.endEncoding()
            commands.commit()
            commands.waitUntilCompleted()
            assert commands.error() is None, commands.error()
            values = np.frombuffer(seen.contents().as_buffer(4 * threads), np.uint32)
            assert (values == repeat).all(), (name, grid, repeat, np.unique(values))
"""


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_everything_runs_once(threads: int) -> None:
    done = run_child(SCRIPT, threads=threads, timeout="100")
    assert done.returncode == 0, done.stderr


STREAMS = """
import threading
import numpy as np
import softmetal

SOURCE = '''
#include <metal_stdlib>
using namespace metal;
kernel void count(device const uint* before, device uint* after, constant uint& turns,
                  uint at [[thread_position_in_grid]], uint size [[threads_per_grid]]) {
  uint one = at + 1;  // xorshift never makes it 0
  for (uint i = 0; i < turns; i++) {
    one ^= one << 13;
    one ^= one >> 17;
    one ^= one << 5;
  }
  after[at] = before[size - 1 - at] + (one != 0 ? 1 : 0);  // of another thread's share
}
'''
device = softmetal.MTLCreateSystemDefaultDevice()
library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
assert error is None, error
function = library.newFunctionWithName_("count")
pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
THREADS, LISTS, DISPATCHES = 600, 40, 20
wrong = []

def run(turns):
    queue = device.newCommandQueue()
    buffers = [device.newBufferWithLength_options_(4 * THREADS, 0) for _ in range(2)]
    for _ in range(LISTS):
        commands = queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        encoder.setBytes_length_atIndex_(turns.to_bytes(4, "little"), 4, 2)
        for i in range(DISPATCHES):
            encoder.setBuffer_offset_atIndex_(buffers[i % 2], 0, 0)
            encoder.setBuffer_offset_atIndex_(buffers[1 - i % 2], 0, 1)
            encoder.dispatchThreads_threadsPerThreadgroup_((THREADS, 1, 1), (1, 1, 1))
        encoder.endEncoding()
        commands.commit()
    commands.waitUntilCompleted()
    values = np.frombuffer(buffers[0].contents().as_buffer(4 * THREADS), np.uint32)
    if not (values == LISTS * DISPATCHES).all():
        wrong.append((turns, np.unique(values)))

streams = [threading.Thread(target=run, args=(turns,)) for turns in (1, 30, 100, 300)]
for each in streams:
    each.start()
for each in streams:
    each.join()
assert not wrong, wrong
"""


@pytest.mark.parametrize("threads", [2, 16])
def test_streams_share_the_pool(threads: int) -> None:
    """Jobs that follow each other closely: each reads what all threads wrote in the one before."""
    done = run_child(STREAMS, threads=threads, timeout="100")
    assert done.returncode == 0, done.stderr
