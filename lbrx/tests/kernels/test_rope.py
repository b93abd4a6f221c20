"""Rotary embedding: both variants against the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from op_oracle import close, rope, rotating, sample, wide

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.kernels.rope.rope import family

TYPES = (dt.float32, dt.float16, dt.bfloat16)
# Shapes of x and of its positions.
SHAPES = [
    ((8,), ()),
    ((5, 6), (5,)),
    ((2, 3, 7, 10), (7,)),
    ((2, 3, 7, 6), (2, 1, 7)),
    ((2, 3, 7, 6), (3, 1)),
    ((3, 2, 2, 5, 64), (3, 1, 1, 5)),
    ((2, 9, 1, 64), (2, 1, 1)),
    ((2, 0, 8), (1,)),
    ((3, 300), (3,)),
    ((1, 6, 3, 32), (6, 1)),
    ((2, 5, 9, 48), (9,)),
    ((4, 1), (4,)),
]
RULES = [
    {},
    {"interleaved": True},
    {"dims": 4},
    {"dims": 32},
    {"dims": 32, "interleaved": True},
    {"dims": 2, "interleaved": True, "base": 500000.0, "scale": 0.125},
]
VARIANTS = ("serial", "pairs", "chunks")


def check(rng, variant, shapes, dtype, rule, position_dtype=dt.int32) -> None:
    shape, where = shapes
    if shape[-1] < rule.get("dims", 0) or (shape[-1] % 2 and "dims" not in rule):
        return
    x, at = sample(rng, shape, dtype), rng.integers(0, 128, where)
    f = rng.uniform(1, 8, rule.get("dims", shape[-1]) // 2).astype(np.float32)
    tensor = lbrx.tensor(x, device="metal")
    positions = lbrx.tensor(at, dtype=position_dtype, device="metal")
    whole = np.broadcast_to(at, shape[:-1])
    with forced(rope=variant):
        close(tensor.rope(positions, **rule), rope(wide(x), whole, **rule), dtype, scale=4)
        close(
            tensor.rope(positions, f, **rule), rope(wide(x), whole, wide(f), **rule), dtype, scale=4
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(variant, rng):
    before = metal.stats()["kernels"].get(f"rope:{variant}", 0)
    for dtype in rotating(TYPES, variant):
        for shapes in SHAPES:
            for rule in RULES:
                check(rng, variant, shapes, dtype, rule)
    assert metal.stats()["kernels"][f"rope:{variant}"] > before


@pytest.mark.full
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_in_every_type(variant, dtype, rng):
    for position_dtype in (d for d in dt.ALL if d.is_integer):
        for shapes in SHAPES:
            for rule in RULES:
                check(rng, variant, shapes, dtype, rule, position_dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_faults(variant, rng):
    with softmetal.checking("bounds", "race"):
        check(rng, variant, SHAPES[3], dt.float32, RULES[2])
        check(rng, variant, ((1, 6, 3, 32), (3,)), dt.float16, RULES[0])


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_faults_at_all(variant, rng):
    with softmetal.checking("bounds", "race"):
        for shapes in SHAPES:
            for rule in RULES:
                check(rng, variant, shapes, dt.float16, rule)


@pytest.mark.parametrize("variant", VARIANTS)
def test_far_into_a_context(variant, rng):
    """Angles are right to the last bits of float32, where float32 itself would be off by 0.008."""
    x = sample(rng, (6, 128), dt.float32, -1, 1)
    at = np.array([0, 9_999, 131_071, 1_048_577, 2**24 + 1, -77])
    tensor = lbrx.tensor(x, device="metal")
    factors = rng.uniform(0.5, 8, 64).astype(np.float32)
    with forced(rope=variant):
        for base in (1.01, 10_000.0, 500_000.0):
            positions = lbrx.tensor(at, device="metal")
            plain = tensor.rope(positions, base=base).numpy()
            slowed = tensor.rope(positions, factors, base=base).numpy()
            np.testing.assert_allclose(plain, rope(wide(x), at, base=base), atol=1e-6)
            expected = rope(wide(x), at, wide(factors), base=base)
            np.testing.assert_allclose(slowed, expected, atol=1e-6)


def test_several_turns_a_position(rng):
    x, at = sample(rng, (5, 8), dt.float32, -1, 1), np.arange(5)
    result = lbrx.tensor(x, device="metal").rope(at, scale=123.456)
    np.testing.assert_allclose(result.numpy(), rope(wide(x), at, scale=123.456), atol=1e-6)


def test_views(rng):
    x, at = sample(rng, (2, 7, 3, 16), dt.float32), np.arange(14)
    tensor, positions = lbrx.tensor(x, device="metal"), lbrx.tensor(at, device="metal")
    heads = tensor.permute((0, 2, 1, 3))
    before = metal.stats()["kernels"].get("copy:single", 0)
    lbrx.eval(heads, positions)
    close(heads.rope(positions[:7]), rope(x.swapaxes(1, 2), at[:7]), dt.float32, scale=4)
    assert metal.stats()["kernels"].get("copy:single", 0) == before
    close(
        tensor[:, ::-1, :, ::2].rope(positions[::-2][:3]),
        rope(x[:, ::-1, :, ::2], at[::-2][:3]),
        dt.float32,
        scale=4,
    )


def test_integers_and_nothing_to_turn(rng):
    x = sample(rng, (3, 4), dt.int32)
    close(lbrx.tensor(x, device="metal").rope(2), rope(wide(x), np.full(3, 2)), dt.float32, scale=4)
    close(lbrx.tensor(x, device="metal").rope(2, dims=0), x, dt.float32)


def test_long_tables_need_a_buffer(rng):
    x = sample(rng, (2, 1030), dt.float32)
    close(
        lbrx.tensor(x, device="metal").rope(np.array([3, 5])),
        rope(wide(x), [3, 5]),
        dt.float32,
        scale=4,
    )


def test_choice_on_a_chip(on_chip, rng):
    x = sample(rng, (2, 5, 64), dt.float32)
    with on_chip("m2"):
        result = lbrx.tensor(x, device="metal").rope(np.arange(5))
        close(result, rope(wide(x), np.arange(5)), dt.float32, scale=4)
        assert metal.stats()["kernels"]["rope:chunks"] == 1
    assert len(family.variants) == len(VARIANTS)
