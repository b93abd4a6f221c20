"""Kernels as PTX, without a GPU: they compile, and ptxas accepts them."""

from __future__ import annotations

import re

import pytest

from softmetal import compiler
from softmetal.errors import CompileError
from softmetal.executors.cuda.target import ARCHITECTURES, PtxTarget, entry_name
from softmetal.toolchain import ptxas
from softmetal.types import CompileOptions

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
THREAD = "uint i [[thread_position_in_grid]], uint l [[thread_index_in_threadgroup]]"
# name -> parameters, body, what the PTX contains
KERNELS = {
    "plain": ("device float* x", "x[i] = x[i] * 2 + 1;", r"st\.global\.b32"),
    "vectors": ("device float4* x", "x[i] = x[i].wzyx;", r"ld\.global\.v[24]"),
    "maths": ("device float* x", "x[i] = sin(x[i]) + precise::exp(x[i]) / x[i];", r"fma\.rn"),
    "exponentials": ("device half3* x", "x[i] = exp(x[i]);", r"(ex2\.approx[^$]*){3}"),
    "halves": ("device half* x, device bfloat* y", "x[i] += half(y[i]);", r"f16"),
    "sums": ("device float* x", "x[i] = simd_sum(x[i]);", r"shfl\.sync"),
    "integer sums": ("device uint* x", "x[i] = simd_sum(x[i]) + simd_max(x[i]);", r"redux\.sync"),
    "bytes": (
        "device uint* x",
        "x[i] = softmetal::dot4<false, true>(x[i], x[i + 1], 3);",
        r"dp4a\.u32\.s32",
    ),
    "exchanges": ("device half4* x", "x[i] = softmetal::exchange(x[i], 4);", r"shfl\.sync\.bfly"),
    "quads": ("device int* x", "x[i] = quad_shuffle_xor(x[i], 1);", r"shfl\.sync"),
    "scans": ("device float* x", "x[i] = simd_prefix_inclusive_sum(x[i]);", r"shfl\.sync"),
    "votes": ("device uint* x", "x[i] = simd_any(x[i] > 3) ? 1 : 0;", r"vote\.sync|activemask"),
    "atomics": (
        "device atomic_uint* x, device atomic_float* y",
        "atomic_fetch_add_explicit(x, i, memory_order_relaxed); "
        "atomic_fetch_add_explicit(y, 1, memory_order_relaxed);",
        r"(atom|red)(\.global)?\.add",
    ),
    "ordered atomics": (
        "device atomic_uint* x",
        "atomic_fetch_add_explicit(x, i, memory_order_acq_rel);",
        r"membar\.gl;\s+(atom|red)\S*\.add\S*[^;]*;\s+membar\.gl",
    ),
    "threadgroup": (
        "device float* x, threadgroup float* s [[threadgroup(0)]]",
        "threadgroup float t[64]; t[l & 63] = x[i]; s[l] = x[i]; "
        "threadgroup_barrier(mem_flags::mem_threadgroup); x[i] = t[63 - (l & 63)] + s[0];",
        r"bar\.sync",
    ),
    "matrices": (
        "device half* x, device float* y",
        "simdgroup_half8x8 a, b; simdgroup_float8x8 c(0); simdgroup_load(a, x); "
        "simdgroup_load(b, x + 64); simdgroup_multiply_accumulate(c, a, b, c); "
        "simdgroup_store(c, y);",
        r"mma\.sync\.aligned\.m16n8k8",
    ),
    "float matrices": (
        "device float* x",
        "simdgroup_float8x8 a, b; simdgroup_load(a, x); simdgroup_load(b, x + 64); "
        "simdgroup_multiply(a, a, b); simdgroup_store(a, x);",
        r"shfl\.sync",
    ),
    "logs": ("device int* x", 'os_log_default.log("%d", x[i]);', r"log_block"),
}


def library(name: str, fast_math: bool = True):
    parameters, body, _ = KERNELS[name]
    source = f"{HEAD}kernel void k({parameters}, {THREAD}) {{ {body} }}"
    return compiler.compile_library(source, CompileOptions(fast_math=fast_math))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, architecture, tmp_path, ptxas_path):
    artifact = compiler.compile_kernel(library(name), "k", {}, target=PtxTarget(architecture))
    text = artifact.path.read_text()
    assert re.search(KERNELS[name][2], text), text
    assert f".target {architecture}" in text
    assert f".entry {entry_name('k')}(" in text
    ptxas.assemble(artifact.path, architecture, tmp_path / "k.cubin")
    assert (tmp_path / "k.cubin").stat().st_size


