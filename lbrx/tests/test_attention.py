"""Attention and rotary embedding, against an oracle that computes one query at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from device_memory import shares_memory
from op_oracle import FLOATS, attention, chosen, close, pair, rope

import lbrx
from lbrx.arrays import dtype as dt

# (batch, heads, key heads, L, S, D, Dv), with odd sizes and zeros.
SIZES = [
    ((), 1, 1, 1, 1, 1, 1),
    ((), 4, 4, 5, 5, 8, 8),
    ((2,), 6, 2, 3, 7, 5, 3),
    ((3, 1), 4, 1, 1, 33, 16, 16),
    ((2,), 3, 3, 9, 4, 7, 2),
    ((2,), 2, 1, 0, 3, 4, 4),
    ((2,), 2, 1, 3, 0, 4, 4),
    ((0,), 2, 2, 3, 3, 4, 4),
]
RULES = [
    {},
    {"scale": 0.3},
    {"causal": True},
    {"causal": True, "window": 1},
    {"causal": True, "window": 3, "scale": 1.0},
    {"causal": True, "cap": 0.5},
]


def operands(rng, size, dtype, place):
    """Query, key and value, each as a tensor and as the oracle's array."""
    batch, heads, kv_heads, count, keys, depth, value_depth = size
    shapes = [
        (*batch, heads, count, depth),
        (*batch, kv_heads, keys, depth),
        (*batch, kv_heads, keys, value_depth),
    ]
    return [pair(rng, shape, dtype, place, low=-2, high=2) for shape in shapes]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention(dtype, size, place, rng):
    (q, x), (k, y), (v, z) = operands(rng, size, dtype, place)
    for rule in RULES:
        close(q.attention(k, v, **rule), attention(x, y, z, **rule), dtype, scale=4)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_to_a_cache_that_is_partly_valid(dtype, size, place, rng):
    (q, x), (k, y), (v, z) = operands(rng, size, dtype, place)
    valid = rng.integers(0, size[4], size[0], endpoint=True)
    # Memory beyond the valid keys can hold anything, also NaN.
    beyond = np.arange(size[4])[:, None] >= valid[..., None, None, None]
    k, v = (
        lbrx.tensor(np.where(beyond, np.asarray(math.nan, t.dtype.numpy), t.numpy()), device=place)
        for t in (k, v)
    )
    lengths = lbrx.tensor(valid, dtype="uint8", device=place)
    for rule in RULES:
        expected = attention(x, y, z, lengths=valid, **rule)
        close(q.attention(k, v, lengths=lengths, **rule), expected, dtype, scale=4)


@pytest.mark.parametrize(
    "shape", [(), (3, 1, 1, 7), (5, 7), (7,), (3, 6, 5, 7), (1, 1, 1)], ids=str
)
def test_mask_is_added_in_its_own_type(shape, place, rng):
    dtypes = chosen(FLOATS, place, str(shape))
    for dtype, of_mask in [(d, d) for d in dtypes] + [(dt.float16, dt.float32)]:
        (q, x), (k, y), (v, z) = operands(
            rng, ((3,) if shape else (), 6, 2, 5, 7, 8, 4), dtype, place
        )
        _, mask = pair(rng, shape, of_mask, "cpu")
        if shape:
            mask = np.where(rng.random(shape) < 0.3, -math.inf, mask)
        m = lbrx.tensor(mask, dtype=of_mask, device=place)
        for rule in ({}, {"causal": True}):
            close(q.attention(k, v, m, **rule), attention(x, y, z, mask, **rule), dtype, scale=4)


@pytest.mark.parametrize("shape", [(3, 1, 1, 7), (5, 7), (3, 6, 5, 7)], ids=str)
def test_a_bool_mask_says_which_keys_are_seen(shape, place, rng):
    (q, x), (k, y), (v, z) = operands(rng, ((3,), 6, 2, 5, 7, 8, 4), dt.float32, place)
    seen = rng.random(shape) < 0.7
    expected = attention(x, y, z, np.where(seen, 0, -math.inf))
    for mask in (seen, seen.tolist(), lbrx.tensor(seen, device=place)):
        close(q.attention(k, v, mask), expected, dt.float32, scale=4)
    assert q.attention(k, v, False).abs().sum().item() == 0


def test_a_query_that_sees_no_key_gives_zeros(place):
    q = lbrx.ones((1, 3, 2), device=place)
    assert q.attention(q[:, :2], q[:, :2], causal=True).tolist() == [[[0, 0], [1, 1], [1, 1]]]
    hidden = lbrx.full((3, 3), -math.inf, device=place)
    assert q.attention(q, q, hidden).sum().item() == 0
    assert q.attention(q, q, lengths=0).sum().item() == 0
    assert np.isnan(q.attention(q * math.nan, q).numpy()).all()


