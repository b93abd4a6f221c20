"""Overloads that differ in address spaces only and have different bodies: each call runs its own."""

from __future__ import annotations

import pytest

import softmetal
from softmetal import compiler
from softmetal.errors import CompileError
from softmetal.types import CompileOptions

SOURCE = """#include <metal_stdlib>
using namespace metal;
int which(device const int* p) { return 1; }
int which(thread const int* p) { return 2; }
int which(constant int* p) { return 3; }
int which(threadgroup const int* p) { return which((thread const int*)nullptr) + 2; }
namespace inner {
template <typename T> T scaled(device T* p) { return *p * 10; }
template <typename T> T scaled(thread T* p) { return *p * 100; }
}
struct Box {
  int n;
  int place() const thread { return 7; }
  int place() const device { return 8; }
};
template <typename T> int both(device T* p) { return inner::scaled(p); }
constant int table[1] = {5};
kernel void k(device int* out [[buffer(0)]], constant int& c [[buffer(1)]],
              device Box* boxes [[buffer(2)]], threadgroup int* t [[threadgroup(0)]]) {
  int v = 3;
  Box box = {1};
  out[0] = which(out); out[1] = which(&v); out[2] = which(&c); out[3] = which(t);
  out[4] = 2; out[5] = both(out + 4); out[6] = inner::scaled(&v);
  out[7] = box.place(); out[8] = boxes[0].place(); out[9] = which(table);
}
"""


@pytest.mark.parametrize("strict", [False, True])
def test_each_call_runs_its_own(strict: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "msl" if strict else "no-msl")
    device = softmetal.MTLCreateSystemDefaultDevice()
    library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    assert library is not None, error
    function = library.newFunctionWithName_("k")
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is not None, error
    buffers = [device.newBufferWithLength_options_(64, 0) for _ in range(3)]
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    for index, buffer in enumerate(buffers):
        encoder.setBuffer_offset_atIndex_(buffer, 0, index)
    encoder.setThreadgroupMemoryLength_atIndex_(16, 0)
    one = softmetal.MTLSizeMake(1, 1, 1)
    encoder.dispatchThreads_threadsPerThreadgroup_(one, one)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    got = buffers[0].contents().as_buffer(64).cast("i")[:10].tolist()
    assert got == [1, 2, 3, 4, 2, 20, 300, 7, 8, 3]


REFUSED = {
    "a call that means both": (
        "template <typename P> int twice(P p) { return which(p) * 2; }\n"
        "kernel void j(device int* o) { int v = 1; o[0] = twice(o) + twice(&v); }\n",
        "the overloads of 'which' for this call differ between instances of a template",
    ),
    "operators": (
        "struct B { int n; int operator+(int m) const thread { return 1; }\n"
        "  int operator+(int m) const device { return 2; } };\n",
        "overloads of 'operator' that differ in address spaces only",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    more, message = REFUSED[name]
    with pytest.raises(CompileError) as caught:
        compiler.compile_library(SOURCE + more, CompileOptions())
    assert message in caught.value.diagnostics
    assert caught.value.diagnostics.startswith("program_source:")


def test_errors_have_the_names_of_the_source():
    more = "int wrong(device int* p) { return which(p, 1); }\n"
    with pytest.raises(CompileError) as caught:
        compiler.compile_library(SOURCE + more, CompileOptions())
    assert "no matching function for call to 'which'" in caught.value.diagnostics
    assert "softmetal_overload" not in caught.value.diagnostics
