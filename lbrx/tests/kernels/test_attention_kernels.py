"""Attention: every variant against the oracle, which of them is chosen, and what they must not do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from device_memory import on_processors
from op_oracle import PRECISION, attention, close, rotating, sample, wide

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import deterministic, forced
from lbrx.kernels.attention.attention import (
    GROUPED_CHUNKS,
    GROUPED_DEPTHS,
    GROUPED_ROWS,
    AttentionProblem,
    family,
    grouped_blocks,
)

SAME = (dt.float32, dt.float16, dt.bfloat16)
# Types of queries and of the cache.
TYPES = [(d, d) for d in SAME] + [(dt.float32, dt.float16), (dt.float32, dt.bfloat16)]
# (heads, key heads, L, S, D, Dv), around the sizes of blocks, chunks and lanes.
ODD = [(6, 2, 5, 9, 7, 3), (2, 1, 3, 0, 4, 4), (1, 1, 1, 1, 1, 1)]
SIZES = {
    "plain": [*ODD, (2, 1, 3, 20, 300, 270)],
    "serial": [
        *ODD,
        *[(3, 1, 16, 65, 64, 64), (2, 2, 70, 130, 64, 64), (2, 1, 17, 64, 80, 96)],
        (1, 1, 130, 100, 8, 20),
    ],
    "decode_serial": [
        *ODD,
        *[(6, 2, 1, 256, 64, 64), (3, 1, 1, 257, 64, 64), (9, 1, 2, 530, 64, 64)],
        *[(5, 1, 1, 40, 128, 80), (7, 1, 1, 33, 72, 64)],
    ],
    "flash": [(2, 1, 33, 40, 64, 64), (1, 1, 5, 33, 128, 128)],
    "decode": [*ODD, (4, 2, 2, 50, 64, 64), (2, 1, 1, 1024, 64, 64), (2, 1, 1, 1025, 64, 64)],
    "grouped": [(6, 1, 3, 40, 64, 64), (2, 2, 1, 700, 64, 64), (1, 1, 1, 3, 128, 128)],
}
DEEP = {
    "flash": [(1, 1, 40, 20, d, d) for d in (80, 96, 256)],
    "grouped": [(9, 1, 1, 300, d, d) for d in (80, 96, 256)],
}
# Variants of some types only.
TYPES_OF = {
    "grouped": [(dt.float32, dt.float16), (dt.float16, dt.float16), (dt.bfloat16, dt.bfloat16)]
}
RULES = [{}, {"causal": True}, {"causal": True, "window": 4, "scale": 0.3}]


def types_of(variant):
    return TYPES_OF.get(variant, TYPES)


def ran(variant: str) -> int:
    return metal.stats()["kernels"].get(f"attention:{variant}", 0)


def operands(rng, size, types, batch=2):
    """Query, key and value, each as a tensor and as the oracle's numbers."""
    heads, kv_heads, queries, keys, depth, value_depth = size
    shapes = [(heads, queries, depth), (kv_heads, keys, depth), (kv_heads, keys, value_depth)]
    values = [
        sample(rng, (batch, *shape), dtype, -2, 2)
        for shape, dtype in zip(shapes, (types[0], types[1], types[1]), strict=True)
    ]
    return [(lbrx.tensor(x, device="metal"), wide(x)) for x in values]