@shares_memory
@pytest.mark.parametrize("wrong", [4, -1, -9])
def test_lengths_beyond_the_keys_are_errors(place, wrong):
    q = lbrx.ones((2, 1, 3, 2), device=place)
    both = [1, wrong]
    for lengths in (both, np.array(both), lbrx.tensor([*both, 0], device=place)[:2]):
        with pytest.raises(IndexError, match=f"length {wrong} is beyond 3 keys: give 0 to 3"):
            q.attention(q, q, lengths=lengths).numpy()


def test_computed_lengths_are_clamped_on_metal():
    """The host does not know them when it encodes the kernel."""
    q = lbrx.ones((1, 1, 3, 2), device="metal")
    keys = lbrx.tensor([[[[1, 1], [2, 2], [3.0, 3.0]]]], device="metal")
    lengths = lbrx.tensor([2], device="metal")

    def attended(lengths):
        return q.attention(keys, keys, lengths=lengths)

    whole, nothing = attended(lengths + 1).numpy(), np.zeros((1, 1, 3, 2))
    np.testing.assert_array_equal(attended(lengths + 5).numpy(), whole)
    np.testing.assert_array_equal(attended(lengths - 5).numpy(), nothing)
    replayed = lbrx.compile(attended)
    np.testing.assert_array_equal(replayed(lbrx.tensor([9], device="metal")).numpy(), whole)


def test_decoding_token_by_token_is_causal_attention(place, rng):
    (q, _), (k, _), (v, _) = operands(rng, ((2,), 4, 2, 6, 6, 8, 8), dt.float32, place)
    for rule in ({"causal": True}, {"causal": True, "window": 2}):
        whole = q.attention(k, v, **rule).numpy()
        for i in range(6):
            step = q[:, :, i : i + 1].attention(k, v, lengths=[i + 1] * 2, **rule)
            close(step, whole[:, :, i : i + 1].astype(np.float64), dt.float32)


def test_attention_on_heads_behind_tokens(place, rng):
    (q, x), (k, y), (v, z) = (
        pair(rng, shape, dt.float32, place) for shape in [(2, 5, 6, 8), (2, 7, 3, 8), (2, 7, 3, 8)]
    )
    order = (0, 2, 1, 3)
    result = q.permute(order).attention(k.permute(order), v.permute(order), causal=True)
    expected = attention(*(a.transpose(order) for a in (x, y, z)), causal=True)
    close(result, expected, dt.float32, scale=8)


def test_large_scores_do_not_overflow(place):
    q = lbrx.tensor([[[200.0], [-200.0]]], dtype="float16", device=place)
    assert q.attention(q, q, scale=10.0).tolist() == [[[200], [-200]]]


ROTATIONS = [
    {},
    {"interleaved": True},
    {"dims": 4},
    {"dims": 6, "interleaved": True, "base": 500000.0},
    {"scale": 0.125, "base": 100.0},
]


@pytest.mark.parametrize("rule", ROTATIONS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rope(dtype, rule, place, rng):
    for shape, where in [
        ((8,), ()),
        ((5, 8), (5,)),
        ((2, 3, 7, 10), (7,)),
        ((2, 3, 7, 6), (2, 1, 7)),
        ((2, 3, 7, 6), ()),
        ((2, 0, 8), (1,)),
    ]:
        a, x = pair(rng, shape, dtype, place)
        at = rng.integers(0, 60, where)
        p = lbrx.tensor(at, dtype="int32", device=place)
        # The oracle's positions have every axis that x has but the last.
        whole = np.broadcast_to(at, shape[:-1])
        close(a.rope(p, **rule), rope(x, whole, **rule), dtype, scale=8)
        pairs = rule.get("dims", shape[-1]) // 2
        factors, f = pair(rng, (pairs,), dt.float32, place, low=1, high=8)
        close(a.rope(p, factors, **rule), rope(x, whole, f, **rule), dtype, scale=8)


def test_rope_far_into_a_context(place, rng):
    a, x = pair(rng, (4, 64), dt.float32, place, low=-1, high=1)
    at = np.array([0, 1000, 32767, 131071])
    # An angle in float32 has an error of a few units in the last place, here up to 2^17 * 2^-23.
    result = a.rope(lbrx.tensor(at, device=place), base=500000.0)
    close(result, rope(x, at, base=500000.0), dt.float32, scale=2**-6 / 4e-6)


def test_rope_on_transposed_heads_and_one_position(place, rng):
    a, x = pair(rng, (2, 7, 3, 8), dt.float32, place)
    order = (0, 2, 1, 3)
    result = a.permute(order).rope(lbrx.arange(7, device=place))
    close(result, rope(x.transpose(order), np.arange(7)), dt.float32, scale=8)
    close(a.rope(9), rope(x, np.full(x.shape[:-1], 9)), dt.float32, scale=8)


def test_dot_products_depend_on_the_distance(rng):
    (a, _), (b, _) = (pair(rng, (16,), dt.float64, "cpu") for _ in range(2))
    products = [a.rope(i + 5) @ b.rope(i) for i in (0, 3, 90)]
    np.testing.assert_allclose([p.item() for p in products], products[0].item(), rtol=1e-9)
