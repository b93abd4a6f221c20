"""Results have the same bits fused, unfused, replayed and evaluated step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from bit_graphs import Recipe, random_recipe
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.ops import TABLE, OpFamily
from lbrx.tensors.core import Tensor, call

HALVES = ["float16", "bfloat16"]
FLOATS = ["float32", *HALVES]
SEEDS = st.integers(0, 2**32 - 1)
RANDOM = settings(deadline=None, database=None, phases=[Phase.generate])


def bits(tensor: Tensor) -> np.ndarray:
    """The elements' bits; all NaN count as equal."""
    values = np.array(tensor.numpy())
    kind = f"u{values.dtype.itemsize}"
    if tensor.dtype.is_float:
        return np.where(np.isnan(values), 1, values.view(kind)).astype(kind)
    return values.view(kind)


def together(recipe: Recipe) -> list[Tensor]:
    tensors = recipe.build(recipe.inputs())
    lbrx.eval(tensors[-3:])
    return tensors


def unfused(recipe: Recipe) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LBRX_FUSION", "0")
        return together(recipe)


def step_by_step(recipe: Recipe) -> list[Tensor]:
    return recipe.build(recipe.inputs(), after=lbrx.eval)


def replayed(recipe: Recipe) -> list[Tensor]:
    function = lbrx.compile(lambda *inputs: recipe.build(inputs)[-3:])
    inputs = recipe.inputs()
    function(*inputs)
    return function(*inputs)


WAYS: list[Callable[[Recipe], Sequence[Tensor]]] = [unfused, step_by_step, replayed]


def check(recipe: Recipe) -> None:
    expected = list(map(bits, together(recipe)[-3:]))
    for way in WAYS:
        for wanted, tensor in zip(expected, way(recipe)[-3:], strict=True):
            message = f"{way.__name__} differs from fused:\n{recipe.text()}"
            np.testing.assert_array_equal(bits(tensor), wanted, message)


@settings(RANDOM, max_examples=4)
@given(SEEDS)
def test_random_graphs_have_the_same_bits(seed):
    print(f"seed {seed}")
    check(random_recipe(np.random.default_rng(seed), 12))


@pytest.mark.full
@settings(RANDOM, max_examples=150)
@given(SEEDS, st.integers(5, 30))
def test_many_random_graphs_have_the_same_bits(seed, depth):
    print(f"seed {seed}")
    check(random_recipe(np.random.default_rng(seed), depth))


@settings(RANDOM, max_examples=2)
@given(SEEDS)
def test_deterministic_graphs_have_the_same_bits(seed):
    print(f"seed {seed}")
    with lbrx.deterministic():
        check(random_recipe(np.random.default_rng(seed), 10, rounded=True))


@pytest.mark.full
@settings(RANDOM, max_examples=60)
@given(SEEDS, st.integers(5, 20))
def test_many_deterministic_graphs_have_the_same_bits(seed, depth):
    print(f"seed {seed}")
    with lbrx.deterministic():
        check(random_recipe(np.random.default_rng(seed), depth, rounded=True))


# ---- single rules ----


