"""Kernels whose threads meet give the same bits as loops over threads and as fibers."""

from __future__ import annotations

import numpy as np
import pytest
from meeting_kernels import SHAPES, Writer
from seeds import generator

from softmetal import __main__ as command_line
from softmetal import compiler
from softmetal.compiler.native import NativeTarget
from softmetal.executors.cpu import CpuExecutor
from softmetal.types import CompileOptions, Dispatch, Mode

EXACT = CompileOptions(fast_math=False)
COUNTS = [24, pytest.param(400, marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def executor():
    return CpuExecutor()


def loaded(executor, source, fibers):
    program, _ = compiler.check(source, EXACT)
    artifact = compiler.compile_kernel(program, "k", {}, target=NativeTarget(fibers))
    return artifact.mode, executor.load(artifact)


def results(executor, kernel, grid, group):
    """What a kernel of `Writer` writes."""
    threads = grid[0] * grid[1] * grid[2]
    given = generator(1).integers(0, 1 << 20, max(threads, 64)).astype(np.uint32)
    arrays = [given, np.zeros(threads, np.uint32), np.array([3, 5, 7, 2], np.uint32),
              np.zeros(8, np.uint32)]  # fmt: skip
    queue = executor.new_queue()
    addresses = tuple(array.ctypes.data for array in arrays)
    ticket = executor.submit(queue, [Dispatch(kernel, grid, group, addresses)])
    outcome = executor.wait(ticket, None)
    executor.forget(ticket)
    executor.free_queue(queue)
    assert outcome is not None
    assert outcome.error is None
    return arrays[1], arrays[3]


@pytest.mark.parametrize("count", COUNTS)
def test_loops_give_the_bits_of_fibers(executor, count):
    modes = set()
    for number in range(count):
        source = Writer(generator(number), lanes=number % 2 == 1).source()
        mode, kernel = loaded(executor, source, fibers=False)
        _, expected = loaded(executor, source, fibers=True)
        modes.add(mode)
        for grid, group in SHAPES:
            found = results(executor, kernel, grid, group)
            wanted = results(executor, expected, grid, group)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(a, b, f"{mode.name} {grid} {group}\n{source}")
    assert {Mode.REGIONS, Mode.SIMDGROUPS} <= modes


DIVIDES = """
#include <metal_stdlib>
using namespace metal;
kernel void k(device const uint* a [[buffer(0)]], device uint* out [[buffer(1)]],
              uint t [[thread_position_in_threadgroup]]) {
  threadgroup uint s[64];
  uint d = a[t] % 4, sum = 0;
  s[t] = d;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < d; i++) sum += s[i] + 1000 / d;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (d != 0) sum += 77 / d;
  out[t] = sum;
}
"""


def test_threads_that_skip_a_division_do_not_divide(executor):
    """Moved out of the loop, it would be one by zero."""
    mode, kernel = loaded(executor, DIVIDES, fibers=False)
    assert mode == Mode.REGIONS
    found, _ = results(executor, kernel, (64, 1, 1), (64, 1, 1))
    d = generator(1).integers(0, 1 << 20, 64).astype(np.uint32) % 4
    sums = [sum(int(d[i]) + 1000 // n for i in range(n)) + (77 // n if n else 0) for n in d]
    np.testing.assert_array_equal(found, sums)


MODES = """
#include <metal_stdlib>
using namespace metal;
kernel void plain(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = i; }
kernel void barrier(device float* x [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup float t[64];
  t[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = t[63 - i];
}
kernel void sum(device float* x [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  x[i] = simd_sum(x[i]);
}
kernel void apart(device float* x [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (x[i] > 0) x[i] = simd_sum(x[i]);
}
"""


def test_the_command_lists_modes(tmp_path, capsys):
    file = tmp_path / "k.metal"
    file.write_text(MODES)
    assert command_line.main(["check", "--modes", str(file)]) == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [
        ["plain", "FLAT"],
        ["barrier", "REGIONS"],
        ["sum", "SIMDGROUPS"],
        ["apart", "FIBERS"],
    ]
    assert "threads meet where only some of them may arrive" in rows[3][2]
