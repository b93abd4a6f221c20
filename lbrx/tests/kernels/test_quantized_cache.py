"""A cache in q8_0: rows quantized as they are put, and attention that reads them packed."""

from __future__ import annotations

import numpy as np
import pytest
from op_oracle import attention, close, sample, wide
from row_cases import computed_by, rotated

import lbrx
import softmetal
from lbrx import metal, quant
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.tensors.long_lived import new_cache, write

# (heads, key heads, L, S, D, Dv), around the sizes of blocks, chunks and lanes.
ODD = [(6, 2, 5, 9, 32, 96), (1, 1, 1, 1, 32, 32)]
SIZES = {
    "plain": [*ODD, (2, 1, 3, 20, 320, 288)],
    "serial": [*ODD, (3, 1, 70, 130, 64, 64), (2, 2, 17, 64, 96, 128)],
    "decode_serial": [*ODD, (9, 1, 2, 530, 64, 64), (7, 1, 1, 40, 160, 256)],
    "flash": [(2, 1, 33, 40, 64, 64)],
    "decode": [*ODD, (2, 1, 1, 1025, 64, 64)],
    "grouped": [(9, 1, 2, 70, 64, 64), (2, 1, 1, 530, 128, 128), (2, 1, 1, 40, 256, 256)],
}
RULES = [{}, {"causal": True, "window": 4, "scale": 0.3}, {"causal": True, "cap": 0.7}]
TYPES = (dt.float32, dt.float16, dt.bfloat16)
ONLY = {"grouped": dt.float16}  # variants of one type of queries


def on_metal(array):
    return lbrx.tensor(array, device="metal")


def ran(variant):
    return metal.stats()["kernels"].get(f"attention:{variant}", 0)


def quantized(rng, shape):
    """Blocks and their values."""
    codes = quant.quantize(sample(rng, shape, dt.float32, -2, 2), "q8_0")[0]
    return codes, quant.dequantize(codes, "q8_0").astype(np.float64)


def operands(rng, size, dtype):
    """Query, key and value as they are given, and the oracle's numbers."""
    heads, kv_heads, queries, keys, depth, value_depth = size
    query = sample(rng, (2, heads, queries, depth), dtype, -2, 2)
    key, y = quantized(rng, (2, kv_heads, keys, depth))
    value, z = quantized(rng, (2, kv_heads, keys, value_depth))
    return (query, key, value), (wide(query), y, z)


def check(rng, size, dtype, rule, device="metal", **given):
    stored, values = operands(rng, size, dtype)
    query, key, value = (lbrx.tensor(x, device=device) for x in stored)
    result = query.quantized_attention(key, value, **given, **rule)
    close(result, attention(*values, **given, **rule), dtype, scale=4)


CASES = [(variant, size) for variant, sizes in SIZES.items() for size in sizes]


@pytest.mark.parametrize(("variant", "size"), CASES, ids=str)
def test_attention(variant, size, rng):
    heads, keys = size[0], size[3]
    mask, lengths = sample(rng, (heads, 1, keys), dt.float32), np.array([keys, keys // 2])
    before, dtype = ran(variant), ONLY.get(variant, dt.float32)
    with forced(attention=variant):
        check(rng, size, dtype, RULES[0], mask=mask, lengths=lengths)
        for rule in RULES[1:]:
            check(rng, size, dtype, rule, lengths=lengths)
    assert ran(variant) == before + len(RULES)


@pytest.mark.full
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("variant", SIZES)
def test_attention_in_every_type(variant, dtype, rng):
    with forced(attention=variant):
        for size in SIZES[variant]:
            for rule in RULES:
                check(rng, size, dtype, rule)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_attention_as_chosen_and_by_numpy(dtype, rng):
    for device in ("metal", "cpu"):
        check(rng, (4, 2, 3, 40, 64, 32), dtype, RULES[1], device, lengths=np.array([40, 7]))


@pytest.mark.parametrize("variant", SIZES)
def test_what_lies_beyond_the_lengths_is_not_read(variant, rng):
    dtype = ONLY.get(variant, dt.float32)
    (query, *stored), values = operands(rng, (2, 1, 3, 70, 64, 64), dtype)
    lengths = np.array([0, 41])
    for codes in stored:
        for row, length in zip(codes, lengths, strict=True):
            row[:, length:] = 255  # scales are NaN
    with forced(attention=variant):
        result = on_metal(query).quantized_attention(*map(on_metal, stored), lengths=lengths)
    close(result, attention(*values, lengths=lengths), dtype, scale=4)


@pytest.mark.parametrize("variant", SIZES)
def test_attention_has_no_faults(variant, rng):
    with softmetal.checking("bounds", "race"), forced(attention=variant):
        dtype = ONLY.get(variant, dt.float32)
        check(rng, (2, 1, 3, 9, 64, 64), dtype, {"causal": True}, lengths=np.array([9, 4]))


# ---- rows put into the cache ----

SHAPES = [  # of the cache's values, of the rows, of the positions
    ((2, 3, 40, 64), (2, 3, 1, 64), (2, 1, 1)),
    ((1, 2, 17, 96), (1, 2, 9, 96), (9,)),
    ((6, 32), (3, 32), (3,)),
]


def put(cache, rows, positions):
    """One row after the other, by the encoder that files are written with."""
    result = cache.copy()
    encoded = quant.quantize(wide(rows).astype(np.float32), "q8_0")[0]
    where = np.broadcast_to(positions, rows.shape[:-1])
    for at in np.ndindex(*rows.shape[:-1]):
        if 0 <= where[at] < cache.shape[-2]:
            result[(*at[:-1], int(where[at]))] = encoded[at]
    return result


@pytest.mark.parametrize(("variant", "dtype"), rotated(("row",), ("element",), of=TYPES))
def test_overwrite(variant, dtype, rng):
    for shape, new, at in SHAPES:
        cache, _ = quantized(rng, shape)
        rows = sample(rng, new, dtype)
        places = rng.permutation(shape[-2] + 4)[: int(np.prod(at))].reshape(at).astype(np.int32)
        expected = put(cache, rows, places - 2)
        with computed_by("overwrite", variant, "overwrite"):
            result = on_metal(cache).overwrite_blocks(on_metal(rows), on_metal(places - 2))
            np.testing.assert_array_equal(result.numpy(), expected)
        reference = lbrx.tensor(cache, device="cpu").overwrite_blocks(rows, places - 2)
        np.testing.assert_array_equal(reference.numpy(), expected)


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1e8], ids=str)
def test_numbers_that_no_block_holds_make_it_nan(device, bad, rng):
    rows = sample(rng, (2, 64), dt.float32)
    error = np.abs(rows).max() / 127
    rows[1, 40] = bad
    cache = lbrx.zeros((3, 68), dtype="uint8", device=device)
    values = quant.dequantize(cache.overwrite_blocks(rows, [0, 2]).numpy(), "q8_0")
    np.testing.assert_array_equal(np.isnan(values[2]), np.arange(64) >= 32)
    np.testing.assert_allclose(values[0], rows[0], atol=error)


