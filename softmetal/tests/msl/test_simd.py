"""Simdgroup functions: every operation on every type, divergence, partial simdgroups, votes."""

from __future__ import annotations

import numpy as np
import pytest
from groups import Library, Refused
from lane_oracle import check_all_ops
from seeds import generator

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"

TYPES = {
    "char": np.int8,
    "uchar": np.uint8,
    "short": np.int16,
    "ushort": np.uint16,
    "int": np.int32,
    "uint": np.uint32,
    "half": np.float16,
    "float": np.float32,
    "float2": np.float32,
    "half4": np.float16,
    "uchar3": np.uint8,
    "int3": np.int32,
}


@pytest.mark.parametrize("msl_type", TYPES)
def test_every_operation(msl_type: str) -> None:
    check_all_ops("simd", 32, msl_type, np.dtype(TYPES[msl_type]))


@pytest.mark.parametrize("fast_math", [True, False])
@pytest.mark.parametrize("msl_type", ["half", "float"])
def test_nan_loses_against_numbers(msl_type: str, fast_math: bool) -> None:
    text = f"""{HEAD}
kernel void extremes(device {msl_type}* out [[buffer(0)]], device const {msl_type}* in [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {{
  out[2 * i] = simd_min(in[i]);
  out[2 * i + 1] = simd_max(in[i]);
}}"""
    dtype = np.dtype(TYPES[msl_type])
    x = np.full(64, np.nan, dtype)
    x[[3, 17]] = [2, -np.inf]
    out = np.zeros((64, 2), dtype)
    Library(text, fast_math=fast_math).run("extremes", [out, x], 64, 64)
    want = np.full((64, 2), np.nan)
    want[:32] = [-np.inf, 2]
    np.testing.assert_array_equal(out.astype(float), want)


# What Metal's functions do not take, with the way in which MLX and PyTorch pass it.
NOT_TAKEN = {
    "bool": ("x[i] > 0", "uint(x[i] > 0)"),
    "bfloat": ("bfloat(x[i])", "as_type<ushort>(bfloat(x[i]))"),
    "long": ("long(x[i])", "as_type<int2>(long(x[i]))"),
    "ulong": ("ulong(x[i])", "as_type<uint2>(ulong(x[i]))"),
    "bool2": ("bool2(x[i] > 0)", "uint2(x[i] > 0)"),
    "bfloat4": ("bfloat4(x[i])", "float4(x[i])"),
    "ulong2": ("ulong2(x[i])", "uint2(x[i])"),
}
CALLS = ["simd_shuffle({}, 1)", "simd_shuffle_down({}, 1)", "simd_broadcast_first({})",
         "simd_sum({})", "simd_max({})", "quad_shuffle_xor({}, 1)", "quad_sum({})"]  # fmt: skip


@pytest.mark.metal
@pytest.mark.parametrize("msl_type", NOT_TAKEN)
def test_types_that_metal_does_not_take(msl_type: str) -> None:
    def source(call: str) -> str:
        return f"""{HEAD}
kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
  auto result = {call};
  x[i] = sizeof(result);
}}"""

    refused, taken = NOT_TAKEN[msl_type]
    for call in CALLS:
        Library(source(call.format(taken)))
        with pytest.raises(Refused, match=r"no matching function for call to '(simd|quad)_"):
            Library(source(call.format(refused)))


# Bodies that give `result`, and what lane i of a full simdgroup gets.
DIVERGENT = {
    "both sides of a branch": (
        "if (lane & 1) result = simd_sum(lane); else result = simd_sum(lane) + 1000;",
        [sum(range(i % 2, 32, 2)) + (0 if i % 2 else 1000) for i in range(32)],
    ),
    "a loop of different lengths": (
        "for (uint k = 0; k <= lane; ++k) result += simd_sum(1u);",
        [sum(32 - k for k in range(i + 1)) for i in range(32)],
    ),
    "a nested branch": (
        "if (lane < 20) { if (lane > 3) result = simd_max(lane); result += simd_sum(1u); }",
        [0 if i >= 20 else 20 + (19 if i > 3 else 0) for i in range(32)],
    ),
    "a switch": (
        "switch (lane % 3) { case 0: result = simd_min(lane); break;"
        " case 1: result = simd_max(lane); break; default: result = simd_sum(1u); }",
        [{0: 0, 1: 31, 2: 10}[i % 3] for i in range(32)],
    ),
    "after an early return": (
        "if (lane == 5 || lane > 29) { out[i] = 7; return; } result = simd_sum(1u);",
        [7 if i == 5 or i > 29 else 29 for i in range(32)],
    ),
    "inside a function called twice": (
        "result = lane < 8 ? total(lane) : total(2 * lane);",
        [sum(range(8)) if i < 8 else 2 * sum(range(8, 32)) for i in range(32)],
    ),
    "a break out of an endless loop": (
        "for (uint k = 0;; ++k) { if (simd_all(k >= lane / 8)) { result = k; break; } }",
        [3] * 32,
    ),
}