# Products of 64 rows, or by one simdgroup of 16, where the target has them.
TILES = """
#include <softmetal/tiles>
template <typename T, bool> struct Tensor { static void run(threadgroup T*, device float*) {} };
template <typename T, bool> struct Warpgroup { static void run(threadgroup T*, device float*) {} };
template <typename T> struct Tensor<T, true> {
  static void run(threadgroup T* s, device float* y) {
    softmetal::tensor_left<T, 16, 16> a;
    softmetal::tensor_right<T, 16, 16> b;
    softmetal::tensor_sums<8 * sizeof(T), 16> c;
    for (uint i = 0; i < 2; i++) for (uint j = 0; j < 2; j++) c.set(i, j, 0.0f);
    a.load(s, 24, false);
    b.load(s, 24, true);
    softmetal::multiply_tiles<T, 16, 16, 16>(c, a, b);
    y[0] = c.row_sum(c.pair(1, 1).y);
  }
};
template <typename T> struct Warpgroup<T, true> {
  static void run(threadgroup T* s, device float* y) {
    using Group = softmetal::warpgroup<T>;
    softmetal::warpgroup_sums<32 * sizeof(T)> c;
    const ulong operand = Group::operand(Group::aligned(s), 1024, 1024);
    Group::publish();
    Group::begin();
    Group::template multiply_add<false>(c, operand, operand, false, true);
    Group::commit();
    Group::template wait<0>();
    y[1] = c.pair(1, 7).x;
  }
};
kernel void k(device KIND* x, device float* y, threadgroup KIND* s [[threadgroup(0)]], uint l [[thread_index_in_threadgroup]]) {
  s[l] = x[l];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Tensor<KIND, softmetal::has_tensor_tiles<KIND>>::run(s, y);
  Warpgroup<KIND, softmetal::has_warpgroup_tiles<KIND>>::run(s, y);
}
"""


PREFETCHES = """
#include <softmetal/prefetch>
kernel void k(device const float* w, device float* x, constant uint& n, uint i [[thread_position_in_grid]]) {
  if (i == 0) softmetal::prefetch(w, n * sizeof(float));
  softmetal::await_previous();
  x[i] += w[i];
}
"""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prefetches(architecture, tmp_path, ptxas_path):
    """Where kernels begin early, one that says where it waits does not wait at its entry."""
    program = compiler.compile_library(HEAD + PREFETCHES, CompileOptions())
    artifact = compiler.compile_kernel(program, "k", {}, target=PtxTarget(architecture))
    text = artifact.path.read_text()
    early = architecture != "sm_80"
    assert text.count("griddepcontrol.wait;") == text.count("cp.async.bulk.prefetch.L2") == early
    assert text.find("cp.async.bulk") <= text.find("griddepcontrol.wait;") <= text.find("st.global")
    ptxas.assemble(artifact.path, architecture, tmp_path / "k.cubin")
    assert (tmp_path / "k.cubin").stat().st_size


READS_EARLY = """
#include <softmetal/prefetch>
constant bool EARLY [[function_constant(0)]];
kernel void k(device const float* w, device float* x, uint i [[thread_position_in_grid]]) {
  float first = 0;
  if (EARLY) {
    softmetal::reads_early();
    first = w[i];
  }
  softmetal::await_previous();
  x[i] += EARLY ? first : w[i];
}
"""


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reads_before_the_wait(architecture, early, tmp_path, ptxas_path):
    """The driver is told of kernels that do so, by a name in their module."""
    program = compiler.compile_library(HEAD + READS_EARLY, CompileOptions())
    artifact = compiler.compile_kernel(
        program, "k", {0: bytes([early])}, target=PtxTarget(architecture)
    )
    text = artifact.path.read_text()
    marked = early and architecture != "sm_80"
    assert ("softmetal_reads_early = 1" in text) == marked
    assert (0 <= text.find("ld.global") < text.find("griddepcontrol.wait;")) == marked
    ptxas.assemble(artifact.path, architecture, tmp_path / "k.cubin")
    assert (b"softmetal_reads_early" in (tmp_path / "k.cubin").read_bytes()) == marked


