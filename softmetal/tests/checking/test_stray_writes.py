"""Under `bounds` no kernel writes to memory of the process that it was not given."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from fault_host import Host
from fault_model import HEAD

import softmetal

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")

TYPES = """
template <class T, int n> using V = T __attribute__((ext_vector_type(n)));
struct S { uchar a[99]; };
struct B { int a : 3; int b : 9; };
__attribute__((noinline)) void write(device uchar* p) { *p = 65; }
__attribute__((optnone, noinline)) void write_slowly(device uchar* p) { *p = 65; }
"""
# x[0] is the address of memory that the kernel must not change; x[1] is 0, which clang cannot know.
STRAY = {
    "store": "*(device uchar*)x[0] = 65;",
    "vector": "*(device float4*)x[0] = 1;",
    "bit-field": "((device B*)x[0])->b = 5;",
    "copy": "*(device S*)x[0] = *(device S*)x;",
    "memset": "__builtin_memset((device void*)x[0], 65, x[1] + 1);",
    "inline memcpy": "__builtin_memcpy_inline((device void*)x[0], x, 8);",
    "nontemporal": "__builtin_nontemporal_store(65, (device int*)x[0]);",
    "overflow": "__builtin_add_overflow(1u, 64u, (device uint*)x[0]);",
    "frexp": "x[2] = __builtin_frexpf(float(x[1]) + 3, (thread int*)x[0]);",
    "atomic": "atomic_store_explicit((device atomic_int*)x[0], 65, memory_order_relaxed);",
    "function": "write((device uchar*)x[0]);",
    "unoptimised function": "write_slowly((device uchar*)x[0]);",
    "function by its pointer": (
        "void (*volatile f)(device uchar*) = write; f((device uchar*)x[0]);"
    ),
    "matrix": "simdgroup_float8x8 m(1); simdgroup_store(m, (device float*)x[0], 8);",
    "operation of our own": (
        "softmetal::operate_reduce<softmetal::sum, 32, float, 1>((const sm_lanes*)x[0]);"
    ),
    "size that wraps": "__builtin_memset(x + 3, 65, x[1] - 1);",
    "size that leaves the stack": (
        "int n[40]; n[x[1]] = 1; __builtin_memset(n, 65, x[1] + (1ul << 40)); x[2] = n[3];"
    ),
    "state of the fibers": (
        "int n[40]; n[x[1]] = 1; threadgroup_barrier(mem_flags::mem_device); "
        "*(thread ulong*)((ulong)n & ~((1ul << 29) - 1)) = 77; x[2] = n[3];"
    ),
}


@pytest.mark.parametrize("name", STRAY)
def test_stray_writes(name, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "no-msl")
    kernel = f"kernel void k(device ulong* x [[buffer(0)]]) {{ {STRAY[name]} }}\n"
    memory = mmap.mmap(-1, 1 << 14)
    with softmetal.checking("bounds"):
        host = Host(HEAD + TYPES + kernel)
        out = host.buffer(64)
        words = np.frombuffer(out.contents().as_buffer(256), "u8")
        words[0] = np.frombuffer(memory, "u1").ctypes.data + 4096
        commands = host.commands()
        host.run_one(commands, "k", [out])
        host.commit(commands)
        findings = host.findings()
    assert not any(memory[:])
    assert findings
    assert all(finding.startswith("bounds: ") for finding in findings)


def test_values_larger_than_what_can_be_checked(monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "no-msl")
    with softmetal.checking("bounds"):
        host = Host("kernel void k(device int* x) { *(device _BitInt(80000)*)x = x[1]; }")
        function = host.library.newFunctionWithName_("k")
        pipeline, error = host.device.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is None
    assert "a value of 10000 bytes is accessed at once" in error.localizedDescription()
