"""Random numbers: the generator's published answers, and what the distributions must be."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lbrx
from lbrx.ops.random import philox


def test_philox_gives_the_published_words():
    # From the known-answer file of Random123, philox4x32 10 rounds; counters of two words.
    assert [hex(w) for w in philox(0, 0, 1)] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


def reference_block(counter, key):
    """The paper's round, on Python ints."""
    c, k = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        low, high = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [high >> 32 ^ c[1] ^ k[0], high & 0xFFFFFFFF, low >> 32 ^ c[3] ^ k[1], low & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize("offset", [0, 5, 2**32 - 1, 2**40])
def test_philox_counts_and_keys(offset):
    key = 0x123456789ABCDEF0
    expected = [w for i in range(3) for w in reference_block(offset + i, key)]
    assert philox(key, offset, 3).tolist() == expected


def test_the_same_seed_gives_the_same_numbers():
    lbrx.random.seed(7)
    first = [lbrx.random.uniform(5), lbrx.random.normal((2, 3)), lbrx.random.bernoulli(9)]
    lbrx.random.seed(7)
    again = [lbrx.random.uniform(5), lbrx.random.normal((2, 3)), lbrx.random.bernoulli(9)]
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    lbrx.random.seed(8)
    assert (lbrx.random.uniform(5) != first[0]).all()


def test_numbers_do_not_depend_on_the_shape():
    lbrx.random.seed(1)
    flat = lbrx.random.normal(1001)
    lbrx.random.seed(1)
    square = lbrx.random.normal((10, 10))
    np.testing.assert_array_equal(flat.numpy()[:100], square.numpy().ravel())


def test_distributions():
    n = 200_000
    lbrx.random.seed(3)
    u = lbrx.random.uniform(n, -2, 6).numpy().astype(float)
    assert -2 <= u.min() < u.max() < 6
    assert abs(u.mean() - 2) < 5 * 8 / math.sqrt(12 * n)
    z = lbrx.random.normal(n, mean=1, std=3).numpy().astype(float)
    assert abs(z.mean() - 1) < 5 * 3 / math.sqrt(n)
    assert abs(z.std() - 3) < 5 * 3 / math.sqrt(2 * n)
    inside = [np.mean(np.abs(z - 1) < 3 * k) for k in (1, 2, 3)]
    np.testing.assert_allclose(inside, [math.erf(k / math.sqrt(2)) for k in (1, 2, 3)], atol=5e-3)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / math.sqrt(n)
    b = lbrx.random.bernoulli(n, 0.3)
    assert b.dtype is lbrx.bool_
    assert abs(b.numpy().mean() - 0.3) < 5 * math.sqrt(0.21 / n)


def test_types_and_empty_shapes():
    assert lbrx.random.uniform((3, 0)).shape == (3, 0)
    assert lbrx.random.normal(()).shape == ()
    assert lbrx.random.normal(3, dtype="bfloat16").dtype is lbrx.bfloat16
    with pytest.raises(lbrx.DtypeError, match="random numbers are floating, not int32: cast"):
        lbrx.random.uniform(3, dtype="int32")


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_what_is_no_probability(p):
    with pytest.raises(ValueError, match=f"p={p} is no probability: give a number from 0 to 1"):
        lbrx.random.bernoulli(3, p)
