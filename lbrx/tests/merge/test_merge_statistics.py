"""The statistics of merged tensors against float64 definitions."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.merging.statistics import merge_sums


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def made(rng, shape, parents, dtype, device, base=True):
    """Tensors as the device has them, and their values in float64."""
    start = rng.standard_normal(shape)
    values = [
        start + 0.05 * rng.standard_normal(shape) * (rng.random(shape) < 0.7)
        for _ in range(parents)
    ]
    merged = start + 0.5 * (values[0] - start) * (rng.random(shape) < 0.3)
    given = [merged, *values, *([start] if base else [])]
    tensors = [lbrx.tensor(v.astype(np.float32), device=device).astype(dtype) for v in given]
    return tensors, [t.numpy().astype(np.float64).reshape(-1) for t in tensors]


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize(
    ("shape", "parents", "dtype"),
    [
        *(((37, 129), 2, "bfloat16"), ((5000,), 3, "float32"), ((1, 1), 2, "float16")),
        *(((9, 7), 27, "float32"), ((9, 7), 28, "bfloat16")),  # as many as a kernel takes, and more
    ],
)
def test_with_a_base(device, shape, parents, dtype, rng):
    (m, *xs, b), (vm, *vx, vb) = made(rng, shape, parents, dtype, device)
    sums = merge_sums(m, xs, b)
    assert sums.values == vm.size
    assert sums.norm == pytest.approx(np.linalg.norm(vm), rel=1e-5)
    assert sums.base_squares == pytest.approx(vb @ vb, rel=1e-5)
    assert sums.base_cosine() == pytest.approx(cosine(vm, vb), abs=1e-5)
    deltas = np.stack([x - vb for x in vx])
    assert sums.conflicts == np.count_nonzero((deltas > 0).any(0) & (deltas < 0).any(0))
    assert sums.density == np.count_nonzero(vm != vb) / vm.size
    for i, x in enumerate(vx):
        assert sums.parents[i].squares == pytest.approx(x @ x, rel=1e-5)
        assert sums.cosine(i) == pytest.approx(cosine(vm, x), abs=1e-5)
        if np.any(vm != vb) and np.any(x != vb):
            assert sums.delta_cosine(i) == pytest.approx(cosine(vm - vb, x - vb), abs=1e-5)


@pytest.mark.parametrize("size", [1, 31, 4095, 4097, 70_001])
def test_threads_of_a_simdgroup_share_a_block(size, rng, monkeypatch):
    monkeypatch.setattr("lbrx.merging.statistics._lanes", lambda: 32)
    (m, *xs), (vm, *vx) = made(rng, (size,), 2, "float32", "metal", base=False)
    sums = merge_sums(m, xs)
    assert sums.norm == pytest.approx(np.linalg.norm(vm), rel=1e-5)
    assert sums.conflicts == np.count_nonzero(vx[0] * vx[1] < 0)


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_without_a_base(device, rng):
    (m, *xs), (vm, *vx) = made(rng, (33, 65), 2, "float32", device, base=False)
    sums = merge_sums(m, xs)
    assert sums.density is None
    assert sums.delta_cosine(0) is None
    assert sums.conflicts == np.count_nonzero(vx[0] * vx[1] < 0)
    assert sums.cosine(1) == pytest.approx(cosine(vm, vx[1]), abs=1e-5)


def test_sums_of_parts_are_the_sums_of_the_whole(rng):
    tensors, _ = made(rng, (64, 32), 2, "float32", "cpu")
    m, x, y, b = tensors
    parts = [
        merge_sums(m[rows], [x[rows], y[rows]], b[rows]) for rows in (slice(0, 20), slice(20, 64))
    ]
    whole = merge_sums(m, [x, y], b)
    added = parts[0] + parts[1]
    assert (added.values, added.conflicts, added.changed) == (
        whole.values,
        whole.conflicts,
        whole.changed,
    )
    assert added.cosine(1) == pytest.approx(whole.cosine(1), rel=1e-12)


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_zeros_and_empty_tensors_have_no_cosine(device):
    for shape in ((3, 4), (0, 4)):
        zeros = lbrx.zeros(shape, device=device)
        sums = merge_sums(zeros, [zeros, zeros], zeros)
        assert sums.cosine(0) is None
        assert sums.conflict_share == 0
        assert sums.density == 0


def test_values_that_are_not_finite_give_no_cosine():
    bad = lbrx.tensor([1.0, float("inf")], device="cpu")
    assert merge_sums(bad, [bad, bad]).cosine(0) is None


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("columns", [4096, 1000])
def test_estimates_of_large_tensors(device, columns, rng):
    """Columns and rows of another size do not bias them."""
    shape = (1400, columns)
    base = rng.standard_normal(shape).astype(np.float32)
    base[:, : columns // 4] *= 10
    base[::4] *= 5
    x, y = (base + 0.1 * rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    merged = np.where(rng.random(shape) < 0.3, x, base)
    tensors = [lbrx.tensor(v, device=device) for v in (merged, x, y, base)]
    sums = merge_sums(tensors[0], tensors[1:3], tensors[3])
    m, vx, vy, b = (v.astype(np.float64).reshape(-1) for v in (merged, x, y, base))
    assert sums.values == m.size
    assert sums.norm == pytest.approx(np.linalg.norm(m), rel=0.03)
    assert sums.density == pytest.approx(0.3, abs=0.01)
    assert sums.conflict_share == pytest.approx(np.mean((vx - b) * (vy - b) < 0), abs=0.01)
    for i, v in enumerate((vx, vy)):
        assert sums.cosine(i) == pytest.approx(cosine(m, v), abs=1e-3)
        assert sums.delta_cosine(i) == pytest.approx(cosine(m - b, v - b), abs=0.01)
