"""Conflicting accesses and diverging barriers inside one dispatch."""

from __future__ import annotations

import numpy as np
from fault_model import Fault, Launch, filled, values, zeros

DUPLICATES = np.where(np.arange(64) == 41, 7, np.arange(64))  # 41 and 7 scatter to one place

THREADGROUP = (
    Fault(
        "barrier_before_read",
        "no barrier between writing an array and reading another thread's element",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = t;  //!
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[63 - t];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),)),
    ),
    Fault(
        "barrier_dynamic_memory",
        "the same with a threadgroup argument",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], threadgroup float* s [[threadgroup(0)]],
                   uint t [[thread_position_in_threadgroup]],
                   uint n [[threads_per_threadgroup]]) {
  s[t] = t;  //!
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[n - 1 - t];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(96),), threads=(96,), threadgroup=(384,)),
    ),
    Fault(
        "barrier_before_reuse",
        "a tile is overwritten by the next step of a loop while others still read it",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  float sum = 0;
  for (uint k = 0; k < 4; k++) {
    tile[t] = a[64 * k + t];  //!
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 64; i++) sum += tile[i];  //!
+   threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  o[t] = sum;
}
""",
        "threadgroup memory 'tile'",
        Launch((zeros(64), values(256))),
    ),
    Fault(
        "barrier_after_conditional_store",
        "one thread stores for all, and the others do not wait",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float scale;
  if (t == 0) scale = a[0] + 1;  //!
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = t * scale;  //!
}
""",
        "threadgroup memory 'scale'",
        Launch((zeros(64), values(1))),
    ),
    Fault(
        "barrier_in_reduction",
        "a tree reduction without a barrier between its steps",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[128];
  s[t] = a[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 64; step > 0; step /= 2) {
    if (t < step) s[t] += s[t + step];  //!
+   threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (t == 0) o[0] = s[0];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(1), values(128)), threads=(128,)),
    ),
    Fault(
        "barrier_before_result",
        "the result of a reduction is read without waiting for its last step",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = a[t];
  for (uint step = 32; step > 0; step /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < step) s[t] += s[t + step];  //!
  }
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = a[t] / s[0];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64), values(64))),
    ),
    Fault(
        "softmax_reuses_scratch",
        "the scratch of the maximum is reused for the sum too early",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[4];
  float top = simd_max(a[t]);
  if (lane == 0) partial[simd] = top;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  top = simd_max(partial[lane % 4]);  //!
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  float e = exp(a[t] - top), sum = simd_sum(e);
  if (lane == 0) partial[simd] = sum;  //!
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = e / (partial[0] + partial[1] + partial[2] + partial[3]);
}
""",
        "threadgroup memory 'partial'",
        Launch((zeros(128), values(128)), threads=(128,)),
    ),
    Fault(
        "simdgroup_barrier_only",
        "simdgroup_barrier where threads of other simdgroups are concerned",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = t;  //!
- simdgroup_barrier(mem_flags::mem_threadgroup);
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[63 - t];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),)),
    ),
    Fault(
        "barrier_mem_none",
        "a barrier with mem_none orders no memory",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = t;  //!
- threadgroup_barrier(mem_flags::mem_none);
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[63 - t];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),)),
    ),
    Fault(
        "barrier_orders_device_only",
        "mem_device does not order threadgroup memory",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = t;  //!
- threadgroup_barrier(mem_flags::mem_device);
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[63 - t];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),)),
    ),
    Fault(
        "barrier_orders_threadgroup_only",
        "mem_threadgroup does not order device memory",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device float* x [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  x[t] = t;  //!
- threadgroup_barrier(mem_flags::mem_threadgroup);
+ threadgroup_barrier(mem_flags::mem_device);
  o[t] = x[63 - t];  //!
}
""",
        "buffer 1",
        Launch((zeros(64), zeros(64))),
    ),
    Fault(
        "transpose_tile",
        "a transposition through a tile without a barrier",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[16][17];
  tile[t.y][t.x] = a[16 * t.y + t.x];  //!
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[16 * t.y + t.x] = tile[t.x][t.y];  //!
}
""",
        "threadgroup memory 'tile'",
        Launch((zeros(256), values(256)), threads=(16, 16)),
    ),
    Fault(
        "prefix_sum",
        "a prefix sum with one of its two barriers",
        "race",
        """
