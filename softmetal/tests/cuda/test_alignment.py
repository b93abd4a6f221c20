"""Vectors at multiples of their element: accesses that may be so look at the address."""

from __future__ import annotations

import re

import pytest

from softmetal import compiler
from softmetal.executors.cuda.target import PtxTarget
from softmetal.toolchain import ptxas
from softmetal.types import CompileOptions

HEAD = "#include <metal_stdlib>\nusing namespace metal;\nstruct pair { float4 a; float b; };\n"
THREAD = "constant uint& n [[buffer(5)]], uint i [[thread_position_in_grid]]"
# name -> parameters, body, how many accesses look at their address; LLVM knows that of variables
KERNELS = {
    "typed": ("device float4* x", "x[i] = x[i + 1] * 2;", 0),
    "steps": ("device float4* x", "device float* y = (device float*)x; x[i] = *(device float4*)(y + 4 * i + 8);", 0),
    "structures": ("device pair* x", "x[i].a = x[n].a + x[i].b;", 0),
    "halves": ("device half4* x", "x[i] = x[n];", 0),
    "a loop": ("device float4* x", "float4 s = 0; for (uint k = i; k < n; k += 32) s += x[k]; x[i] = s;", 0),
    "a scalar's pointer": ("device float* x", "*(device float4*)(x + 4 * i) += 1;", 2),
    "odd steps": ("device float4* x", "*(device float4*)((device float*)x + i) += 1;", 2),
    "rows": ("device float4* x", "x[i] = *(device float4*)((device float*)x + i * n);", 1),
    "pairs": ("device float* x", "*(device float2*)(x + i) = *(device float2*)(x + n);", 2),
    "copied halves": ("device half* x", "*(device half4*)(x + i) = *(device half4*)(x + n);", 2),
    "bytes": ("device uchar* x", "uchar4 v = *(device uchar4*)(x + i); x[n] = v.x + v.w;", 0),
    "packed": ("device packed_float4* x", "x[i] = float4(x[n]) * 2;", 0),
    "threadgroup": ("device float4* x", "threadgroup float t[68]; for (uint k = 0; k < n; k++) t[k] = k; x[i] = *(threadgroup float4*)(t + i);", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, tmp_path, ptxas_path):
    parameters, body, looks = KERNELS[name]
    source = f"{HEAD}kernel void k({parameters}, {THREAD}) {{ {body} }}"
    program = compiler.compile_library(source, CompileOptions())
    artifact = compiler.compile_kernel(program, "k", {}, target=PtxTarget("sm_90"))
    text = artifact.path.read_text()
    assert len(re.findall(r"// %parts", text)) == looks, text
    ptxas.assemble(artifact.path, "sm_90", tmp_path / "k.cubin")