@pytest.mark.parametrize("name", DIVERGENT)
@pytest.mark.parametrize("simdgroups", [1, 3])
def test_divergence(name: str, simdgroups: int) -> None:
    body, want = DIVERGENT[name]
    text = f"""{HEAD}
static uint total(uint x) {{ return simd_sum(x); }}
kernel void diverge(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]],
                    uint lane [[thread_index_in_simdgroup]]) {{
  uint result = 0;
  {body}
  out[i] = result;
}}"""
    out = np.zeros(32 * simdgroups, np.uint32)
    Library(text).run("diverge", [out], len(out), len(out))
    assert out.tolist() == want * simdgroups


VOTES = f"""{HEAD}
template <typename V> static ulong bits(V vote) {{ return (typename V::vote_t)vote; }}
kernel void votes(device ulong* out [[buffer(0)]], uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {{
  bool odd = lane & 1;
  device ulong* at = out + 8 * i;
  at[0] = bits(simd_ballot(odd));
  at[1] = bits(simd_active_threads_mask());
  at[2] = simd_all(lane < 32) + 2 * simd_all(odd);
  at[3] = simd_any(odd) + 2 * simd_any(lane > 32);
  at[4] = simd_is_first();
  at[5] = simd_ballot(true).all() + 2 * simd_ballot(odd).any() + 4 * simd_ballot(false).any();
  if (odd) {{
    at[6] = bits(simd_active_threads_mask());
    at[7] = simd_is_first() + 2 * simd_ballot(true).all();
  }}
}}"""


@pytest.mark.metal
def test_votes() -> None:
    threads = 45
    out = np.zeros((threads, 8), np.uint64)
    Library(VOTES).run("votes", [out], threads, threads)
    for i, row in enumerate(out.tolist()):
        lanes = 32 if i < 32 else 13
        everyone, odd = (1 << lanes) - 1, 0xAAAAAAAA & ((1 << lanes) - 1)
        full = int(lanes == 32)
        lane = i % 32
        want = [odd, everyone, 1, 1, int(lane == 0), full + 2, 0, 0]
        if lane % 2:
            want[6:] = [odd, int(lane == 1)]
        assert row == want, i


@pytest.mark.metal
def test_values_cross_a_simdgroup_barrier() -> None:
    text = f"""{HEAD}
kernel void reverse(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]]) {{
  threadgroup uint shared[128];
  for (uint round = 0; round < 3; ++round) {{
    shared[simd * 32 + lane] = i + round;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = shared[simd * 32 + 31 - lane];
    simdgroup_barrier(mem_flags::mem_none);
  }}
}}"""
    out = np.zeros(256, np.uint32)
    Library(text).run("reverse", [out], 256, 128)
    want = np.arange(256).reshape(-1, 32)[:, ::-1].reshape(-1) + 2
    np.testing.assert_array_equal(out, want)


@pytest.mark.metal
def test_two_level_reduction() -> None:
    text = f"""{HEAD}
kernel void total(device float* out [[buffer(0)]], device const float* in [[buffer(1)]],
                  uint i [[thread_position_in_grid]],
                  uint t [[thread_position_in_threadgroup]],
                  uint group [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint simd [[simdgroup_index_in_threadgroup]]) {{
  threadgroup float partial[32];
  if (simd == 0) partial[lane] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = simd_sum(in[i]);
  if (lane == 0) partial[simd] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  if (simd == 0) {{
    sum = simd_sum(partial[lane]);
    if (t == 0) out[group] = sum;
  }}
}}"""
    x = generator(2).standard_normal(5 * 256).astype(np.float32)
    out = np.zeros(5, np.float32)
    Library(text).run("total", [out, x], x.size, 256)
    np.testing.assert_allclose(out, x.astype(float).reshape(5, -1).sum(1), rtol=0, atol=1e-4)


def test_private_names() -> None:
    text = f"""{HEAD}
kernel void private_names(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
  ushort lane = __metal_get_thread_index_in_simdgroup(ushort());
  out[i] = lane + 100 * __metal_simd_sum(1u) +
           10000 * __metal_simd_shuffle_and_fill_up(1u, 0u, 1, __metal_get_simdgroup_size(ushort()));
}}"""
    out = np.zeros(32, np.uint32)
    Library(text).run("private_names", [out], 32, 32)
    assert out.tolist() == [3200] + [13200 + i for i in range(1, 32)]


def test_lane_index_without_any_other_simdgroup_function() -> None:
    text = f"""{HEAD}
kernel void lanes(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
  out[i] = __metal_get_thread_index_in_simdgroup(ushort());
}}"""
    out = np.zeros(96, np.uint32)
    Library(text).run("lanes", [out], 96, 48)
    np.testing.assert_array_equal(out, np.arange(96) % 48 % 32)


@pytest.mark.parametrize("call", ["simd_and(1.0f)", "simd_sum(out)", "simd_xor(half4(1))"])
def test_refused_operands(call: str) -> None:
    text = f"""{HEAD}
kernel void refused(device float* out [[buffer(0)]]) {{ {call}; }}"""
    with pytest.raises(Refused, match="no matching function"):
        Library(text)
