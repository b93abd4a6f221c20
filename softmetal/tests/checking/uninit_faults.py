"""Threadgroup memory that is read before anything was written to it."""

from __future__ import annotations

from fault_model import Fault, Launch, values, zeros

UNINIT = (
    Fault(
        "never_written",
        "an accumulator in threadgroup memory starts with whatever is there",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
+ s[t] = 0;
  s[t] += t;  //!
  o[t] = s[t];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),)),
    ),
    Fault(
        "never_written_dynamic",
        "the same with a threadgroup argument",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], threadgroup float* s [[threadgroup(0)]],
                   uint t [[thread_position_in_threadgroup]]) {
+ s[t] = 0;
  s[t] += t;  //!
  o[t] = s[t];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),), threadgroup=(256,)),
    ),
    Fault(
        "partly_written",
        "only even threads fill the array that all of them read",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
- if (t % 2 == 0) s[t] = t;
+ s[t] = t % 2 == 0 ? t : 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[63 - t];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),)),
    ),
    Fault(
        "beyond_those_written",
        "a reduction over 64 elements of which 48 threads wrote 48",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]],
                   uint n [[threads_per_threadgroup]]) {
  threadgroup float s[64];
  s[t] = a[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
- for (uint i = 0; i < 64; i++) sum += s[i];  //!
+ for (uint i = 0; i < n; i++) sum += s[i];
  o[t] = sum;
}
""",
        "threadgroup memory 's'",
        Launch((zeros(48), values(48)), threads=(48,)),
    ),
    Fault(
        "partial_sums_of_32_simdgroups",
        "all 32 partial sums are read though there are fewer simdgroups",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint simd [[simdgroup_index_in_threadgroup]],
                   uint simds [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  float sum = simd_sum(a[t]);
  if (lane == 0) partial[simd] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
- sum = simd_sum(partial[lane]);  //!
+ sum = simd_sum(lane < simds ? partial[lane] : 0);
  if (t == 0) o[0] = sum;
}
""",
        "threadgroup memory 'partial'",
        Launch((zeros(1), values(128)), threads=(128,)),
    ),
    Fault(
        "last_simdgroup_partial",
        "the last simdgroup is assumed to have all its 32 lanes",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint n [[threads_per_threadgroup]]) {
  threadgroup float s[64];
  s[t] = a[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
- o[t] = s[t - lane + (lane + 1) % 32];  //!
+ o[t] = s[t - lane + (lane + 1) % min(32u, n - (t - lane))];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(40), values(40)), threads=(40,)),
    ),
    Fault(
        "halo_not_loaded",
        "a tile with a border that no thread loads",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[66];
  s[t + 1] = a[t];
+ if (t == 0) s[0] = s[65] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[t] + s[t + 1] + s[t + 2];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64), values(64))),
    ),
    Fault(
        "struct_member_left_out",
        "one member of a struct in threadgroup memory is not set",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup Best best[64];
  best[t].value = t;
+ best[t].index = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = best[63 - t].index;  //!
}
""",
        "threadgroup memory 'best'",
        Launch((zeros(64),)),
        prelude="struct Best { float value; uint index; };",
    ),
    Fault(
        "kept_from_another_threadgroup",
        "only the first threadgroup fills the table that all use",
        "uninit",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]],
                   uint g [[threadgroup_position_in_grid]]) {
  threadgroup float table[64];
- if (g == 0) table[t] = a[t];
+ table[t] = a[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[64 * g + t] = table[63 - t];  //!
}
""",
        "threadgroup memory 'table'",
        Launch((zeros(256), values(64)), groups=(4,)),
    ),
    Fault(
        "counter_not_reset",
        "an atomic counter in threadgroup memory is never set to zero",
        "uninit",
        """
kernel void faulty(device uint* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint count;
+ if (t == 0) atomic_store_explicit(&count, 0, memory_order_relaxed);
+ threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);  //!
}
""",
        "threadgroup memory 'count'",
        Launch((zeros(64, "u4"),)),
    ),
    Fault(
        "bytes_between",
        "a word is read of which only some bytes were written",
        "uninit",
        """
kernel void faulty(device uint* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup uint s[16];
- if (t % 4 != 3) ((threadgroup uchar*)s)[t] = t;
+ ((threadgroup uchar*)s)[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 16) o[t] = s[t];  //!
}
""",
        "threadgroup memory 's'",
        Launch((zeros(16, "u4"),)),
    ),
)