def check(rng, variant, size, types, rule, *, mask=False, lengths=False, sinks=False) -> None:
    (q, x), (k, y), (v, z) = operands(rng, size, types)
    heads, _, _, keys, *_ = size
    added = sample(rng, (heads, 1, keys), types[0]) if mask else None
    valid = np.array([keys, keys // 2]) if lengths else None
    own = rng.normal(0, 3, heads).astype(np.float32) if sinks else None
    before = ran(variant)
    with forced(attention=variant):
        result = q.attention(k, v, added, valid, own, **rule)
        lbrx.eval(result)
    assert ran(variant) == before + 1
    close(
        result,
        attention(x, y, z, None if added is None else wide(added), valid, own, **rule),
        types[0],
        scale=4,
    )


def compared(rng, variant, size, types) -> None:
    for rule in RULES:
        check(rng, variant, size, types, rule)
    check(rng, variant, size, types, RULES[1], mask=True, lengths=True)


CASES = [(variant, size) for variant, sizes in SIZES.items() for size in sizes]


@pytest.mark.parametrize(("variant", "size"), CASES, ids=str)
def test_variant(variant, size, rng):
    # Sizes of a variant share kernels, so all of them take the same type in a run.
    first, *rest = types_of(variant)
    others = rotating([str(types) for types in rest], variant)
    for types in (first, *rest):
        if types == first or str(types) in others:
            compared(rng, variant, size, types)


@pytest.mark.parametrize("variant", SIZES)
def test_capped_scores(variant, rng):
    rule = {"causal": True, "cap": 0.7, "scale": 1.0}
    check(rng, variant, SIZES[variant][-1], types_of(variant)[0], rule, mask=True, lengths=True)


@pytest.mark.parametrize("variant", SIZES)
def test_sinks(variant, rng):
    """Scores without values, one for each head: alone and behind a mask."""
    types = types_of(variant)[0]
    for size in SIZES[variant]:
        check(rng, variant, size, types, RULES[2], sinks=True)
        check(rng, variant, size, types, RULES[0], mask=True, lengths=True, sinks=True)


def test_sinks_that_take_all(rng):
    """Far above every score, and far below."""
    (q, x), (k, y), (v, z) = operands(rng, (2, 1, 3, 40, 64, 64), (dt.float32, dt.float32))
    sinks = np.array([300.0, -300.0], np.float32)
    for variant in ("plain", "serial", "decode_serial", "flash", "decode"):
        with forced(attention=variant):
            result = q.attention(k, v, None, None, sinks)
        close(result, attention(x, y, z, sinks=sinks), dt.float32, scale=4)


@pytest.mark.full
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("variant", SIZES)
def test_variant_in_every_type(variant, types, rng):
    if types in types_of(variant):
        for size in SIZES[variant] + DEEP.get(variant, []):
            compared(rng, variant, size, types)


@pytest.mark.parametrize("variant", SIZES)
def test_no_faults(variant, rng):
    with softmetal.checking("bounds", "race"):
        types = types_of(variant)[0]
        check(rng, variant, SIZES[variant][0], types, RULES[1], mask=True, lengths=True)


@pytest.mark.full
@pytest.mark.parametrize("variant", SIZES)
def test_no_faults_at_all(variant, rng):
    with softmetal.checking("bounds", "race"):
        for size in SIZES[variant] + DEEP.get(variant, []):
            compared(rng, variant, size, types_of(variant)[1])


# ---- what is not a number, and what is not seen ----


@pytest.mark.parametrize("variant", SIZES)
def test_nan_and_infinity_stay_in_their_row(variant, rng):
    (_, x), (k, y), (v, z) = operands(rng, (1, 1, 5, 33, 64, 64), types_of(variant)[0])
    expected = attention(x, y, z)
    for bad in (math.nan, math.inf):
        broken = x.astype(np.float32)
        broken[0, 0, 3, 7] = bad
        with forced(attention=variant):
            result = lbrx.tensor(broken, device="metal").attention(k, v).numpy()
        assert np.isnan(result[0, 0, 3]).all()
        rest = np.arange(5) != 3
        np.testing.assert_allclose(result[:, :, rest], expected[:, :, rest], atol=1e-5)


@pytest.mark.parametrize("variant", SIZES)
def test_what_lies_beyond_the_lengths_is_not_read(variant, rng):
    (q, x), (k, y), (v, z) = operands(rng, (2, 1, 3, 70, 64, 64), types_of(variant)[0])
    valid = np.array([0, 41])
    beyond = np.arange(70)[:, None] >= valid[:, None, None, None]
    k, v = (
        lbrx.tensor(np.where(beyond, np.float32(math.nan), t.numpy())).to_device("metal")
        for t in (k, v)
    )
    with forced(attention=variant):
        for rule in RULES[:2]:
            result = q.attention(k, v, lengths=valid, **rule)
            close(result, attention(x, y, z, lengths=valid, **rule), dt.float32, scale=4)


@pytest.mark.parametrize("variant", SIZES)
def test_keys_that_a_mask_hides(variant, rng):
    (q, x), (k, y), (v, z) = operands(rng, (2, 1, 3, 70, 64, 64), types_of(variant)[0])
    mask = np.where(rng.random((2, 2, 3, 70)) < 0.5, -math.inf, 0).astype(np.float32)
    mask[0, 1] = -math.inf
    with forced(attention=variant):
        close(q.attention(k, v, mask), attention(x, y, z, mask), dt.float32, scale=4)


# ---- views of a cache and of projections ----


def copies() -> int:
    counts = metal.stats()["kernels"]
    return sum(n for name, n in counts.items() if name.split(":")[0] in ("copy", "cast"))


def test_caches_and_heads_behind_tokens_are_read_as_they_are(rng):
    query = sample(rng, (2, 3, 6, 64), dt.float32)
    cache = [sample(rng, (2, 2, 40, 64), dt.float16) for _ in range(2)]
    q = lbrx.tensor(query, device="metal").permute((0, 2, 1, 3))
    k, v = (lbrx.tensor(x, device="metal")[:, :, :33] for x in cache)
    lbrx.eval(q, k, v)
    before = copies()
    result = q.attention(k, v, causal=True)
    lbrx.eval(result)
    assert copies() == before
    y, z = (wide(x[:, :, :33]) for x in cache)
    close(result, attention(wide(query.swapaxes(1, 2)), y, z, causal=True), dt.float32, scale=4)


def test_views_that_need_a_copy(rng):
    (q, x), (k, y), (v, z) = operands(rng, (2, 2, 4, 6, 8, 8), TYPES[0])
    close(
        q[:, :, ::-1, ::2].attention(k[..., ::2], v[..., ::-1]),
        attention(x[:, :, ::-1, ::2], y[..., ::2], z[..., ::-1]),
        dt.float32,
        scale=4,
    )
    # Two batch axes that cannot be merged.
    deep = [np.stack([a] * 3) for a in (x, y, z)]
    tensors = [lbrx.tensor(a.astype(np.float32), device="metal").transpose(0, 1) for a in deep]
    expected = attention(*(a.swapaxes(0, 1) for a in deep))
    close(tensors[0].attention(*tensors[1:]), expected, dt.float32, scale=4)


def test_types_that_differ(rng):
    for given, of_result in [
        ((dt.float16, dt.float16, dt.float32), dt.float32),
        ((dt.float16, dt.bfloat16, dt.bfloat16), dt.float32),
        ((dt.bfloat16, dt.float32, dt.float32), dt.float32),
        ((dt.int8, dt.int32, dt.float16), dt.float16),
    ]:
        arrays = [sample(rng, (1, 2, 3, 4), dtype, -2, 2) for dtype in given]
        q, k, v = (lbrx.tensor(a, device="metal") for a in arrays)
        expected = attention(*(a.astype(np.float64) for a in arrays))
        close(q.attention(k, v), expected, of_result, scale=4)


# ---- the same bits ----


def test_the_same_call_gives_the_same_bits(rng):
    for size in [(6, 2, 1, 700, 64, 64), (3, 1, 40, 90, 64, 64)]:
        (q, _), (k, _), (v, _) = operands(rng, size, TYPES[0])
        first, second = (q.attention(k, v, causal=True).numpy() for _ in range(2))
        np.testing.assert_array_equal(first, second)


def test_a_query_alone_has_the_bits_it_has_among_others(rng):
    (q, _), (k, _), (v, _) = operands(rng, (2, 1, 80, 80, 64, 64), TYPES[0])
    with deterministic():
        together = q.attention(k, v, causal=True, window=50).numpy()
        for i in (0, 33, 79):
            lengths = np.full(2, i + 1)
            alone = q[:1, :, i : i + 1].attention(
                k[:1], v[:1], None, lengths[:1], causal=True, window=50
            )
            np.testing.assert_array_equal(alone.numpy(), together[:1, :, i : i + 1])


# ---- the choice ----


def problem(**sizes) -> AttentionProblem:
    given = {"batch": 1, "heads": 8, "kv_heads": 2, "queries": 64, "keys": 64, "depth": 64}
    given |= {"value_depth": sizes.get("depth", 64)} | sizes
    return AttentionProblem(
        dt.float32, "float32", **given, causal=True, window=0, scale=1.0, cap=0.0
    )


CHOICES = [
    (problem(), "serial", "flash"),
    (problem(queries=9), "serial", "flash"),
    (problem(queries=8), "decode_serial", "decode"),
    (problem(depth=72), "serial", "decode"),
    (problem(depth=64, value_depth=80), "serial", "decode"),
    (problem(depth=256), "serial", "flash"),
    (problem(depth=257), "plain", "plain"),
]


@on_processors
def test_choice(on_chip):
    info = metal.context().info
    assert [family.choose(info, given).name for given, *_ in CHOICES] == [c[1] for c in CHOICES]
    with on_chip("m1") as gpu:
        names = [family.choose(gpu.info, given).name for given, *_ in CHOICES]
    assert names == [c[2] for c in CHOICES]
    with deterministic():
        assert family.choose(info, problem(queries=1)).name == "serial"


@pytest.mark.parametrize("chip", ["m1", "m3-max"])
def test_on_a_chip(chip, on_chip, rng):
    for size, variant in [((2, 1, 33, 40, 64, 64), "flash"), ((4, 2, 1, 40, 64, 64), "decode")]:
        with on_chip(chip):
            (q, x), (k, y), (v, z) = operands(rng, size, TYPES[0])
            close(
                q.attention(k, v, causal=True), attention(x, y, z, causal=True), dt.float32, scale=4
            )
            assert ran(variant) == 1


def test_precision_of_long_rows(rng):
    """A few thousand keys: sums are of many terms, but none of them is lost."""
    (q, x), (k, y), (v, z) = operands(rng, (1, 1, 2, 5000, 16, 1), TYPES[0], batch=1)
    expected = attention(x, y, z)
    for variant in ("serial", "decode_serial", "plain"):
        with forced(attention=variant):
            error = np.abs(q.attention(k, v).numpy() - expected).max()
        assert error < PRECISION[dt.float32], variant


# ---- how keys are divided ----

CACHES = [(kinds, depth) for kinds, depths in GROUPED_DEPTHS.items() for depth in depths]


@pytest.mark.parametrize("memory", [32 << 10, 227 << 10], ids=["apple", "tensor cores"])
@pytest.mark.parametrize("keys", [1, 512, 4096, 1 << 20])
def test_tiles_of_keys_fit_into_threadgroup_memory(memory, keys):
    info = replace(metal.context().info, threadgroup_memory=memory, cores=40, simd_hardware=True)
    for (dtype, cached), depth in CACHES:
        for kv_heads in (1, 8, 64):
            problem = AttentionProblem(
                *(dtype, cached, 1, 8 * kv_heads, kv_heads, 1, keys, depth, depth),
                *(True, 0, 1.0, 0.0),
            )
            blocks = grouped_blocks(info, problem)
            assert blocks.memory <= memory - 512  # the shader has marks beside the tiles
            assert blocks.memory >= blocks.simdgroups * GROUPED_ROWS * depth * 4  # of sums
            assert 1 <= blocks.chunks <= GROUPED_CHUNKS


@pytest.mark.parametrize(
    ("kv_heads", "keys", "depth", "chunks"),
    [
        (8, 512, 64, 1),
        (8, 1024, 64, 16),
        (8, 4096, 64, 16),
        (8, 32768, 64, 33),
        (8, 32768, 128, 33),
        (8, 32768, 256, 16),
        (32, 8192, 128, 8),
        (80, 32768, 64, 3),
    ],
)
def test_keys_are_divided_among_cores(kv_heads, keys, depth, chunks):
    info = replace(metal.context().info, threadgroup_memory=227 << 10, cores=132)
    sizes = (1, 4 * kv_heads, kv_heads, 1, keys, depth, depth)
    problem = AttentionProblem(dt.float16, "float16", *sizes, True, 0, 1.0, 0.0)
    assert grouped_blocks(info, problem).chunks == chunks
