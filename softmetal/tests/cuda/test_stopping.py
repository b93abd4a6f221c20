"""Loops that look whether they have to end, and traps that do not end the process's use of the GPU."""

from __future__ import annotations

import pytest

from softmetal import compiler
from softmetal.executors.cuda.target import PtxTarget
from softmetal.toolchain import ptxas
from softmetal.types import CompileOptions

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
THREAD = "uint i [[thread_position_in_grid]], uint w [[threads_per_grid]]"
FLAG = "atomic_load_explicit((device atomic_uint*)x, memory_order_relaxed)"
SUM = "uint s = 0; {} x[i] = s;"
# name -> body, how many of its loops look, whether it traps
KERNELS = {
    "spin": (f"while ({FLAG} == 0u) {{}}", 1, False),
    "endless": ("for (;;) x[i]++;", 1, False),
    "barriers": (
        f"while ({FLAG} == 0u) threadgroup_barrier(mem_flags::mem_none);",
        1,
        False,
    ),
    "collatz": ("uint v = x[i], c = 0; while (v != 1) { v = v & 1 ? 3 * v + 1 : v / 2; c++; } x[i] = c;", 1, False),
    "step of memory": (SUM.format("for (uint k = 0; k < n; k += x[k]) s++;"), 1, False),
    "end of memory": (SUM.format("for (uint k = 0; k < x[k]; k++) s++;"), 1, False),
    "outer": (SUM.format("for (uint k = 0; k < n; k++) for (uint j = 0; j < x[k]; j++) s += x[k * j];"), 1, False),
    "vectors": ("float4 v = 0; uint k = 0; while (k < x[k]) { v = v.yzwx + float(x[k]); k++; } "
                "x[i] = uint(v.x + v.y * v.z - v.w);", 1, False),
    "constant inside": (SUM.format("for (uint k = 0; k < n; k++) {{ _Pragma(\"nounroll\") for (uint j = 0; j < 60; j++) s += x[k ^ j]; "
                        "_Pragma(\"nounroll\") for (int j = 90; j > 3; j -= 4) s ^= x[k ^ j]; }}"), 0, False),
    "constant outside": (SUM.format("_Pragma(\"nounroll\") for (uint k = 0; k < 60; k++) for (uint j = 0; j < x[k]; j++) s += x[k * j];"), 0, False),
    "many inside": (SUM.format("_Pragma(\"nounroll\") for (uint k = 0; k < n; k++) _Pragma(\"nounroll\") for (uint j = 0; j < 1000000; j++) s += x[k ^ j];"), 1, False),
    "sums of simdgroups": (SUM.format("for (uint k = i; k < n; k += w) s += simd_sum(x[k]);"), 0, False),
    "counted": (SUM.format("for (uint k = 0; k < n; k++) s += x[k];"), 0, False),
    "down": (SUM.format("for (int k = int(n); k > 0; k -= 3) s += x[k];"), 0, False),
    "grid": (SUM.format("for (uint k = i; k < n; k += w) s += x[k];"), 0, False),
    "left early": (SUM.format("for (uint k = i; k < n; k++) { if (x[k] == 7) break; s += x[k]; }"), 0, False),
    "halves": ("for (uint h = n / 2; h; h /= 2) { if (i < h) x[i] += x[i + h]; "
               "threadgroup_barrier(mem_flags::mem_device); }", 0, False),
    "unrolled": (SUM.format("for (uint k = 0; k < 4; k++) s += x[k];"), 0, False),
    "trap": ("if (x[i] != 5) __builtin_trap(); x[i] = 1;", 0, True),
    "trap in a loop": (f"while ({FLAG} == 0u) if (x[1]) __builtin_debugtrap();", 1, True),
}  # fmt: skip


def ptx(name: str, target: PtxTarget):
    source = (
        f"{HEAD}kernel void k(device uint* x, constant uint& n, {THREAD}) {{ {KERNELS[name][0]} }}"
    )
    program = compiler.compile_library(source, CompileOptions())
    return compiler.compile_kernel(program, "k", {}, target=target).path


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, tmp_path, ptxas_path):
    _, looks, traps = KERNELS[name]
    path = ptx(name, PtxTarget("sm_90"))
    text = path.read_text()
    assert text.count("ld.volatile.global.u64 %stop, [%control+0]") == looks, text
    assert text.count(" exit;") == looks + traps
    assert "\ttrap;" not in text
    ptxas.assemble(path, "sm_90", tmp_path / "k.cubin")


def test_without_a_limit_nothing_looks():
    assert "%clock_hi" not in ptx("spin", PtxTarget("sm_90", stoppable=False)).read_text()