def same_bits(build: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Compare fused, unfused and replayed results; returns the fused one."""
    result = build(*inputs)
    fused = bits(result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LBRX_FUSION", "0")
        np.testing.assert_array_equal(bits(build(*inputs)), fused)
    np.testing.assert_array_equal(bits(lbrx.compile(build)(*inputs)), fused)
    return result


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    made = lbrx.tensor(values, device="metal").astype(dtype)
    lbrx.eval(made)
    return made


def kernels(*tensors: Tensor) -> int:
    return len(lbrx.explain(*tensors).kernels)


def test_evaluating_an_intermediate_changes_nothing():
    x = lbrx.tensor([60000.0], dtype="float16", device="metal")
    middle = x * 2
    lbrx.eval(middle)
    assert np.isinf((middle / 2).numpy()).all()
    assert np.isinf(((x * 2) / 2).numpy()).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_excess_precision_skips_roundings(dtype):
    x = lbrx.tensor([1.0], dtype=dtype, device="metal")
    tiny = 2.0**-12
    with lbrx.excess_precision():
        kept = (x + tiny) - 1
        assert kernels(kept) == 1
    assert kept.tolist() == [tiny]
    assert ((x + tiny) - 1).tolist() == [0.0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_chains_are_rounded_after_every_operation(dtype):
    x, y = normal(37, 65, dtype=dtype), normal(37, 65, dtype=dtype, seed=1)
    same_bits(lambda x, y: ((x * y + x) * 0.3 - y).silu() * y + x / 3, x, y)
    same_bits(lambda x, y: (x * y + y * y).T[::-1] * 1.37 - x.T, x, y)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_are_rounded_after_every_operation(dtype):
    x = normal(19, 67, dtype=dtype)

    def peaks(x: Tensor) -> Tensor:
        powers = (x - x.max(axis=-1, keepdims=True)).exp()
        return powers / (powers.min(axis=-1, keepdims=True) + 1)

    assert kernels(peaks(x)) == 1
    for variant in ("serial", "together"):
        with lbrx.kernels.forced(rows=variant):
            same_bits(peaks, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_are_rounded_before_they_are_used(dtype):
    """Sums of integers do not depend on the order; 4101 has too many bits for both halves."""
    x = lbrx.tensor(np.full((9, 1367), 3.0, np.float32), device="metal").astype(dtype)
    result = same_bits(lambda x: x.sum(axis=-1, keepdims=True) - x * 1365, x)
    total = float(lbrx.tensor(4101.0, dtype=dtype).numpy())
    assert float(result[0, 0].numpy()) == total - float(lbrx.tensor(4095.0, dtype=dtype).numpy())


@pytest.mark.parametrize("variant", ["serial", "together"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_signed_zeros_and_nan_in_maxima(dtype, variant):
    values = np.array([[0.0, -0.0], [-0.0, 0.0], [np.nan, 1], [1, -np.nan]] * 3, np.float32)
    x = lbrx.tensor(np.repeat(values, 40, axis=1), device="metal").astype(dtype)
    with lbrx.kernels.forced(rows=variant):
        high = same_bits(lambda x: -(x.max(axis=-1, keepdims=True) * 1), x)
        low = same_bits(lambda x: -(x.min(axis=-1, keepdims=True) * 1), x)
    alone = -x.max(axis=-1), -x.min(axis=-1)
    for found in (high, low, *alone):
        assert np.isnan(found.numpy().ravel()[2:4].astype(np.float32)).all()
    assert np.signbit(high.numpy()[:2].astype(np.float32)).all()
    assert not np.signbit(low.numpy()[:2].astype(np.float32)).any()


FUNCTIONS = ["exp", "tanh", "erf", "sin", "gelu", "log1p", "rsqrt"]
EVERY = [op.name for op in TABLE.values() if op.family in (OpFamily.UNARY, OpFamily.ACTIVATION)]


@pytest.mark.parametrize(
    "name",
    [*FUNCTIONS, *(pytest.param(n, marks=pytest.mark.full) for n in EVERY if n not in FUNCTIONS)],
)
def test_an_element_does_not_depend_on_its_place(name):
    """In a vector loop, in its tail, strided, broadcast and inside another kernel."""
    if len(TABLE[name].operands) > 1 or name == "bitwise_invert":
        pytest.skip("of several operands or of integers")
    x = normal(403)
    whole = bits(call(name, x))
    for count in (1, 3, 17, 100):
        np.testing.assert_array_equal(bits(call(name, x[:count])), whole[:count])
    np.testing.assert_array_equal(bits(call(name, x[::3])), whole[::3])
    np.testing.assert_array_equal(bits(call(name, x[7].expand(5))), whole[[7] * 5])
    np.testing.assert_array_equal(bits(call(name, x * 2 / 2).contiguous()), whole)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_take_the_type_of_the_tensor(dtype):
    x = normal(100, dtype=dtype)
    number = lbrx.tensor([1.37], device="metal").astype(dtype)
    np.testing.assert_array_equal(bits(x * 1.37 + 0.1), bits(x * number + number * 0 + 0.1))
    same_bits(lambda x: x * 1.37 + 0.1, x)
    compiled = lbrx.compile(lambda x, number: x * number + 0.1)
    np.testing.assert_array_equal(bits(compiled(x, 1.37)), bits(x * 1.37 + 0.1))


def test_casts_to_and_fro_are_kept():
    values = np.array([1.0001, 300.7, -3.9, 70000.0, 2.0**-20, np.inf], np.float32)
    x = lbrx.tensor(values, device="metal")
    for chain in (
        ["bfloat16", "float32"],
        ["float16", "bfloat16", "float32"],
        ["float16", "int8", "float16"],
        ["bfloat16", "uint64", "int32", "float16"],
        ["bfloat16", "bool", "float32"],
    ):

        def cast(x: Tensor, chain: Sequence[str] = chain) -> Tensor:
            for dtype in chain:
                x = x.astype(dtype)
            return x

        assert kernels(cast(x)) == 1
        same_bits(cast, x)


# ---- products and deterministic reductions ----

FINISHES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda p, b: (p + b).gelu(),
    lambda p, b: (b + p).silu(),
    lambda p, b: p.relu(),
]


@pytest.mark.parametrize("variant", ["serial", "single", "matvec", "tiles", "mps"])
def test_finished_products_keep_their_bits(variant):
    x, w, b = normal(5, 300), normal(300, 70, seed=1), normal(70, seed=2)
    for finish in FINISHES:
        with lbrx.kernels.forced(matmul=variant):
            assert kernels(finish(x @ w, b)) == 1
            same_bits(lambda x, w, b, f=finish: f(x @ w, b), x, w, b)


@pytest.mark.parametrize("dtype", HALVES)
def test_products_of_halves_are_rounded_before_they_are_finished(dtype):
    x, w, b = (normal(*shape, dtype=dtype) for shape in ((5, 300), (300, 70), (70,)))
    for finish in FINISHES:
        assert kernels(finish(x @ w, b)) == 2
        same_bits(lambda x, w, b, f=finish: f(x @ w, b), x, w, b)
        with lbrx.excess_precision():
            assert kernels(finish(x @ w, b)) == 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions_are_deterministic_whether_fused_or_not(dtype):
    x = normal(21, 333, dtype=dtype)

    def norm(x: Tensor) -> Tensor:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / (((centred * centred).sum(axis=-1, keepdims=True)) + 1).sqrt()

    with lbrx.deterministic():
        same_bits(norm, x)
        same_bits(lambda x: (x * 0.01 + 1).prod(axis=-1), x)
        same_bits(lambda x: (x.T @ x + x[0]).tanh(), x)