@pytest.mark.parametrize("kind", ["half", "bfloat", "float"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiles(architecture, kind, tmp_path, ptxas_path):
    program = compiler.compile_library(HEAD + TILES.replace("KIND", kind), CompileOptions())
    artifact = compiler.compile_kernel(program, "k", {}, target=PtxTarget(architecture))
    text = artifact.path.read_text()
    halves, hopper = kind != "float", kind != "float" and architecture == "sm_90"
    assert ("mma.sync.aligned.m16n8k16" in text) == ("ldmatrix.sync" in text) == halves
    assert ("wgmma.mma_async" in text) == (".target sm_90a" in text) == hopper
    ptxas.assemble(artifact.path, architecture, tmp_path / "k.cubin")
    assert (tmp_path / "k.cubin").stat().st_size


def test_the_description_is_that_of_the_cpu():
    for name in KERNELS:
        program = library(name, fast_math=False)
        ours = compiler.compile_kernel(program, "k", {}, target=PtxTarget("sm_90"))
        cpus = compiler.compile_kernel(program, "k", {})
        assert ours.arguments == cpus.arguments, name
        assert ours.static_threadgroup_memory == cpus.static_threadgroup_memory, name


def test_function_constants_and_names():
    source = HEAD + (
        "constant uint N [[function_constant(0)]];\n"
        "template <typename T> kernel void fill(device T* x [[buffer(0)]], "
        "uint i [[thread_position_in_grid]]) { x[i] = T(N); }\n"
        'template [[host_name("fill.half-2")]] kernel void fill<half>(device half*, uint);\n'
    )
    program = compiler.compile_library(source, CompileOptions())
    value = (7).to_bytes(4, "little")
    artifact = compiler.compile_kernel(
        program, "fill.half-2", {0: value}, target=PtxTarget("sm_80")
    )
    text = artifact.path.read_text()
    assert ".entry metal_fill_half_2(" in text
    assert "0x4700" in text or "18176" in text  # 7 as a half


def test_low_bytes_of_floats(tmp_path, ptxas_path):
    """ptxas 13.0 would store the number as a byte."""
    source = HEAD + (
        "kernel void k(device const float4* x, device uchar* y, uint i [[thread_position_in_grid]]) {"
        " uchar codes[64];"
        " for (uint j = 0; j < 64; j++)"
        " codes[j] = uchar(as_type<uint>(clamp(rint(x[i][j % 4] / j), 0.0f, 7.0f) + 12582912.0f));"
        " for (uint j = 0; j < 64; j++) y[i] += codes[(i + j * y[0]) % 64]; }"
    )
    program = compiler.compile_library(source, CompileOptions())
    artifact = compiler.compile_kernel(program, "k", {}, target=PtxTarget("sm_90"))
    text = artifact.path.read_text()
    assert re.search(r"cvt\.u16\.u32 %low, %r\d+; st\.local\.b8", text), text
    assert not re.search(r"st\.\w+\.b8 \t\[[^]]*\], %r\d", text)
    ptxas.assemble(artifact.path, "sm_90", tmp_path / "k.cubin")


@pytest.mark.parametrize(
    "body",
    ["x[i] = 3 / x[i];", "x[i] = float4(3, 5, 7, 9) / x[i];", "x[i] = sqrt(x[i]) / x[0];"],
)
def test_quotients_are_no_estimates(body):
    """Those of fast maths would be wrong for large and for denormal numbers."""
    source = f"{HEAD}kernel void k(device float4* x, {THREAD}) {{ {body} }}"
    program = compiler.compile_library(source, CompileOptions(fast_math=True))
    artifact = compiler.compile_kernel(program, "k", {}, target=PtxTarget("sm_90"))
    assert set(re.findall(r"(?:div|sqrt|rcp)\.\w+\.f32", artifact.path.read_text())) <= {
        "div.rn.f32",
        "sqrt.rn.f32",
    }


HOSTILE = {
    "assembly": 'kernel void k(device int* x) { asm volatile("trap;"); x[0] = 1; }',
    "exit": 'extern "C" void exit(int);\nkernel void k(device int* x) { exit(x[0]); }',
}


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_sources(word):
    def build():
        program = compiler.compile_library(HEAD + HOSTILE[word], CompileOptions())
        compiler.compile_kernel(program, "k", {}, target=PtxTarget("sm_90"))

    with pytest.raises(CompileError, match=word):
        build()


@pytest.mark.parametrize("name", ["abs", "neg"])
def test_signs_of_shorts(name, tmp_path, ptxas_path):
    """ptxas 13.0 would compare 32 bits of the result."""
    value = {"abs": "abs(x[i])", "neg": "short(-x[i])"}[name]
    source = HEAD + (
        "kernel void k(device const short* x, device bool* y, uint i [[thread_position_in_grid]]) {"
        f" short a = {value}; y[i] = short(a + a) >= a; }}"
    )
    program = compiler.compile_library(source, CompileOptions())
    artifact = compiler.compile_kernel(program, "k", {}, target=PtxTarget("sm_90"))
    text = artifact.path.read_text()
    assert re.search(rf"{name}\.s32 %wide, %wide; cvt\.u16\.u32", text), text
    assert f"{name}.s16" not in text
    ptxas.assemble(artifact.path, "sm_90", tmp_path / "k.cubin")
