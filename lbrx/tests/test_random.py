"""Random numbers: the generator's published test vectors, and moments of the distributions."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from op_oracle import chosen, wide

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.ops.random import philox


def test_philox_gives_the_published_words():
    # From Random123's file of known answers, philox4x32 with 10 rounds; the counter has two words.
    assert [hex(w) for w in philox(0, 0, 1)] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


def reference_block(counter, key):
    """One block as the paper defines it, with Python integers."""
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


FORKED = """
import os, sys
import lbrx

if len(sys.argv) > 1:
    lbrx.random.seed(int(sys.argv[1]))
for _ in range(2):
    if os.fork() == 0:
        print(lbrx.random.randint(0, 2**62, device="cpu").item(), flush=True)
        os._exit(0)
    os.wait()
print(lbrx.random.randint(0, 2**62, device="cpu").item())
"""


@pytest.mark.parametrize(("seed", "different"), [([], 3), (["5"], 1)], ids=["random", "seeded"])
def test_forked_processes_draw_their_own_numbers(seed, different):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, *seed], capture_output=True, text=True, check=True
    )
    assert len(set(done.stdout.split())) == different


def test_numbers_do_not_depend_on_the_shape():
    lbrx.random.seed(1)
    flat = lbrx.random.normal(1001)
    lbrx.random.seed(1)
    square = lbrx.random.normal((10, 10))
    np.testing.assert_array_equal(flat.numpy()[:100], square.numpy().ravel())


def test_distributions():
    n = 200_000
    lbrx.random.seed(3)
    u = lbrx.random.uniform((n,), -2, 6).numpy().astype(float)
    assert -2 <= u.min() < u.max() < 6
    assert abs(u.mean() - 2) < 5 * 8 / math.sqrt(12 * n)
    z = lbrx.random.normal(n, mean=1, std=3).numpy().astype(float)
    assert abs(z.mean() - 1) < 5 * 3 / math.sqrt(n)
    assert abs(z.std() - 3) < 5 * 3 / math.sqrt(2 * n)
    inside = [np.mean(np.abs(z - 1) < 3 * k) for k in (1, 2, 3)]
    np.testing.assert_allclose(inside, [math.erf(k / math.sqrt(2)) for k in (1, 2, 3)], atol=5e-3)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / math.sqrt(n)
    b = lbrx.random.bernoulli(n, p=0.3)
    assert b.dtype is lbrx.bool_
    assert abs(b.numpy().mean() - 0.3) < 5 * math.sqrt(0.21 / n)


def test_types_and_empty_shapes():
    assert lbrx.random.uniform((3, 0)).shape == (3, 0)
    assert lbrx.random.normal(()).shape == ()
    assert lbrx.random.normal(3, dtype="bfloat16").dtype is lbrx.bfloat16
    with pytest.raises(lbrx.DtypeError, match="random numbers are floating, not int32: cast"):
        lbrx.random.uniform(3, dtype="int32")


LOW, HIGH = [-1, 0, 5], [[1], [9.5]]


@pytest.mark.parametrize("made", [list, np.array, lbrx.tensor], ids=["list", "numpy", "tensor"])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16])
def test_parameters_for_each_element(made, dtype):
    def drawn(function, *parameters, **more):
        lbrx.random.seed(12)
        return function((4, 2, 3), *parameters, **more)

    low, high = np.broadcast_arrays(LOW, HIGH)
    unit, bell = (wide(drawn(f).numpy()) for f in (lbrx.random.uniform, lbrx.random.normal))
    for found, expected in [
        (drawn(lbrx.random.uniform, made(LOW), made(HIGH), dtype), low + unit * (high - low)),
        (drawn(lbrx.random.uniform, 0.5, made(HIGH), dtype), 0.5 + unit * (high - 0.5)),
        (drawn(lbrx.random.normal, made(LOW), made(HIGH), dtype), low + bell * high),
        (drawn(lbrx.random.normal, made(LOW), 2, dtype), low + bell * 2),
    ]:
        assert found.dtype is dtype
        np.testing.assert_allclose(wide(found.numpy()), expected, rtol=2e-3, atol=2e-3)
    chances = [[0, 0.5, 1], [0.25, 0.125, 2]]
    np.testing.assert_array_equal(
        drawn(lbrx.random.bernoulli, made(chances)).numpy(), unit < chances
    )


def test_parameters_say_where_numbers_are_drawn():
    p = lbrx.tensor([0.5, 0.25], device="cpu")
    for made in (
        lbrx.random.bernoulli((2,), p),
        lbrx.random.uniform((2,), p),
        lbrx.random.normal((2,), 0, p),
        lbrx.random.normal(2, mean=[0, 1], device="cpu"),
    ):
        assert made.device == "cpu"


def test_lists_and_scalar_tensors():
    assert sorted(lbrx.random.permutation([3, 1, 2]).tolist()) == [1, 2, 3]
    assert sorted(lbrx.random.permutation(lbrx.tensor(3)).tolist()) == [0, 1, 2]
    assert set(lbrx.random.choice(lbrx.tensor(3), 100).tolist()) == {0, 1, 2}
    assert lbrx.random.categorical([[0.0, -math.inf]]).tolist() == [0]


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_bernoulli_rejects_other_numbers(p):
    with pytest.raises(ValueError, match=f"p={p} is not a probability: give a number from 0 to 1"):
        lbrx.random.bernoulli(3, p=p)


def chi_square(counts, chances):
    """Standard deviations that the statistic is away from its mean."""
    expected = counts.sum() * np.asarray(chances)
    freedom = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


INTEGERS = [d for d in dt.ALL if d.is_integer]


def test_integers(place):
    for dtype in chosen(INTEGERS, place):
        limits = np.iinfo(dtype.numpy)
        least, most = int(limits.min), int(limits.max)
        for low, high in [(0, 1), (3, 10), (least, most), (most, most + 1), (least, most + 1)]:
            lbrx.random.seed(11)
            values = lbrx.random.randint(low, high, (7, 143), dtype, place)
            assert (values.dtype, values.shape, values.device) == (dtype, (7, 143), place)
            plain = [int(v) for v in values.numpy().ravel()]
            words = [w for i in range(501) for w in reference_block(i, 11)]
            numbers = [a | b << 32 for a, b in zip(words[::2], words[1::2], strict=True)]
            assert plain == [low + (n * (high - low) >> 64) for n in numbers[:1001]]


def test_integers_are_equally_likely(place):
    lbrx.random.seed(2)
    values = lbrx.random.randint(-3, 7, 100_000, device=place).numpy()
    assert abs(chi_square(np.bincount(values + 3, minlength=10), [0.1] * 10)) < 5


def test_what_follows_integers_is_independent_of_them(place):
    lbrx.random.seed(4)
    first = lbrx.random.randint(0, 2**62, 6, device=place).tolist()
    second = lbrx.random.randint(0, 2**62, 6, device=place).tolist()
    assert not set(first) & set(second)


def test_permutation(place):
    lbrx.random.seed(5)
    order = lbrx.random.permutation(1000, device=place)
    assert order.tolist() != list(range(1000))
    assert sorted(order.tolist()) == list(range(1000))
    lbrx.random.seed(5)
    assert lbrx.random.permutation(1000, device="cpu").tolist() == order.tolist()
    x = lbrx.arange(12, device=place).reshape(3, 4)
    mixed = lbrx.random.permutation(x, axis=1).numpy()
    assert sorted(mixed.T.tolist()) == x.numpy().T.tolist()
    assert lbrx.random.permutation(0, device=place).shape == (0,)


def test_orders_are_equally_likely():
    lbrx.random.seed(9)
    orders = [lbrx.random.permutation(3, device="cpu").tolist() for _ in range(600)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert abs(chi_square(counts, [1 / 6] * 6)) < 5


def test_categorical(place):
    chances = np.array([[0.5, 0.25, 0.2, 0.05], [0.1, 0.1, 0.8, 0]])
    with np.errstate(divide="ignore"):
        logits = lbrx.tensor((np.log(chances) + 3).astype(np.float32), device=place)
    lbrx.random.seed(6)
    samples = lbrx.random.categorical(logits, shape=(20_000, 2)).numpy()
    assert abs(chi_square(np.bincount(samples[:, 0]), chances[0])) < 5
    assert abs(chi_square(np.bincount(samples[:, 1]), chances[1, :3])) < 5
    lbrx.random.seed(6)
    again = lbrx.random.categorical(logits.to_device("cpu"), shape=(20_000, 2))
    np.testing.assert_array_equal(again.numpy(), samples)
    turned = lbrx.random.categorical(logits.transpose().astype("bfloat16"), axis=0)
    assert (turned.shape, turned.dtype, turned.device) == ((2,), dt.int64, place)


def test_many_unlikely_categories_stay_unlikely(metal_default):
    # A noise of infinity, once in 2**24 numbers, would make each of these as likely as the first.
    logits = np.full(100_000, -100, np.float32)
    logits[0] = 0
    lbrx.random.seed(7)
    samples = lbrx.random.categorical(lbrx.tensor(logits), shape=400)
    assert samples.numpy().max() == 0


def test_choice(place):
    x = lbrx.arange(20, dtype="float32", device=place).reshape(10, 2)
    lbrx.random.seed(8)
    drawn = lbrx.random.choice(x, (5, 3))
    assert drawn.shape == (5, 3, 2)
    assert {tuple(row) for row in drawn.numpy().reshape(-1, 2)} <= {
        (2 * i, 2 * i + 1) for i in range(10)
    }
    assert sorted(lbrx.random.choice(x, 10, replace=False)[:, 0].tolist()) == list(range(0, 20, 2))
    weights = np.float32([0, 3, 0, 1, *[0] * 6])
    picked = lbrx.random.choice(x, 4000, p=weights)[:, 0].numpy()
    assert abs(chi_square(np.array([(picked == 2).sum(), (picked == 6).sum()]), [0.75, 0.25])) < 5
    assert (picked == 2).sum() + (picked == 6).sum() == 4000
    assert set(lbrx.random.choice(3, 100).tolist()) == {0, 1, 2}
    assert set(lbrx.random.choice([0.5, 2.5], 100).tolist()) == {0.5, 2.5}
    assert lbrx.random.choice(np.zeros((4, 2), np.int8), 3).shape == (3, 2)


ONES = lbrx.ones((2, 3), device="cpu")
NUMPY_CALLS = [
    *((0, 1, (3,)), (2, 1, (3,)), (0.0, 1.0, 3), (0, 1, [3]), (0, (3,))),
    *((0, 1, 3), (5, 2, 3), (np.int64(0), 1), (2, 5), (-1, 1, [3]), (0, 1, None)),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lbrx.random.randint(5, 5), ValueError, "no integer is from 5 to below 5: give a"),
        (lambda: lbrx.random.randint(0, 300, 2, "int8"), lbrx.DtypeError, "299 does not fit int8"),
        (lambda: lbrx.random.randint(-1, 3, 2, "uint8"), lbrx.DtypeError, "-1 does not fit uint8"),
        (lambda: lbrx.random.randint(0, 3, 2, "float32"), lbrx.DtypeError, "give an integer type"),
        (lambda: lbrx.random.randint(0, 1.5), TypeError, "high=1.5 is not an integer: give"),
        (lambda: lbrx.random.permutation(-1), lbrx.ShapeError, "of -1 elements: give 0 or more"),
        (lambda: lbrx.random.categorical(lbrx.ones(3, "int8")), lbrx.DtypeError, "logits are int8"),
        (lambda: lbrx.random.categorical(ONES, shape=3), lbrx.ShapeError, "do not broadcast"),
        (lambda: lbrx.random.categorical(ONES, shape=()), lbrx.ShapeError, "give more"),
        (lambda: lbrx.random.choice(ONES, 3, replace=False), lbrx.ShapeError, "3 of 2 elements"),
        (
            lambda: lbrx.random.choice(ONES, 3, p=[1]),
            lbrx.ShapeError,
            r"p has shape \(1,\): .*\(2,\)",
        ),
        (lambda: lbrx.random.choice(ONES, 1, False, [1, 2]), ValueError, "give one of the two"),
        (lambda: lbrx.random.choice(2.5, 1), TypeError, "integer"),
        (lambda: lbrx.random.randint(5, (3,)), TypeError, r"randint\(low, high, shape\)"),
        (lambda: lbrx.random.choice(0, 1), lbrx.ShapeError, "1 of no elements"),
        (lambda: lbrx.random.choice(2, 1, p=[1, -1]), ValueError, "finite numbers from 0 on"),
        (lambda: lbrx.random.choice(2, 1, p=[0, 0]), ValueError, "finite numbers from 0 on"),
        (lambda: lbrx.random.randint([1], 5), TypeError, r"low=\[1\] is not an integer: give"),
        (lambda: lbrx.random.uniform((3,), "a"), lbrx.DtypeError, "is not numeric: give numbers"),
        (lambda: lbrx.random.uniform((3,), [1, 2, 3], dtype="int8"), lbrx.DtypeError, "not int8"),
        (lambda: lbrx.random.normal((2,), 0, [1, 2, 3]), lbrx.ShapeError, "do not broadcast"),
        (lambda: lbrx.random.normal((2,), [[1], [2]]), lbrx.ShapeError, r"mean has shape \(2, 1\)"),
        (lambda: lbrx.random.normal((2,), [0, 1], -1), ValueError, "std=-1 is negative"),
        (lambda: lbrx.random.bernoulli(0.5, (3,)), TypeError, r"\(\(3,\), p\), and 0.5 is given"),
        (
            lambda: lbrx.random.bernoulli(1, (3,)),
            TypeError,
            r"shape comes first, as in .* and 1 is",
        ),
        *(
            (lambda f=f, given=given: f(*given), TypeError, "the shape comes first, as in")
            for f in (lbrx.random.normal, lbrx.random.uniform)
            for given in NUMPY_CALLS
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
