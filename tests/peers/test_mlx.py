"""MLX's own kernels, from the headers in its macOS wheel: they pass the check, and some are run."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from metal_launch import launch, make_pipeline

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


@pytest.mark.parametrize("batch", range(BATCHES))
def test_headers_pass_the_check(mlx_include: Path, batch: int) -> None:
    root = mlx_include / KERNELS
    headers = sorted(str(p.relative_to(root)) for p in root.rglob("*.h"))
    headers = [h for h in headers if not any(word in h for word in LEFT_OUT)]
    assert len(headers) > 60
    options = CompileOptions(include_dirs=(str(mlx_include),))
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
    x = np.random.default_rng(columns).standard_normal((rows, columns)).astype(dtype)
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
    rng = np.random.default_rng(m)
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
