"""Accesses outside their buffer, table or array."""

from __future__ import annotations

from fault_host import Host
from fault_model import Fault, Launch, filled, values, zeros


def by_address(host: Host, fixed: bool) -> None:
    """The kernel finds its data through an address in another buffer."""
    # Between them is more than a page: an address near a buffer is reported as the buffer's.
    data, _between, table = host.buffer(), host.buffer(1 << 14), host.buffer()
    table.contents().as_buffer(8)[:] = data.gpuAddress().to_bytes(8, "little")
    commands = host.commands()
    encoder = commands.computeCommandEncoder()
    if fixed:
        encoder.useResource_usage_(data, 1)
    host.dispatch(encoder, "faulty", [host.buffer(), table])
    encoder.endEncoding()
    host.commit(commands)


def by_address_in_heap(host: Host, fixed: bool) -> None:
    heap = host.heap(1024)
    data, table = heap.newBufferWithLength_options_(256, heap.resourceOptions()), host.buffer()
    table.contents().as_buffer(8)[:] = data.gpuAddress().to_bytes(8, "little")
    commands = host.commands()
    encoder = commands.computeCommandEncoder()
    if fixed:
        encoder.useHeap_(heap)
    host.dispatch(encoder, "faulty", [host.buffer(), table])
    encoder.endEncoding()
    host.commit(commands)


BOUNDS = (
    Fault(
        "write_past_end",
        "writes one element past the end of a device buffer",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {
- o[t + 1] = t;  //!
+ o[t] = t;
}
""",
        "beyond buffer 0",
        Launch((zeros(64),)),
    ),
    Fault(
        "read_past_end",
        "reads the right neighbour of the last element",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- o[t] = a[t] + a[t + 1];  //!
+ o[t] = a[t] + a[min(t + 1, 63u)];
}
""",
        "beyond buffer 1",
        Launch((zeros(64), values(64))),
    ),
    Fault(
        "read_before_start",
        "reads the left neighbour of the first element",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
  int t = i;
- o[t] = a[t - 1];  //!
+ o[t] = a[max(t - 1, 0)];
}
""",
        "before buffer 1",
        Launch((zeros(64), values(64))),
    ),
    Fault(
        "write_before_start",
        "a negative index in a write",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], constant int& shift [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- o[int(t) - shift] = t;  //!
+ if (int(t) >= shift) o[int(t) - shift] = t;
}
""",
        "before buffer 0",
        Launch((zeros(64), filled([3], "i4"))),
    ),
    Fault(
        "index_wraps",
        "an unsigned index wraps round below zero",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- uint left = t - 1;
+ uint left = t > 0 ? t - 1 : 0;
  o[t] = a[left];  //!
}
""",
        "",
        Launch((zeros(64), values(64))),
    ),
    Fault(
        "stride_in_bytes",
        "a stride in bytes used as one in elements",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   constant uint& stride [[buffer(2)]], uint t [[thread_position_in_grid]]) {
- o[t] = a[t * stride];  //!
+ o[t] = a[t * stride / 4];
}
""",
        "beyond buffer 1",
        Launch((zeros(16), values(61), filled([16])), threads=(16,)),
    ),
    Fault(
        "loop_one_too_far",
        "a loop with <= where < is meant",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   constant uint& n [[buffer(2)]], uint t [[thread_position_in_grid]]) {
  float sum = 0;
- for (uint i = 0; i <= n; i++)
+ for (uint i = 0; i < n; i++)
    sum += a[t * n + i];  //!
  o[t] = sum;
}
""",
        "beyond buffer 1",
        Launch((zeros(8), values(64), filled([8])), threads=(8,)),
    ),
    Fault(
        "float4_straddles_end",
        "a float4 of which only half is inside the buffer",
        "bounds",
        """
