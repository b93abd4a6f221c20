"""Kernels whose threadgroups pass data to each other by fences and atomics, and are right: no mode
has a finding, and the sums are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from fault_host import ALL_MODES, Host
from fault_model import HEAD, Launch, zeros

import softmetal

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")

GROUPS, THREADS = 9, 64
FENCES = """
void fence() {
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}
void release() {
  atomic_thread_fence(mem_flags::mem_device, memory_order_release, thread_scope_device);
}
void acquire() {
  atomic_thread_fence(mem_flags::mem_device, memory_order_acquire, thread_scope_device);
}
uint next(device atomic_uint* count) {
  return atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}
"""
PARAMETERS = """(
    device uint* data [[buffer(0)]], device atomic_uint* count [[buffer(1)]],
    device uint* o [[buffer(2)]], uint group [[threadgroup_position_in_grid]],
    uint groups [[threadgroups_per_grid]], uint t [[thread_position_in_threadgroup]],
    uint i [[thread_position_in_grid]], uint size [[threads_per_grid]])"""
# Each sums the positions in the grid, or the positions up to each threadgroup's end.
KERNELS = {
    "the first thread fences, all threads of the last threadgroup read": """
  threadgroup uint sums[2], last;
  uint sum = simd_sum(i);
  if (t % 32 == 0) sums[t / 32] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) {
    data[group] = sums[0] + sums[1];
    fence();
    last = next(count) == groups - 1;
    fence();
  }
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  if (!last) return;
  uint all = simd_sum(t < groups ? data[t] : 0);
  if (t == 0) o[0] = all;""",
    "all threads fence, the first one counts": """
  threadgroup uint last;
  data[i] = i;
  release();
  threadgroup_barrier(mem_flags::mem_device);
  if (t == 0) last = next(count) == groups - 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (!last) return;
  acquire();
  uint sum = 0;
  for (uint k = t; k < size; k += 64) sum += data[k];
  atomic_fetch_add_explicit((device atomic_uint*)o, sum, memory_order_relaxed);""",
    "a barrier before the fence of one thread": """
  threadgroup uint last;
  data[i] = i;
  threadgroup_barrier(mem_flags::mem_device);
  if (t == 0) {
    fence();
    last = next(count) == groups - 1;
    fence();
    if (last) for (uint k = 0; k < size; k++) o[0] += data[k];
  }""",
    "a barrier of the simdgroup before the fence of its first lane": """
  data[i] = i;
  simdgroup_barrier(mem_flags::mem_device);
  if (t % 32 != 0) return;
  fence();
  if (next(count) != 2 * groups - 1) return;
  fence();
  for (uint k = 0; k < size; k++) o[0] += data[k];""",
    "no barriers: every thread counts": """
  data[i] = i;
  fence();
  if (next(count) != size - 1) return;
  fence();
  for (uint k = 0; k < size; k++) o[0] += data[k];""",
    "a thread fences for several values in turn": """
  if (t != 0) return;
  for (uint k = 0; k < 64; k++) {
    data[64 * group + k] = 64 * group + k;
    fence();
    if (next(count + 1 + k) != groups - 1) continue;
    fence();
    for (uint other = 0; other < groups; other++) o[0] += data[64 * other + k];
    fence();
    next(count);
  }""",
    "each threadgroup adds to the sum before it, in the order of tickets": """
  if (t != 0) return;
  uint ticket = next(count), sum = 0, before = 0;
  for (uint k = 0; k < 64; k++) sum += 64 * ticket + k;
  if (ticket > 0) {
    while (atomic_load_explicit(count + ticket, memory_order_relaxed) == 0) {}
    acquire();
    before = data[ticket - 1];
  }
  data[ticket] = before + sum;
  release();
  atomic_store_explicit(count + ticket + 1, 1, memory_order_relaxed);
  if (ticket < groups - 1) return;
  fence();
  for (uint k = 0; k < groups; k++) o[k == groups - 1 ? 0 : k + 1] = data[k];""",
}
SUM = sum(range(GROUPS * THREADS))


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_findings(kernel):
    source = f"{HEAD}{FENCES}kernel void k{PARAMETERS} {{{KERNELS[kernel]}\n}}\n"
    count = GROUPS * THREADS
    launch = Launch((zeros(count), zeros(65, "u4"), zeros(GROUPS)), (THREADS,), (GROUPS,))
    for seed in (1, 2, 77):
        with softmetal.checking(*ALL_MODES, seed=seed):
            host = Host(source)
            _, _, results = host.launch("k", launch)
            assert host.findings() == [], f"seed {seed}"
        assert np.frombuffer(results.contents().as_buffer(4), "u4")[0] == SUM