kernel void faulty(device uint* o [[buffer(0)]], device const uint* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup uint s[64];
  s[t] = a[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 1; step < 64; step *= 2) {
    uint left = t >= step ? s[t - step] : 0;  //!
+   threadgroup_barrier(mem_flags::mem_threadgroup);
    s[t] += left;  //!
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  o[t] = s[t];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64, "u4"), values(64, "u4"))),
    ),
    Fault(
        "double_buffer_parity",
        "double buffering that writes the half being read",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[2][64];
  s[0][t] = a[t];
  float sum = 0;
  for (uint k = 0; k < 4; k++) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
-   s[k % 2][t] = a[64 * (k + 1) + t];  //!
+   s[(k + 1) % 2][t] = a[64 * (k + 1) + t];
    sum += s[k % 2][63 - t];  //!
  }
  o[t] = sum;
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64), values(320))),
    ),
    Fault(
        "histogram_without_atomics",
        "threads increment shared bins without atomics",
        "race",
        """
kernel void faulty(device uint* o [[buffer(0)]], device const uint* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
- threadgroup uint bins[8];
+ threadgroup atomic_uint bins[8];
- if (t < 8) bins[t] = 0;
+ if (t < 8) atomic_store_explicit(&bins[t], 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
- bins[a[t] % 8] += 1;  //!
+ atomic_fetch_add_explicit(&bins[a[t] % 8], 1, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
- if (t < 8) o[t] = bins[t];
+ if (t < 8) o[t] = atomic_load_explicit(&bins[t], memory_order_relaxed);
}
""",
        "threadgroup memory 'bins'",
        Launch((zeros(8, "u4"), values(64, "u4"))),
    ),
    Fault(
        "simdgroup_without_barrier",
        "lanes of one simdgroup exchange through memory as if in lockstep",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[32];
  s[t] = t;  //!
+ simdgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[t ^ 1];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(32),), threads=(32,)),
    ),
    Fault(
        "simdgroup_of_64",
        "simdgroups assumed to have 64 lanes",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[128];
  s[t] = a[t];  //!
- const uint width = 64;
+ const uint width = 32;
  for (uint step = width / 2; step > 0; step /= 2) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float other = s[t ^ step];  //!
    simdgroup_barrier(mem_flags::mem_threadgroup);
    s[t] += other;  //!
  }
  o[t] = s[t];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(128), values(128)), threads=(128,)),
    ),
    Fault(
        "halo_left_to_neighbour",
        "a stencil in place: neighbours are read while their owners write",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = a[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float mean = (s[max(t, 1u) - 1] + s[t] + s[min(t + 1, 63u)]) / 3;  //!
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  s[t] = mean;  //!
  o[t] = s[t];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64), values(64))),
    ),
    Fault(
        "value_shared_then_replaced",
        "one thread replaces a value that the others of its simdgroup still read",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[1];
  if (t == 0) s[0] = 3;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = simd_sum(s[0]);  //!
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) s[0] = sum;  //!
  o[t] = sum;
}
""",
        "threadgroup memory 's'",
        Launch((zeros(2),), threads=(2,)),
    ),
)

DEVICE = (
    Fault(
        "all_write_one_word",
        "every threadgroup stores its own result in the same word",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]],
                   uint g [[threadgroup_position_in_grid]]) {
- if (t == 0) o[0] = g;  //!
+ if (t == 0) o[g] = g;
}
""",
        "buffer 0",
        Launch((zeros(8),), groups=(8,)),
    ),
    Fault(
        "device_counter",
        "a counter in device memory without atomics",
        "race",
        """
-kernel void faulty(device uint* count [[buffer(0)]], uint t [[thread_position_in_grid]]) {
- count[0] += 1;  //!
+kernel void faulty(device atomic_uint* count [[buffer(0)]], uint t [[thread_position_in_grid]]) {
+ atomic_fetch_add_explicit(&count[0], 1, memory_order_relaxed);
}
""",
        "buffer 0",
        Launch((zeros(1, "u4"),), threads=(32,), groups=(4,)),
    ),
    Fault(
        "neighbour_in_device_memory",
        "a threadgroup reads what its neighbour writes in the same dispatch",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device float* x [[buffer(1)]],
                   uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  x[i] = i;  //!
  threadgroup_barrier(mem_flags::mem_device);
- o[i] = x[(i + 1) % n];  //!
+ o[i] = x[i / 64 * 64 + (i + 1) % 64];
}
""",
        "buffer 1",
        Launch((zeros(256), zeros(256)), groups=(4,)),
    ),
    Fault(
        "stencil_in_place",
        "a stencil over device memory that writes its own input",
        "race",
        """