kernel void faulty(device float4* o [[buffer(0)]], device const float4* a [[buffer(1)]],
                   constant uint& n [[buffer(2)]], uint t [[thread_position_in_grid]]) {
- if (4 * t < n) o[t] = a[t];  //!
+ if (4 * t + 3 < n) o[t] = a[t];
}
""",
        "beyond buffer 1",
        Launch((zeros(64), values(62), filled([62])), threads=(16,)),
    ),
    Fault(
        "float4_store_straddles_end",
        "a float4 store over the ragged end of a row",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], constant uint& n [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- if (4 * t < n)
+ if (4 * t + 4 <= n)
    ((device packed_float4*)o)[t] = packed_float4(1.0);  //!
}
""",
        "beyond buffer 0",
        Launch((zeros(61), filled([61])), threads=(16,)),
    ),
    Fault(
        "half_past_end",
        "a half written one past the end",
        "bounds",
        """
kernel void faulty(device half* o [[buffer(0)]], constant uint& n [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- if (t > n) return;
+ if (t >= n) return;
  o[t] = half(t);  //!
}
""",
        "beyond buffer 0",
        Launch((zeros(33, "f2"), filled([33])), threads=(64,)),
    ),
    Fault(
        "uchar_past_end",
        "a byte read one past the end",
        "bounds",
        """
kernel void faulty(device uint* o [[buffer(0)]], device const uchar* a [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- o[t] = a[t + 1] - a[t];  //!
+ o[t] = a[t] - a[max(t, 1u) - 1];
}
""",
        "beyond buffer 1",
        Launch((zeros(37, "u4"), values(37, "u1")), threads=(37,)),
    ),
    Fault(
        "packed_float3_past_end",
        "a packed_float3 one past the last",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const packed_float3* a [[buffer(1)]],
                   constant uint& bytes [[buffer(2)]], uint t [[thread_position_in_grid]]) {
- if (t <= bytes / 12) o[t] = length(float3(a[t]));  //!
+ if (t < bytes / 12) o[t] = length(float3(a[t]));
}
""",
        "beyond buffer 1",
        Launch((zeros(64), values(3 * 16), filled([3 * 16 * 4])), threads=(32,)),
    ),
    Fault(
        "float3_for_packed",
        "float3 takes 16 bytes where the data has 12",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]],
-                  device const float3* a [[buffer(1)]],
+                  device const packed_float3* a [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
  o[t] = a[t].x;  //!
}
""",
        "beyond buffer 1",
        Launch((zeros(16), values(3 * 16)), threads=(16,)),
    ),
    Fault(
        "ulong4_past_end",
        "a 32-byte access of which the last 8 bytes are outside",
        "bounds",
        """
kernel void faulty(device ulong4* o [[buffer(0)]], device const ulong4* a [[buffer(1)]],
                   constant uint& words [[buffer(2)]], uint t [[thread_position_in_grid]]) {
- if (4 * t < words) o[t] = a[t] + 1;  //!
+ if (4 * t + 3 < words) o[t] = a[t] + 1;
}
""",
        "beyond buffer 1",
        Launch((zeros(32, "u8"), values(31, "u8"), filled([31])), threads=(8,)),
    ),
    Fault(
        "struct_copy_past_end",
        "a whole struct copied from one past the last",
        "bounds",
        """
kernel void faulty(device Block* o [[buffer(0)]], device const Block* a [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- o[t] = a[t + 1];  //!
+ o[t] = a[t];
}
""",
        "beyond buffer 1",
        Launch((zeros(18 * 8, "u1"), values(18 * 8, "u1")), threads=(8,)),
        prelude="struct Block { half scale; uchar quants[16]; };",
    ),
    Fault(
        "constant_buffer_too_short",
        "fewer constants bound than the kernel reads",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], constant float* weights [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- o[t] = weights[t];  //!
+ o[t] = weights[t % 48];
}
""",
        "beyond buffer 1",
        Launch((zeros(64), values(48))),
    ),
    Fault(
        "set_bytes_too_short",
        "setBytes of fewer bytes than the kernel reads",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], constant float* weights [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- o[t] = weights[t % 4];  //!
+ o[t] = weights[t % 3];
}
""",
        "beyond buffer 1",
        Launch((zeros(64), values(3, inline=True))),
    ),
    Fault(
        "constant_table",
        "an index past a program-scope constant table",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const uchar* code [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- o[t] = table[code[t]];  //!
+ o[t] = table[code[t] & 7];
}
""",
        "",
        Launch((zeros(64), values(64, "u1"))),
        prelude="constant float table[8] = {1, 2, 4, 8, 16, 32, 64, 128};",
    ),
    Fault(
        "threadgroup_past_end",
        "a threadgroup array one element too short",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
- threadgroup float s[63];
+ threadgroup float s[64];
  s[t] = t;  //!
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[t / 2];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),)),
    ),
    Fault(
        "threadgroup_before_start",
        "a threadgroup array read before its start",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
- o[t] = s[int(t) - 1];  //!
+ o[t] = s[max(int(t) - 1, 0)];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),)),
    ),
    Fault(
        "threadgroup_neighbour",
        "one threadgroup array runs over into the next",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float a[64];
  threadgroup float b[64];
  b[t] = 2 * t;
- a[t + 1] = t;  //!
+ a[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = a[63 - t / 2] + b[63 - t];
}
""",
        "threadgroup memory 'a'",
        Launch((zeros(64),)),
    ),
    Fault(
        "threadgroup_dynamic",
        "less threadgroup memory set than the kernel uses",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], threadgroup float* s [[threadgroup(0)]],
                   uint t [[thread_position_in_threadgroup]]) {
- s[t + 1] = t;  //!
+ s[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = s[63 - t / 2];
}
""",
        "threadgroup memory 's'",
        Launch((zeros(64),), threadgroup=(256,)),
    ),
    Fault(
        "threadgroup_2d",
        "rows and columns of a tile exchanged",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[8][16];
- tile[t.x][t.y] = t.x;  //!
+ tile[t.y][t.x] = t.x;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[16 * t.y + t.x] = tile[t.y][15 - t.x];
}
""",
        "threadgroup memory 'tile'",
        Launch((zeros(128),), threads=(16, 8)),
    ),
    Fault(
        "offset_forgotten",
        "a buffer bound at an offset has fewer elements left",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- o[t] = a[t];  //!
+ o[t] = a[t % 32];
}
""",
        "beyond buffer 1",
        Launch((zeros(64), values(64, offset=128))),
    ),
    Fault(
        "wrong_stride",
        "the padded row length used for unpadded rows",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint2 p [[thread_position_in_grid]]) {
- o[p.y * 16 + p.x] = a[p.y * 17 + p.x];  //!
+ o[p.y * 16 + p.x] = a[p.y * 16 + p.x];
}
""",
        "beyond buffer 1",
        Launch((zeros(256), values(256)), threads=(16, 4), groups=(1, 4)),
    ),
    Fault(
        "ragged_edge",
        "dispatchThreadgroups rounds the grid up and the kernel has no guard",
        "bounds",
        """
kernel void faulty(device float* x [[buffer(0)]], constant uint& n [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
+ if (i < n)
  x[i] *= 2;  //!
}
""",
        "beyond buffer 0",
        Launch((values(100), filled([100])), groups=(2,)),
    ),
    Fault(
        "ragged_edge_2d",
        "a guard for x and none for y",
        "bounds",
        """
kernel void faulty(device float* x [[buffer(0)]], constant uint2& n [[buffer(1)]],
                   uint2 p [[thread_position_in_grid]]) {
- if (p.x < n.x)
+ if (p.x < n.x && p.y < n.y)
    x[p.y * n.x + p.x] += 1;  //!
}
""",
        "beyond buffer 0",
        Launch((values(13 * 11), filled([13, 11])), threads=(8, 8), groups=(2, 2)),
    ),
    Fault(
        "gather_index",
        "a gather with an index that is out of range",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   device const uint* rows [[buffer(2)]], uint t [[thread_position_in_grid]]) {
- o[t] = a[rows[t]];  //!
+ o[t] = rows[t] < 64 ? a[rows[t]] : 0;
}
""",
        "beyond buffer 1",
        Launch((zeros(4), values(64), filled([3, 63, 64, 0])), threads=(4,)),
    ),
    Fault(
        "atomic_past_end",
        "an atomic addition to a bin that does not exist",
        "bounds",
        """