def test_the_cache_is_written_where_it_is(rng):
    whole = new_cache((2, 3, 8, 34), dt.uint8, "metal")
    write(whole, lbrx.zeros(whole.shape, dt.uint8, device="cpu"))
    rows = sample(rng, (3, 2, 32), dt.float32)
    result = whole[1].overwrite_blocks(on_metal(rows), on_metal(np.array([7, 2])))
    assert result.storage.address == whole[1].storage.address + 3 * 8 * 34
    expected = put(np.zeros((3, 8, 34), np.uint8), rows, np.array([7, 2]))
    np.testing.assert_array_equal(result.numpy(), expected)
    np.testing.assert_array_equal(whole.numpy()[1], expected)


@pytest.mark.parametrize("variant", ["row", "element"])
def test_overwrite_has_no_faults(variant, rng):
    cache, _ = quantized(rng, (2, 5, 64))
    rows, places = sample(rng, (2, 3, 64), dt.float16), np.array([4, 5, -1], np.int32)
    with softmetal.checking("bounds", "race"), forced(overwrite=variant):
        result = on_metal(cache).overwrite_blocks(on_metal(rows), on_metal(places))
        np.testing.assert_array_equal(result.numpy(), put(cache, rows, places))


def test_nothing_to_put_leaves_the_cache(rng):
    cache, _ = quantized(rng, (2, 4, 32))
    for device in ("cpu", "metal"):
        rows = lbrx.zeros((2, 0, 32), device=device)
        result = lbrx.tensor(cache, device=device).overwrite_blocks(rows, np.zeros(0, np.int32))
        np.testing.assert_array_equal(result.numpy(), cache)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda c, r: c[..., :33].overwrite_blocks(r, [0]),
            lbrx.ShapeError,
            "with complete blocks",
        ),
        (lambda c, r: r.overwrite_blocks(r, [0]), lbrx.DtypeError, "float32: give quantized"),
        (lambda c, r: r.quantized_attention(c, r), lbrx.DtypeError, "value_codes are float32"),
        (lambda c, r: c.overwrite_blocks(r[..., :40], [0]), lbrx.ShapeError, "may differ"),
        (
            lambda c, r: c.overwrite_blocks(r, [0], scheme="q4_0"),
            lbrx.QuantizationError,
            "a cache of q4_0 is not possible: take q8_0",
        ),
        (
            lambda c, r: r.quantized_attention(c[..., :9], c),
            lbrx.ShapeError,
            "with complete blocks",
        ),
        (lambda c, r: r[..., :32].quantized_attention(c, c), lbrx.ShapeError, "32 deep and key 64"),
        (
            lambda c, r: r.quantized_attention(c, c, scheme="q4_k"),
            lbrx.QuantizationError,
            "a cache of q4_k is not possible",
        ),
    ],
)
def test_refuses(call, error, message):
    codes = lbrx.zeros((1, 4, 68), dtype="uint8", device="cpu")
    with pytest.raises(error, match=message):
        call(codes, lbrx.zeros((1, 1, 64), device="cpu"))