kernel void faulty(device float* x [[buffer(0)]], device float* o [[buffer(1)]],
                   uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
- x[i] = (x[i] + x[(i + 1) % n]) / 2;  //!
+ o[i] = (x[i] + x[(i + 1) % n]) / 2;
}
""",
        "buffer 0",
        Launch((values(256), zeros(256)), groups=(4,)),
    ),
    Fault(
        "scatter_collides",
        "a scatter in which two threads have the same target",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const uint* rows [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
- o[rows[i]] = i;  //!
+ o[i] = rows[i];
}
""",
        "buffer 0",
        Launch((zeros(64), filled(DUPLICATES)), threads=(32,), groups=(2,)),
    ),
    Fault(
        "atomic_and_plain",
        "one thread resets with a plain store what others add to atomically",
        "race",
        """
kernel void faulty(device atomic_uint* sum [[buffer(0)]], uint i [[thread_position_in_grid]]) {
- if (i == 0) *(device uint*)sum = 0;  //!
  atomic_fetch_add_explicit(sum, i, memory_order_relaxed);  //!
}
""",
        "buffer 0",
        Launch((zeros(1, "u4"),), threads=(32,), groups=(2,)),
    ),
    Fault(
        "plain_read_of_counter",
        "a counter that other threadgroups add to is read without an atomic load",
        "race",
        """
kernel void faulty(device atomic_uint* count [[buffer(0)]], device uint* o [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(count, 1, memory_order_relaxed);  //!
- o[i] = *(device uint*)count;  //!
+ o[i] = atomic_load_explicit(count, memory_order_relaxed);
}
""",
        "buffer 0",
        Launch((zeros(1, "u4"), zeros(128, "u4")), threads=(32,), groups=(4,)),
    ),
    Fault(
        "row_sum_without_atomics",
        "two threadgroups share a row and add to its sum in turn",
        "race",
        """
kernel void faulty(device float* sums [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint g [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
  float sum = simd_sum(a[32 * g + lane]);
- if (lane == 0) sums[g / 2] += sum;  //!
+ if (lane == 0) sums[g] += sum;
}
""",
        "buffer 0",
        Launch((zeros(4), values(128)), threads=(32,), groups=(4,)),
    ),
    Fault(
        "bit_mask_by_bytes",
        "lanes set bits of one byte without atomics",
        "race",
        """
kernel void faulty(device uchar* mask [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
- if (a[i] > 20) mask[i / 8] |= 1 << (i % 8);  //!
+ mask[i] = a[i] > 20;
}
""",
        "buffer 0",
        Launch((zeros(64, "u1"), values(64))),
    ),
    Fault(
        "overlapping_rows",
        "rows of a result overlap because of a wrong stride",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint2 p [[thread_position_in_grid]]) {
- o[p.y * 15 + p.x] = p.x;  //!
+ o[p.y * 16 + p.x] = p.x;
}
""",
        "buffer 0",
        Launch((zeros(64),), threads=(16, 1), groups=(1, 4)),
    ),
)

BARRIERS = (
    Fault(
        "barrier_in_if",
        "a barrier that only some threads reach",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = t;
- if (t < 40) threadgroup_barrier(mem_flags::mem_threadgroup);  //!
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[t];
}
""",
        "",
        Launch((zeros(64),)),
    ),
    Fault(
        "barrier_in_both_branches",
        "two barriers in two branches are not one barrier",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
- if (t % 64 < 32) {
-   s[t] = t;
-   threadgroup_barrier(mem_flags::mem_threadgroup);  //!
- } else {
-   s[t] = 2 * t;
-   threadgroup_barrier(mem_flags::mem_threadgroup);  //!
- }
+ s[t] = t < 32 ? t : 2 * t;
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[t];
}
""",
        "",
        Launch((zeros(64),)),
    ),
    Fault(
        "barrier_in_uneven_loop",
        "a barrier in a loop whose length differs between threads",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const uint* n [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = 0;
- for (uint i = 0; i < n[t]; i++) {
+ for (uint i = 0; i < 3; i++) {
    s[t] += i;
    threadgroup_barrier(mem_flags::mem_threadgroup);  //!
  }
  o[t] = s[t];
}
""",
        "",
        Launch((zeros(64), filled([3] * 63 + [2]))),
    ),
    Fault(
        "return_before_barrier",
        "threads beyond the end return before a barrier",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], constant uint& n [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
- if (t >= n) return;
- s[t] = t;
+ s[t] = t < n ? t : 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);  //!
+ if (t < n)
  o[t] = s[n - 1 - t];
}
""",
        "",
        Launch((zeros(64), filled([50]))),
    ),
    Fault(
        "break_before_barrier",
        "a thread leaves a loop of steps early",
        "race",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = a[t];
  for (uint i = 0; i < 4; i++) {
-   if (s[t] > 60) break;
+   if (s[t] <= 60)
    s[t] += 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);  //!
  }
  o[t] = s[t];
}
""",
        "",
        Launch((zeros(64), values(64))),
    ),
)

