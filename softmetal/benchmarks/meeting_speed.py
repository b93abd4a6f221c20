"""Kernels with barriers and simdgroup functions as loops over threads, beside one fiber a thread.

python softmetal/benchmarks/meeting_speed.py    # prints the table of docs/explanation/regions.md

Processor time of one thread, medians of rounds in which both take turns.
"""

import os
import statistics
import struct
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

os.environ["SOFTMETAL_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import numpy as np
from numpy.typing import NDArray
from wheels import FOLDER, llama_kernels, wheel

from softmetal import compiler
from softmetal.compiler.native import NativeTarget
from softmetal.executors.cpu import CpuExecutor
from softmetal.types import CompileOptions, Dispatch

ROUNDS = 5
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SOURCE = (
    HEAD
    + """
kernel void tiled(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                  device float* c [[buffer(2)]], constant uint& n [[buffer(3)]],
                  uint2 g [[thread_position_in_grid]],
                  uint2 l [[thread_position_in_threadgroup]]) {
  threadgroup float ta[16][16], tb[16][16];
  float s = 0;
  for (uint t = 0; t < n; t += 16) {
    ta[l.y][l.x] = a[g.y * n + t + l.x];
    tb[l.y][l.x] = b[(t + l.y) * n + g.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < 16; k++) s += ta[l.y][k] * tb[k][l.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  c[g.y * n + g.x] = s;
}
kernel void tree(device const float* a [[buffer(0)]], device float* c [[buffer(2)]],
                 constant uint& n [[buffer(3)]], uint l [[thread_position_in_threadgroup]],
                 uint r [[threadgroup_position_in_grid]]) {
  threadgroup float p[256];
  float s = 0;
  for (uint k = l; k < n; k += 256) s += a[r * n + k];
  p[l] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint h = 128; h > 0; h >>= 1) {
    if (l < h) p[l] += p[l + h];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (l == 0) c[r] = p[0];
}
kernel void bitonic(device const float* a [[buffer(0)]], device float* c [[buffer(2)]],
                    uint l [[thread_position_in_threadgroup]],
                    uint r [[threadgroup_position_in_grid]]) {
  threadgroup float x[512];
  x[l] = a[512 * r + l];
  x[l + 256] = a[512 * r + l + 256];
  for (uint k = 2; k <= 512; k *= 2)
    for (uint j = k / 2; j > 0; j /= 2) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      uint i = 2 * l - (l & (j - 1));
      bool up = (i & k) == 0;
      float lower = x[i], upper = x[i + j];
      if ((lower > upper) == up) x[i] = upper, x[i + j] = lower;
    }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  c[512 * r + l] = x[l];
  c[512 * r + l + 256] = x[l + 256];
}
kernel void histogram(device const uint* a [[buffer(0)]], device atomic_uint* c [[buffer(2)]],
                      constant uint& n [[buffer(3)]], uint l [[thread_position_in_threadgroup]],
                      uint g [[thread_position_in_grid]]) {
  threadgroup atomic_uint bins[256];
  atomic_store_explicit(&bins[l], 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = 0; k < 4; k++)
    atomic_fetch_add_explicit(&bins[a[4 * g + k] % 256], 1, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&c[l], atomic_load_explicit(&bins[l], memory_order_relaxed),
                            memory_order_relaxed);
}
kernel void softmax(device const float* a [[buffer(0)]], device float* c [[buffer(2)]],
                    constant uint& n [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
                    uint t [[thread_position_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[8];
  device const float* x = a + n * row;
  float top = -INFINITY;
  for (uint i = t; i < n; i += 256) top = max(top, x[i]);
  top = simd_max(top);
  if (lane == 0) partial[simd] = top;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < 8; i++) top = max(top, partial[i]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
  for (uint i = t; i < n; i += 256) sum += exp(x[i] - top);
  sum = simd_sum(sum);
  if (lane == 0) partial[simd] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = 0;
  for (uint i = 0; i < 8; i++) sum += partial[i];
  for (uint i = t; i < n; i += 256) c[n * row + i] = exp(x[i] - top) / sum;
}
"""
)
N = 512
Array = NDArray[Any]
LENGTH = np.array([N], np.uint32)
_RANDOM = np.random.default_rng(1)
FLOATS = _RANDOM.standard_normal(1 << 18).astype(np.float16).astype(np.float32)
HALVES = np.tile(FLOATS[: 1 << 14].astype(np.float16), 32)


class Case(NamedTuple):
    name: str
    source: str
    kernel: str
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    options: CompileOptions = CompileOptions()
    constants: Mapping[int, bytes] = MappingProxyType({})
    buffers: tuple[Array | None, ...] = (FLOATS, FLOATS, None, LENGTH)  # None is the result's
    memory: tuple[int, ...] = ()


def cases() -> list[Case]:
    ours = [
        ("tiled product", "tiled", (256, 256, 1), (16, 16, 1)),
        ("tree sums", "tree", (256 * N, 1, 1), (256, 1, 1)),
        ("bitonic sort", "bitonic", (256 * 256, 1, 1), (256, 1, 1)),
        ("histogram", "histogram", (65536, 1, 1), (256, 1, 1)),
        ("softmax", "softmax", (256 * N, 1, 1), (256, 1, 1)),
    ]
    return [*(Case(name, SOURCE, *rest) for name, *rest in ours), *_llama(), *_mlx()]


def _mlx() -> Iterator[Case]:
    """steel GEMM on 256 x 256 x 512, affine_qmv_fast on 256 x 512."""
    kernels = "mlx/backend/metal/kernels"
    folder = FOLDER / "mlx-include"
    with zipfile.ZipFile(wheel("mlx-metal")) as archive:
        names = [name for name in archive.namelist() if name.startswith("mlx/include/")]
        archive.extractall(folder, names)
    options = CompileOptions(include_dirs=(str(folder / "mlx" / "include"),))

    def source(*headers: str) -> str:
        lines = (f'#include "{kernels}/{header}"\n' for header in ("utils.h", *headers))
        return "#include <metal_stdlib>\n" + "".join(lines)

    gemm = source("steel/gemm/gemm.h", "steel/gemm/kernels/steel_gemm_fused.h")
    m, n, k = 256, 256, N
    parameters = struct.pack("<8i3q3i4x", m, n, k, k, n, n, n // 64, m // 64, m * k, k * n, m * n,
                             0, k // 16, 1)  # fmt: skip
    given = np.frombuffer(parameters, np.uint8)
    constants = {10: b"\0", 100: b"\0", 110: b"\0", 200: b"\1", 201: b"\1", 202: b"\1"}
    for kind, values in (("float", FLOATS), ("half", HALVES)):
        text = f'{gemm}instantiate_kernel("k", gemm, {kind}, 64, 64, 16, 2, 2, false, false, float)'
        yield Case(f"MLX steel GEMM {kind}", text, "k", (32 * n // 64, 2 * m // 64, 2), (32, 2, 2),
                   options, constants, (values, values, None, None, given))  # fmt: skip
    text = source("steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")
    text += 'instantiate_kernel("k", affine_qmv_fast, float, 64, 4, false)'
    columns, rows, zero = (np.array([x], np.int32) for x in (k, m, 0))
    shape, strides = np.array([1, k], np.int32), np.array([k, 1], np.int64)
    yield Case("MLX affine_qmv_fast 4 bits", text, "k", (32, 2 * m // 8, 1), (32, 2, 1), options,
               {}, (FLOATS, FLOATS, FLOATS, FLOATS, None, columns, rows, zero, shape, strides, zero,
                shape, strides, strides, strides))  # fmt: skip


def _llama() -> list[Case]:
    """mul_mm on 256 x 256 x 512, mul_mv on 256 x 512."""
    folder = llama_kernels()
    folders = (folder / "kernels", folder, folder.parent)
    options = CompileOptions(
        include_dirs=tuple(map(str, folders)), macros=(("GGML_METAL_HAS_BF16", "1"),)
    )
    found = []
    for kind, row in (("f16", 2 * N), ("q4_0", N // 32 * 18)):
        k, rows = N, 256
        product = struct.pack("<iiQQQi4xQQQQiihh4x", k, 1, row, row * rows, row * rows, 1, 4, 4 * k,
                              4 * k * rows, 4 * k * rows, rows, rows, 1, 1)  # fmt: skip
        source = (folder / "kernels" / "mul_mm.metal").read_text()
        one, no = b"\1\0", b"\0"
        constants = {700: no, 701: no, 702: one, 703: one, 704: one, 705: one, 706: no}
        found.append(Case(f"llama.cpp mul_mm {kind}", source, f"kernel_mul_mm_{kind}_f32",
                          (128 * rows // 32, rows // 64, 1), (128, 1, 1), options, constants,
                          (np.frombuffer(product, np.uint8), HALVES, FLOATS, None),
                          (8192,)))  # fmt: skip
        element = 2 if kind == "f16" else 18
        vector = struct.pack("<iii4xQQQQiii4xQQQQiiihh", k, rows, 1, element, row, row * rows,
                             row * rows, k, 1, 1, 4, 4 * k, 4 * k, 4 * k, rows, 1,
                             4 if kind == "q4_0" else 2, 1, 1)  # fmt: skip
        source = (folder / "kernels" / "mul_mv.metal").read_text()
        simdgroups = 2 if kind == "q4_0" else 4
        constants = {600: bytes([simdgroups, 0]), 601: bytes([8, 0]), 602: one, 603: one, 604: one,
                     605: no}  # fmt: skip
        each = 4 * simdgroups if kind == "q4_0" else 2
        found.append(Case(f"llama.cpp mul_mv {kind}", source, f"kernel_mul_mv_{kind}_f32",
                          (32 * rows // each, simdgroups, 1), (32, simdgroups, 1), options,
                          constants, (np.frombuffer(vector, np.uint8), HALVES, FLOATS, None),
                          (8192,)))  # fmt: skip
    return found


class Bench:
    def __init__(self) -> None:
        self.executor = CpuExecutor()
        self.queue = self.executor.new_queue()
        self.c = np.zeros(1 << 18, np.float32)

    def kernel(self, case: Case, fibers: bool) -> tuple[int, str, float]:
        program, _ = compiler.check(case.source, case.options)
        began = time.perf_counter()
        artifact = compiler.compile_kernel(
            program, case.kernel, case.constants, target=NativeTarget(fibers)
        )
        return self.executor.load(artifact), artifact.mode.name, time.perf_counter() - began

    def run(self, case: Case, kernel: int, times: int = 1) -> float:
        buffers = (self.c if each is None else each for each in case.buffers)
        addresses = tuple(each.ctypes.data for each in buffers)
        one = Dispatch(kernel, case.grid, case.group, addresses, case.memory)
        began = time.process_time()
        ticket = self.executor.submit(self.queue, [one] * times)
        done = self.executor.wait(ticket, None)
        taken = time.process_time() - began
        self.executor.forget(ticket)
        assert done is not None
        if done.error:
            raise RuntimeError(f"{case.name}: {done.error}")
        return taken / times


def main() -> None:
    bench = Bench()
    print("| kernel | mode | fibers, ms | loops, ms | times |")
    print("|---|---|---|---|---|")
    for case in cases():
        if sys.argv[1:] and not any(word in case.name for word in sys.argv[1:]):
            continue
        (old, *_), (new, mode, _) = bench.kernel(case, True), bench.kernel(case, False)
        bench.c[:] = 0
        first = bench.run(case, old)
        expected = bench.c.copy()
        bench.c[:] = 0
        bench.run(case, new)
        assert expected.any(), case.name
        same = np.allclose(bench.c, expected, rtol=1e-3, atol=1e-2, equal_nan=True)
        assert same, case.name
        times = max(1, int(0.05 / first))
        pairs = [(bench.run(case, old, times), bench.run(case, new, times)) for _ in range(ROUNDS)]
        before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(f"| {case.name} | {mode} | {1e3 * before:.2f} | {1e3 * after:.2f} | "
              f"{before / after:.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
