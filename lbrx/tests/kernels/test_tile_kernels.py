"""Kernels on tile.h whose tiles need more threadgroup memory than a CPU's device has: smaller ones of
the same templates, with stages, against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import softmetal
from lbrx.arrays import dtype as dt
from lbrx.command_lists.records import UINT, packed
from lbrx.kernels.matmul.matmul import MatmulProblem, Matrix
from lbrx.kernels.matmul.matmul_tiles import (
    TENSOR_TILINGS,
    TILINGS,
    TilesConstants,
    Tiling,
    has_tensor_cores,
    tiling_for,
)
from lbrx.metal import context

SOURCE = """
#include "matmul_tiles.h"
TILES_INSTANCE("product", {type}, {type}, {type}, {tiling})
"""
ROUNDING = {dt.float32: 2.0**-23, dt.float16: 2.0**-10, dt.bfloat16: 2.0**-7}
TYPES = {dt.float16: "half", dt.bfloat16: "bfloat", dt.float32: "float"}
STAGED = Tiling("staged", 2, 2, 32, 32, 32, 3, 1.0)
NARROW = Tiling("narrow", 2, 1, 16, 32, 32, 3, 1.0)  # fits the 32 KiB of most devices in float32


def product(x, y, dtype, tiling, transposed=(False, False)):
    """x @ y by one kernel, from operands that are stored transposed or not."""
    gpu, (m, k), n = context(), x.shape, y.shape[1]
    tiles = ", ".join(map(str, tiling.sizes))
    stored = [a.T.copy() if t else a for a, t in zip((x, y), transposed, strict=True)]
    aligned = all(a.shape[1] * dtype.itemsize % 16 == 0 for a in stored)
    at_once = 8 if n % 8 == 0 else 2 - n % 2
    constants = TilesConstants(
        ACTIVATION=0,
        X_TRANSPOSED=transposed[0],
        Y_TRANSPOSED=transposed[1],
        ALIGNED=aligned,
        SWIZZLE=1,
        STORED=at_once,
    )
    pipeline = gpu.shaders.pipeline(
        *("tiles_tested", "product", constants),
        safe_math=True,
        source=SOURCE.format(type=TYPES[dtype], tiling=tiles),
    )
    matrices = [Matrix(t, a.shape[1]) for a, t in zip(stored, transposed, strict=True)]
    problem = MatmulProblem(m, n, k, dtype, *matrices)
    left, right = (gpu.upload(a.view(np.uint8).ravel()) for a in stored)
    out = gpu.upload(np.full(m * n * dtype.itemsize, 0x7E, np.uint8))
    down, across = -(-m // tiling.m), -(-n // tiling.n)
    gpu.queue.dispatch(
        pipeline,
        [left, right, bytes(dtype.itemsize), out, problem.record(), packed(UINT, k)],
        ((across << 1) * tiling.threads, -(-down >> 1), 1),
        (tiling.threads, 1, 1),
        threadgroup_memory=(tiling.memory(dtype),),
    )
    return out.array(dtype.numpy).reshape(m, n).astype(np.float64)


def check(rng, dtype, tiling, shape, transposed=(False, False)):
    m, n, k = shape
    x, y = (rng.standard_normal(s).astype(dtype.numpy) for s in ((m, k), (k, n)))
    expected = x.astype(np.float64) @ y.astype(np.float64)
    size = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64))
    got = product(x, y, dtype, tiling, transposed)
    assert (np.abs(got - expected) <= 2**-20 * size + 2 * ROUNDING[dtype] * np.abs(expected)).all()


@pytest.mark.parametrize("transposed", [(False, False), (True, True)], ids=str)
def test_stages(transposed, rng):
    """Fewer turns than stages, whole tiles, and edges; rows that cannot be copied 16 bytes at once."""
    for shape in [(64, 64, 16), (72, 136, 200), (67, 65, 33)]:
        check(rng, dt.float16, STAGED, shape, transposed)


@pytest.mark.full
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("transposed", [(a, b) for a in (False, True) for b in (False, True)])
def test_stages_of_every_type(dtype, transposed, rng):
    tiling = NARROW if dtype is dt.float32 else STAGED
    for shape in [(64, 64, 64), (1, 1, 1), (72, 136, 200), (67, 65, 33)]:
        check(rng, dtype, tiling, shape, transposed)


def test_stages_do_not_race(rng):
    with softmetal.checking("bounds", "race"):
        check(rng, dt.float16, STAGED, (65, 72, 136), (False, True))


@pytest.mark.parametrize("tiling", TENSOR_TILINGS, ids=lambda tiling: tiling.name)
@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16], ids=str)
def test_tiles_of_tensor_cores(dtype, tiling, rng):
    """Whole tiles, whose lanes store 16 bytes, beside others at the edges."""
    if not has_tensor_cores(context().info):
        pytest.skip("these tiles need the threadgroup memory of a GPU with tensor cores")
    for shape in [(256, 512, 192), (200, 520, 136), (130, 257, 64)]:
        check(rng, dtype, tiling, shape, (False, True))


# ---- the choice ----


def halves(m, n, k=4096):
    return MatmulProblem(m, n, k, dt.float16, Matrix(False, k), Matrix(True, k))


def test_tiles_for_tensor_cores(gpu_info):
    """As many as there are cores, else the largest."""
    chosen = [tiling_for(gpu_info, halves(*s)).name for s in [(8192, 8192), (512, 4096), (64, 512)]]
    assert chosen == ["tensor256", "tensor128", "tensor64"]
    single = MatmulProblem(512, 512, 512, dt.float32, Matrix(False, 512), Matrix(False, 512))
    assert tiling_for(gpu_info, single) in TILINGS
    assert all(t.memory(dt.float16) <= gpu_info.threadgroup_memory for t in TENSOR_TILINGS)


@pytest.fixture
def gpu_info():
    """A description of an H200."""
    return replace(context().info, simd_hardware=True, cores=132, threadgroup_memory=232448)
