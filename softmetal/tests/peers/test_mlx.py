"""MLX's own kernels, from the headers in its macOS wheel: they pass the check, and some are run."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from metal_launch import launch, make_pipeline
from seeds import generator

from softmetal import compiler
from softmetal.types import CompileOptions

KERNELS = "mlx/backend/metal/kernels"
# What MLX's .metal files include before a header that does not stand alone, by its path's beginning.
GENERAL = ["utils.h", "atomic.h", "reduction/ops.h", "steel/gemm/gemm.h"]
PRELUDES = {
    "steel/attn": ["utils.h"],
    "steel/conv/kernels": ["utils.h", "steel/conv/conv.h", "steel/conv/loaders/loader_general.h"],
    "steel/conv": ["utils.h", "steel/defines.h", "steel/conv/params.h"],
    "searchsorted": ["utils.h", "sort.h"],
}
# Needs Metal 4's tensor operations, or is host code.
LEFT_OUT = ("nax", "jit")
BATCHES = 8


def source(*headers: str) -> str:
    return "#include <metal_stdlib>\n" + "".join(f'#include "{KERNELS}/{h}"\n' for h in headers)


@pytest.mark.parametrize(
    "batch", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, BATCHES))]
)
def test_headers_pass_the_check(mlx_include: Path, batch: int) -> None:
    root = mlx_include / KERNELS
    headers = sorted(str(p.relative_to(root)) for p in root.rglob("*.h"))
    headers = [h for h in headers if not any(word in h for word in LEFT_OUT)]
    assert len(headers) > 60
    options = CompileOptions(include_dirs=(str(mlx_include),), strict=True)
    for header in headers[batch::BATCHES]:
        prelude = next((p for start, p in PRELUDES.items() if header.startswith(start)), GENERAL)
        compiler.check(source(*prelude, header), options)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float16, 2e-3)])
@pytest.mark.parametrize("columns", [4, 37, 1000])
def test_softmax(mlx_include: Path, columns: int, dtype: type, tolerance: float) -> None:
    rows = 5
    name = {np.float32: "float", np.float16: "half"}[dtype]
    text = (
        source("utils.h", "softmax.h")
        + f'instantiate_kernel("k", softmax_single_row, {name}, float)'
    )
    x = generator(columns).standard_normal((rows, columns)).astype(dtype)
    out = np.zeros_like(x)
    pipeline = make_pipeline(text, "k", include=mlx_include)
    threads = 32 * -(-columns // 128)
    launch(pipeline, [x, out, np.int32(columns)], groups=(rows, 1, 1), threads=(threads, 1, 1))
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (50, 70, 33), (128, 96, 80)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_steel_gemm(mlx_include: Path, m: int, n: int, k: int, dtype: type) -> None:
    bm, bn, bk, wm, wn = 64, 64, 16, 2, 2
    name = {np.float32: "float", np.float16: "half"}[dtype]
    text = source("utils.h", "steel/gemm/gemm.h", "steel/gemm/kernels/steel_gemm_fused.h")
    text += (
        f'instantiate_kernel("k", gemm, {name}, {bm}, {bn}, {bk}, {wm}, {wn}, false, false, float)'
    )
    rng = generator(m)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n)))
    out = np.zeros((m, n), dtype)
    tiles_n, tiles_m = -(-n // bn), -(-m // bm)
    parameters = struct.pack(
        "<8i3q3i4x", m, n, k, k, n, n, tiles_n, tiles_m, m * k, k * n, m * n, 0, k // bk, 1
    )
    constants = {10: False, 100: False, 110: False}
    constants |= {200: m % bm == 0, 201: n % bn == 0, 202: k % bk == 0}
    pipeline = make_pipeline(text, "k", include=mlx_include, constants=constants)
    launch(
        pipeline,
        [a, b, None, out, np.frombuffer(parameters, np.uint8)],
        groups=(tiles_n, tiles_m, 1),
        threads=(32, wn, wm),
    )
    tolerance = 1e-4 if dtype is np.float32 else 2e-2
    np.testing.assert_allclose(out, a.astype(float) @ b, rtol=tolerance, atol=tolerance * 4)


def normal(seed: int, *shape: int) -> np.ndarray:
    return generator(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [5, 100, 4097])
def test_all_reduce(mlx_include: Path, size: int) -> None:
    text = source("utils.h", "atomic.h", "reduction/ops.h", "reduce.h")
    text += 'instantiate_kernel("k", all_reduce, float, float, Max<float>)'
    x, out = normal(size, size), np.zeros(1, np.float32)
    pipeline = make_pipeline(text, "k", include=mlx_include)
    launch(pipeline, [x, out, np.uint64(size), np.uint64(size)], (1, 1, 1), (64, 1, 1))
    assert out[0] == x.max()


@pytest.mark.parametrize(("rows", "columns"), [(4, 64), (7, 100), (9, 1025)])
def test_row_reduce(mlx_include: Path, rows: int, columns: int) -> None:
    text = source("utils.h", "atomic.h", "reduction/ops.h", "reduce.h")
    text += 'instantiate_kernel("k", row_reduce_simple, float, float, Sum<float>)'
    x, out = normal(rows, rows, columns), np.zeros(rows, np.float32)
    pipeline = make_pipeline(text, "k", include=mlx_include)
    arguments = [x, out, np.uint64(columns), np.int64(rows)]
    launch(pipeline, arguments, (1, -(-rows // 4), 1), (64, 1, 1))
    np.testing.assert_allclose(out, x.astype(float).sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [3, 128, 1000])
@pytest.mark.parametrize(("inclusive", "reverse"), [(True, False), (False, False), (True, True)])
def test_scan(mlx_include: Path, size: int, inclusive: bool, reverse: bool) -> None:
    text = source("utils.h", "scan.h")
    flags = f"{str(inclusive).lower()}, {str(reverse).lower()}"
    text += f'instantiate_kernel("k", contiguous_scan, float, float, CumSum<float>, 4, {flags})'
    x = normal(size, 3, size)
    out = np.zeros_like(x)
    pipeline = make_pipeline(text, "k", include=mlx_include)
    launch(pipeline, [x, out, np.uint64(size)], (1, 3, 1), (64, 1, 1))
    ordered = x[:, ::-1] if reverse else x
    want = np.cumsum(ordered.astype(float), axis=1) - (0 if inclusive else ordered)
    np.testing.assert_allclose(out, want[:, ::-1] if reverse else want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arguments_only", [False, True])
def test_block_sort(mlx_include: Path, arguments_only: bool) -> None:
    kind = "uint32_t" if arguments_only else "float"
    text = source("utils.h", "sort.h")
    flag = str(arguments_only).lower()
    text += f'instantiate_kernel("k", block_sort, float, {kind}, {flag}, 64, 4)'
    x = normal(1, 3, 200)
    out = np.zeros((3, 200), np.uint32 if arguments_only else np.float32)
    pipeline = make_pipeline(text, "k", include=mlx_include)
    strides = [np.int32(n) for n in (200, 1, 1, 200, 200)]
    launch(pipeline, [x, out, *strides], (1, 3, 1), (64, 1, 1))
    np.testing.assert_array_equal(out, np.argsort(x, 1) if arguments_only else np.sort(x, 1))


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_mat_vec(mlx_include: Path, bits: int) -> None:
    rows, columns, group = 16, 1024, 64
    text = source("utils.h", "steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")
    text += f'instantiate_kernel("k", affine_qmv_fast, float, {group}, {bits}, false)'
    rng = generator(bits)
    digits = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)
    packed = digits if bits == 8 else digits[:, 0::2] | digits[:, 1::2] << 4
    scales, biases = (normal(s, rows, columns // group) for s in (3, 4))
    x, out = normal(5, 1, columns), np.zeros((1, rows), np.float32)
    pipeline = make_pipeline(text, "k", include=mlx_include)
    shape, strides = np.array([1, columns], np.int32), np.array([columns, 1], np.int64)
    arguments = [np.ascontiguousarray(packed), scales, biases, x, out, np.int32(columns)]
    arguments += [np.int32(rows), np.int32(0), shape, strides, np.int32(0), shape, strides]
    launch(pipeline, [*arguments, strides, strides], (1, rows // 8, 1), (32, 2, 1))
    weights = digits * np.repeat(scales, group, 1).astype(float) + np.repeat(biases, group, 1)
    np.testing.assert_allclose(out, x @ weights.T, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("length", [1, 33, 500])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_one_query(mlx_include: Path, length: int, causal: bool) -> None:
    heads, kv_heads, size, scale = 4, 2, 64, 0.125
    text = source("utils.h", "sdpa_vector.h")
    text += f'instantiate_kernel("k", sdpa_vector, float, {size})'
    q, k, v = (normal(n, h, t, size) for n, h, t in
               ((1, heads, 1), (2, kv_heads, length), (3, kv_heads, length)))  # fmt: skip
    out = np.zeros((heads, 1, size), np.float32)
    constants = {20: False, 21: False, 22: causal, 23: False, 24: False, 25: False, 26: np.int32(1)}
    pipeline = make_pipeline(text, "k", include=mlx_include, constants=constants)
    stride = [np.uint64(length * size), np.uint64(size)]
    arguments = [q, k, v, out, np.int32(2), np.int32(length), *stride, *stride, np.float32(scale)]
    launch(pipeline, arguments, (heads, 1, 1), (1024, 1, 1))
    keys, values = np.repeat(k, 2, 0).astype(float), np.repeat(v, 2, 0)
    scores = np.exp(q @ keys.transpose(0, 2, 1) * scale)
    want = scores / scores.sum(-1, keepdims=True) @ values
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
