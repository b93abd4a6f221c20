"""Spellings and shapes of kernels that clients of Metal generate."""

from __future__ import annotations

import numpy as np
import pytest

ALIGNED = {
    "after the address space": "threadgroup __attribute__((aligned(16))) float b[16];",
    "before the address space": "__attribute__((aligned(16))) threadgroup float b[16];",
    "alignas after": "threadgroup alignas(16) float b[16];",
    "alignas before": "alignas(16) threadgroup float b[16];",
    "after the type": "threadgroup float __attribute__((aligned(16))) b[16];",
    "at the end": "threadgroup float b[16] __attribute__((aligned(16)));",
    "two variables": "threadgroup __attribute__((aligned(16))) float b[16], c[3];",
}


def run(device, source, *arrays):
    """The arrays after one threadgroup of 16 threads."""
    library, error = device.newLibraryWithSource_options_error_(
        f"#include <metal_stdlib>\nusing namespace metal;\n{source}", None, None
    )
    assert library is not None, error
    function = library.newFunctionWithName_("k")
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is not None, error
    buffers = [device.newBufferWithBytes_length_options_(a, a.nbytes, 0) for a in arrays]
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    for index, buffer in enumerate(buffers):
        encoder.setBuffer_offset_atIndex_(buffer, 0, index)
    encoder.dispatchThreads_threadsPerThreadgroup_((16, 1, 1), (16, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None
    return [np.frombuffer(b.contents().as_buffer(a.nbytes), a.dtype)
            for b, a in zip(buffers, arrays, strict=True)]  # fmt: skip


@pytest.mark.parametrize("declaration", ALIGNED.values(), ids=ALIGNED)
def test_alignment_of_threadgroup_memory(declaration, device):
    source = f"""
    kernel void k(device float* x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {{
      {declaration}
      b[t] = x[t];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      float4 v = *((threadgroup __attribute__((aligned(16))) float4*)(b + 4));
      x[t] = b[15 - t] + 100 * v.y + (ulong(b) % 16);
    }}"""
    x = np.arange(16, dtype=np.float32)
    (found,) = run(device, source, x)
    np.testing.assert_array_equal(found, x[::-1] + 500)


# Spellings in kernels of MLX and others, which Apple's compiler takes. Each gives 5.
SPELLINGS = {
    "octal indices": (
        "constant int a [[function_constant(00)]]; constant int b [[function_constant(010)]];"
        "constant int c [[function_constant(10)]];",
        "x[0] = (is_function_constant_defined(a) ? a : 2) + "
        "(is_function_constant_defined(b) ? b : 1) + (is_function_constant_defined(c) ? c : 2);",
    ),
    "a variable called forward": (
        "constant bool forward [[function_constant(1)]];",
        "x[0] = is_function_constant_defined(forward) && forward ? 4 : 5;",
    ),
    "metal::forward": (
        "template <typename T> float pass(T&& v) { return metal::forward<T>(v) + 1; }",
        "x[0] = pass(4.0f);",
    ),
    "its own system scope": (
        "namespace metal { constexpr constant metal::thread_scope thread_scope_system = "
        "static_cast<thread_scope>(__METAL_MEMORY_SCOPE_SYSTEM__); }",
        "x[0] = metal::thread_scope_system == 3 ? 5 : 0;",
    ),
    "the system scope": ("", "x[0] = thread_scope_system == metal::thread_scope_system ? 5 : 0;"),
    "zeros for threadgroup memory": (
        "",
        "threadgroup float s[8] = {0}, u[2] = {}; threadgroup int2 w{0, 0}; s[0] = 4; u[1] = 1;"
        "w.x = 0; x[0] = s[0] + u[1] + w.x;",
    ),
    "zero for threadgroup variables": (
        "",
        "threadgroup float s = 0.0f; threadgroup int n = 0, m = 0; threadgroup bool b = false;"
        "s = 2; n = 3; m = 0; b = true; x[0] = b ? s + n + m : 0;",
    ),
    "assert, which no header was included for": ("", "assert(i > 5); x[0] = 5;"),
    "attributes of members that mean nothing": (
        "struct V { float a [[user(a)]]; };",
        "V v; v.a = 5; x[0] = v.a;",
    ),
    "lists of too few numbers": (
        "constant int4 c = {1, 1};",
        "uint a = 1, b = 2; uint4 v = {a, a ^ b, b}; float2 p = {3, 4}; float3 w = {1, 2};"
        "float4 f = {p, 5}, whole = {p, p}; int3 y = {1, int2(2, 3)};"
        "bool right = v.x == 1 && v.y == 3 && v.z == 2 && v.w == 0 && c.y == 1 && c.w == 0 &&"
        "f.y == 4 && f.z == 5 && f.w == 0 && whole.w == 4 && w.y == 2 && w.z == 0 && y.z == 3;"
        "x[0] = right ? 5 : 0;",
    ),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_spellings_of_others(case, device):
    before, body = SPELLINGS[case]
    source = f"#include <metal_stdlib>\nusing namespace metal;\n{before}\n"
    source += f"kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{ if (i) return; {body} }}"
    assert run(device, source, np.zeros(1, np.float32))[0] == [5]


def test_functions_are_found_by_the_namespace_of_an_argument(device):
    source = """#include <metal_stdlib>
    kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
      simdgroup_barrier(metal::mem_flags::mem_none);
      threadgroup_barrier(metal::mem_flags::mem_threadgroup | metal::mem_flags::mem_device);
      atomic_thread_fence(metal::mem_flags::mem_device, metal::memory_order_seq_cst);
      if (i == 0) x[0] = 5;
    }"""
    assert run(device, source, np.zeros(1, np.float32))[0] == [5]


DEDUCED = """
template <int N> struct Offsets { int by[N]; };
template <typename T, int N> [[kernel]] void add(
    device T* x [[buffer(0)]], constant const Offsets<N>& o, uint i [[thread_position_in_grid]]) {
  for (int n = 0; n < N; n++) x[i] += T(o.by[n]);
}
template <typename T> [[kernel]] void add(device T* x [[buffer(0)]], constant T& one) { x[0] += one; }
template [[host_name("k")]] [[kernel]] void add(
    device float* x [[buffer(0)]], constant const Offsets<2>& o, uint i [[thread_position_in_grid]]);
template [[host_name("three")]] [[kernel]] void add(
    device uint* x, constant const Offsets<3>&, uint i);
template [[host_name("other")]] [[kernel]] void add(device int* x, constant int& one);
"""


def test_instantiations_whose_arguments_are_deduced(device):
    x, offsets = np.zeros(16, np.float32), np.array([2, 3], np.int32)
    found, _ = run(device, DEDUCED, x, offsets)
    np.testing.assert_array_equal(found, x + 5)


def test_an_instantiation_that_no_template_fits(device):
    source = f"#include <metal_stdlib>\nusing namespace metal;\n{DEDUCED}\n"
    source += "template kernel void add(device float* x, constant const Offsets<2>* o, uint i);"
    library, error = device.newLibraryWithSource_options_error_(source, None, None)
    assert library is None
    assert "no kernel template has these parameters" in error.localizedDescription()


@pytest.mark.parametrize("kind", ["float", "int"])
def test_a_long_maximum_compiles(kind, device):
    """LLVM's vectoriser takes exponential time for it if it is let."""
    source = f"""
    kernel void k(device {kind}* y [[buffer(0)]], device {kind}* x [[buffer(1)]],
                  uint g [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {{
      {kind} most[1] = {{-1000}};
      for (int r = 0; r < 45; r++) {{ {kind} v = *(x + r), m = *most; *most = (m < v) ? v : m; }}
      int i = g * 16 + t;
      *(y + i) = *(x + i) - *most;
    }}"""
    x = (
        np.random.default_rng(1)
        .permutation(45)
        .astype({"float": np.float32, "int": np.int32}[kind])
    )
    found, _ = run(device, source, np.zeros_like(x), x)
    np.testing.assert_array_equal(found[:16], x[:16] - 44)