# The last threadgroup to arrive at a counter adds up what all of them have written.
LAST_ARRIVES = """
constexpr constant uint groups = 6;
"""
SUMS = Launch((zeros(6), zeros(1, "u4"), zeros(64)), groups=(6,))

FENCES = (
    Fault(
        "no_fence_before_counter",
        "a sum that the last threadgroup reads is counted without a fence before",
        "race",
        """
kernel void faulty(device uint* sums [[buffer(0)]], device atomic_uint* count [[buffer(1)]],
                   device uint* o [[buffer(2)]], uint g [[threadgroup_position_in_grid]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup bool last;
  uint sum = simd_sum(t + g);
  if (t == 0) {
    sums[g] = sum;  //!
+   atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    last = atomic_fetch_add_explicit(count, 1, memory_order_relaxed) == groups - 1;
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  if (last && t < groups) o[t] = sums[t];  //!
}
""",
        "buffer 0",
        SUMS,
        prelude=LAST_ARRIVES,
    ),
    Fault(
        "no_fence_after_counter",
        "the last threadgroup reads what others have written without a fence after the counter",
        "race",
        """
kernel void faulty(device uint* sums [[buffer(0)]], device atomic_uint* count [[buffer(1)]],
                   device uint* o [[buffer(2)]], uint g [[threadgroup_position_in_grid]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup bool last;
  if (t == 0) {
    sums[g] = g;  //!
    atomic_thread_fence(mem_flags::mem_device, memory_order_release, thread_scope_device);
    last = atomic_fetch_add_explicit(count, 1, memory_order_relaxed) == groups - 1;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (last && t < groups) {
+   atomic_thread_fence(mem_flags::mem_device, memory_order_acquire, thread_scope_device);
    o[t] = sums[t];  //!
  }
}
""",
        "buffer 0",
        SUMS,
        prelude=LAST_ARRIVES,
    ),
    Fault(
        "fence_of_one_threadgroup",
        "the fences around a counter have the scope of the threadgroup",
        "race",
        """
kernel void faulty(device uint* sums [[buffer(0)]], device atomic_uint* count [[buffer(1)]],
                   device uint* o [[buffer(2)]], uint g [[threadgroup_position_in_grid]],
                   uint t [[thread_position_in_threadgroup]]) {
- constexpr thread_scope scope = thread_scope_threadgroup;
+ constexpr thread_scope scope = thread_scope_device;
  if (t != 0) return;
  sums[g] = g;  //!
  atomic_thread_fence(mem_flags::mem_device, memory_order_acq_rel, scope);
  if (atomic_fetch_add_explicit(count, 1, memory_order_relaxed) != groups - 1) return;
  atomic_thread_fence(mem_flags::mem_device, memory_order_acq_rel, scope);
  for (uint i = 0; i < groups; i++) o[i] = sums[i];  //!
}
""",
        "buffer 0",
        SUMS,
        prelude=LAST_ARRIVES,
    ),
    Fault(
        "written_after_counter",
        "a sum is written after it was counted",
        "race",
        """
kernel void faulty(device uint* sums [[buffer(0)]], device atomic_uint* count [[buffer(1)]],
                   device uint* o [[buffer(2)]], uint g [[threadgroup_position_in_grid]],
                   uint t [[thread_position_in_threadgroup]]) {
  if (t != 0) return;
+ sums[g] = g;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  bool last = atomic_fetch_add_explicit(count, 1, memory_order_relaxed) == groups - 1;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
- sums[g] = g;  //!
  if (last) for (uint i = 0; i < groups; i++) o[i] = sums[i];  //!
}
""",
        "buffer 0",
        SUMS,
        prelude=LAST_ARRIVES,
    ),
)

RACES = (*THREADGROUP, *DEVICE, *FENCES, *BARRIERS)