kernel void faulty(device atomic_uint* bins [[buffer(0)]], device const uint* a [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
- atomic_fetch_add_explicit(&bins[a[t] / 4], 1, memory_order_relaxed);  //!
+ atomic_fetch_add_explicit(&bins[a[t] / 5], 1, memory_order_relaxed);
}
""",
        "beyond buffer 0",
        Launch((zeros(15, "u4"), values(64, "u4"))),
    ),
    Fault(
        "simdgroup_matrix_past_end",
        "an 8x8 tile loaded with the wrong row length",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_threadgroup]]) {
  simdgroup_float8x8 tile;
- simdgroup_load(tile, a, 8);  //!
+ simdgroup_load(tile, a, 7);
  simdgroup_store(tile, o, 8);
}
""",
        "beyond buffer 1",
        Launch((zeros(64), values(57)), threads=(32,)),
    ),
    Fault(
        "helper_function",
        "the mistake is in a function that the kernel calls",
        "bounds",
        """
static float middle_faulty(device const float* a, uint t) {
- return (a[t] + a[t + 1]) / 2;  //!
+ return (a[t] + a[min(t + 1, 63u)]) / 2;
}
kernel void faulty(device float* o [[buffer(0)]], device const float* a [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
  o[t] = middle_faulty(a, t);
}
""",
        "beyond buffer 1",
        Launch((zeros(64), values(64))),
    ),
    Fault(
        "address_not_resident",
        "a buffer reached by its address without useResource",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], constant Table& table [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
  o[t] = table.data[t];  //!
}
""",
        "outside every",
        host=by_address,
        prelude="struct Table { device const float* data; };",
    ),
    Fault(
        "heap_not_resident",
        "a heap's buffer reached by its address without useHeap",
        "bounds",
        """
kernel void faulty(device float* o [[buffer(0)]], constant Table& table [[buffer(1)]],
                   uint t [[thread_position_in_grid]]) {
  o[t] = table.data[t];  //!
}
""",
        "outside every",
        host=by_address_in_heap,
        prelude="struct Table { device const float* data; };",
    ),
)
