"""RoPE and writes to a cache in one kernel: against float64, and which operations share it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from op_oracle import PRECISION, sample, wide

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.kernels.rope import rope_write
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.long_lived import new_cache, write

CAPACITY = 12


@dataclass(frozen=True)
class Case:
    """Queries, keys and values of some tokens, and how they are rotated."""

    dtype: dt.Dtype
    shape: tuple[int, int, int, int]  # batch, query heads, tokens, features
    dims: int | None = None
    interleaved: bool = False
    factors: bool = False
    position_type: dt.Dtype = dt.int32
    skipped: int = 0  # features before each row, which leave rows off multiples of a vector


CASES = {
    "one token": Case(dt.float16, (1, 4, 1, 64)),
    "part of the features": Case(dt.float16, (2, 4, 3, 64), dims=32, factors=True),
    "neighbours": Case(dt.float16, (2, 2, 5, 32), interleaved=True),
    "bfloat16": Case(dt.bfloat16, (1, 6, 2, 16), position_type=dt.int64),
    "float32": Case(dt.float32, (2, 2, 3, 12), dims=8, interleaved=True, factors=True),
    "between vectors": Case(dt.float16, (1, 2, 2, 16), skipped=3),
}
BASE = 10000.0


@pytest.fixture(autouse=True)
def one_launch(monkeypatch):
    """What GPUs do."""
    monkeypatch.setattr(rope_write, "is_worthwhile", lambda info, elements: True)


def turned(x, positions, case, factors):
    """RoPE in float64; x is (batch, heads, tokens, features)."""
    dims = case.dims or x.shape[-1]
    speeds = BASE ** (-np.arange(dims // 2) / (dims // 2)) / (1 if factors is None else factors)
    angles = positions[:, None, :, None] * speeds
    even, odd = slice(0, dims // 2), slice(dims // 2, dims)
    if case.interleaved:
        even, odd = slice(0, dims, 2), slice(1, dims, 2)
    out = x.copy()
    out[..., even] = x[..., even] * np.cos(angles) - x[..., odd] * np.sin(angles)
    out[..., odd] = x[..., even] * np.sin(angles) + x[..., odd] * np.cos(angles)
    return out


def written(cache, rows, positions):
    out = cache.copy()
    for batch, token in np.ndindex(*positions.shape):
        if 0 <= positions[batch, token] < CAPACITY:
            out[batch, :, positions[batch, token]] = rows[batch, :, token]
    return out


def on_metal(values) -> Tensor:
    return lbrx.tensor(values, device="metal")


def kernels_of(*tensors) -> list[str]:
    return [kernel.name for kernel in lbrx.explain(*tensors).kernels]


@pytest.mark.parametrize("name", CASES)
def test_values_and_bits(name, rng, monkeypatch):
    case = CASES[name]
    batch, heads, tokens, features = case.shape
    memory = [
        sample(rng, (batch, tokens, count, features + case.skipped), case.dtype)
        for count in (heads, heads // 2, heads // 2)
    ]
    places = np.stack([rng.permutation(CAPACITY + 2)[:tokens] - 1 for _ in range(batch)])
    factors = rng.uniform(1, 3, (case.dims or features) // 2).astype(np.float32)
    before = sample(rng, (2, batch, heads // 2, CAPACITY, features), case.dtype)
    options = {"dims": case.dims, "base": BASE, "interleaved": case.interleaved}

    def results():
        cache = new_cache(before.shape, case.dtype, "metal")
        write(cache, on_metal(before))
        queries, keys, values = (on_metal(x)[..., case.skipped :].transpose(1, 2) for x in memory)
        at = on_metal(places.astype(case.position_type.numpy)).unsqueeze(1)
        given = on_metal(factors) if case.factors else None
        queries, keys = (x.rope(at, given, **options) for x in (queries, keys))
        kept = [call("overwrite", cache[i], x, at) for i, x in enumerate((keys, values))]
        return [queries, *kept, cache]

    *made, cache = results()
    assert kernels_of(*made) == ["fused_rope_rope_overwrite_overwrite"]
    found = [x.numpy() for x in (*made, cache)]
    monkeypatch.setenv("LBRX_FUSION", "0")
    for one, other in zip(found, (x.numpy() for x in results()), strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    queries, keys, values = (wide(x[..., case.skipped :]).transpose(0, 2, 1, 3) for x in memory)
    used = factors.astype(np.float64) if case.factors else None
    queries, keys = (turned(x, places, case, used) for x in (queries, keys))
    stored = wide(before)
    expected = [queries, written(stored[0], keys, places), written(stored[1], values, places)]
    for one, other in zip(found, expected, strict=False):
        np.testing.assert_allclose(wide(one), other, atol=4 * PRECISION[case.dtype])


@pytest.fixture
def parts(rng):
    """A cache, rows and positions."""
    cache = new_cache((2, 1, 2, CAPACITY, 16), dt.float16, "metal")
    write(cache, on_metal(np.zeros(cache.shape, np.float16)))
    rows = [on_metal(sample(rng, (1, 2, 1, 16), dt.float16)) for _ in range(3)]
    return cache, rows, on_metal(np.array([[[3]]], np.int32))


def test_a_result_that_is_wanted_is_stored(parts):
    cache, (x, *_), at = parts
    turned = x.rope(at)
    kept = call("overwrite", cache[0], turned, at)
    assert kernels_of(kept) == ["fused_rope_overwrite"]
    assert kernels_of(kept, turned) == ["rope", "overwrite"]
    assert kernels_of(kept, turned * 2) == ["rope", "overwrite", "multiply"]


def test_other_positions_are_another_launch(parts):
    cache, (x, y, _), at = parts
    assert kernels_of(x.rope(at), y.rope(at)) == ["fused_rope_rope"]
    assert kernels_of(x.rope(at), y.rope(at + 1)) == ["rope", "add", "rope"]
    assert kernels_of(x.rope(at), y.rope(at, base=500.0)) == ["rope", "rope"]
    kept = call("overwrite", cache[0], x.rope(at + 1), at)
    assert kernels_of(kept) == ["add", "rope", "overwrite"]


def test_the_same_place_is_written_in_order(parts):
    cache, (x, y, _), at = parts
    first, second = (call("overwrite", cache[0], rows, at) for rows in (x, y))
    assert kernels_of(first, second) == ["overwrite", "overwrite"]
    lbrx.eval(first, second)
    np.testing.assert_array_equal(cache.numpy()[0, :, :, 3], y.numpy()[:, :, 0])


def test_readers_come_after_writes(parts):
    cache, (x, y, _), at = parts
    first = call("overwrite", cache[0], x, at)
    total = first.sum(axis=-2, keepdims=True)  # reads what the launch would write
    second = call("overwrite", cache[1], total + y, at)
    lbrx.eval(first, second)
    np.testing.assert_allclose(
        cache.numpy()[1, :, :, 3], (x.numpy() + y.numpy())[:, :, 0], atol=1e-2
    )


def test_more_parts_than_a_launch_takes(parts):
    _, rows, at = parts
    turned = [(rows[0] * n).rope(at) for n in range(5)]
    names = kernels_of(*turned)
    assert names.count("fused_rope_rope_rope") == 1
    for n, each in enumerate(turned):
        np.testing.assert_array_equal(each.numpy(), (rows[0] * n).rope(at).numpy())
