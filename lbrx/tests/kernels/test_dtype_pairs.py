"""Every pair of dtypes, for casts, comparisons, logical operations, minima, maxima and choices.

Compiling takes most of the time. So all pairs of a dtype share one kernel by default, with special
values and an odd length, and only the pairs with a half, where compilers fail most, have kernels of
their own; the full run compiles a kernel for every operation and pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from seeds import derived

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.kernels.elementwise import elementwise
from lbrx.metal import context
from lbrx.ops import TABLE, Spec
from lbrx.program.element_program import ProgramStep
from lbrx.scheduler.running import ready
from lbrx.tensors.core import Tensor, call

COUNT = 403  # vectors of any width, and a rest
ON_METAL = [d for d in dt.ALL if d.msl]
HALVES = (dt.float16, dt.bfloat16)
FLOATS = [
    *(0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 1.5, -2.75, 100.3, 254.99, -128.0),
    *(3e-41, -1e-45, 6e-8, 65504.0, 65520.0, 2.0**24 + 2, -(2.0**31), 3e9, 2.0**63, 3e38),
]
COMPARED = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
CHOSEN = ("maximum", "minimum")
PACKED = f"""inline ushort packed({", ".join(f"bool b{i}" for i in range(9))}) {{
  return ushort({" | ".join(f"ushort(b{i}) << {i}" for i in range(9))});
}}"""


def values(dtype: Dtype, seed: int) -> np.ndarray:
    """Special and random values in an order that depends on the seed."""
    rng = np.random.default_rng(seed)
    if dtype is dt.bool_:
        return rng.integers(0, 2, COUNT).astype(bool)
    if dtype.is_float:
        made = rng.choice([*FLOATS, *rng.uniform(-300, 300, 20)], COUNT)
        return made.astype(np.float32).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    edges = [limits.min, limits.max, limits.max // 3, 0, 1, 2, 100]
    edges += [limits.min + 1, -1, -100] if limits.min else [limits.max - 1]
    return np.array(edges, dtype.numpy)[rng.integers(0, len(edges), COUNT)]


def on_metal(array: np.ndarray) -> Tensor:
    return lbrx.tensor(array, device="metal")


@pytest.fixture(autouse=True)
def _overflows():
    with np.errstate(all="ignore"):
        yield


def same(got: np.ndarray, expected: np.ndarray, message: str = "") -> None:
    """Equal values. NumPy's comparison does not treat two NaN of bfloat16 as equal."""
    assert got.dtype == expected.dtype
    if got.dtype == dt.bfloat16.numpy:
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(got, expected, message)


def check_cast(got: np.ndarray, x: np.ndarray, target: Dtype) -> None:
    assert got.dtype == target.numpy
    if target is dt.bool_:
        expected = x != 0
    elif target.is_float:
        expected = x.astype(np.float32).astype(target.numpy)
    elif dt.parse(x.dtype).is_float:
        expected = np.array([saturated(float(value), target) for value in x], target.numpy)
    else:
        expected = x.astype(target.numpy)
    same(got, expected)
    if target.is_float:
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


def saturated(value: float, target: Dtype) -> int:
    """The integer nearest to a truncated float; 0 for NaN."""
    limits = np.iinfo(target.numpy)
    if np.isnan(value):
        return 0
    if np.isinf(value):
        return limits.max if value > 0 else limits.min
    return min(max(int(value), limits.min), limits.max)


def working(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, Dtype]:
    """Operands in the type of the computation, and the promoted dtype."""
    promoted = dt.promote(dt.parse(x.dtype), dt.parse(y.dtype))
    wide = np.float32 if promoted in HALVES else promoted.numpy
    return x.astype(wide), y.astype(wide), promoted


def expected_of(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    a, b, promoted = working(x, y)
    if name == "where":
        return np.where(np.arange(COUNT) % 3 == 0, a, b).astype(promoted.numpy)
    made = getattr(np, name)(a, b)
    return made.astype(promoted.numpy) if name in CHOSEN else made


def step(op: str, *operands: tuple[int, Dtype], gives: Dtype) -> ProgramStep:
    """The step of an operation on numbered values."""
    made = elementwise.step_of(TABLE[op], {}, [Spec((COUNT,), d) for _, d in operands], gives)
    given = [
        (value, wanted) for (value, _), (_, wanted) in zip(operands, made.arguments, strict=True)
    ]
    return replace(made, arguments=tuple(given))


def computed(
    inputs: list[np.ndarray], steps: list[ProgramStep], outputs: list[int]
) -> list[np.ndarray]:
    """The values of some steps of one kernel."""
    arrays = tuple(on_metal(x).array for x in inputs)
    specs = [(len(inputs) + n, Spec((COUNT,), steps[n].gives)) for n in outputs]
    what = elementwise.Computation("pairs", (COUNT,), arrays, tuple(steps), tuple(specs))
    results = ready(context(), lambda b: elementwise.compute(b, what)).run()
    return [np.array(result.numpy()) for result in results]


# ---- all pairs of a dtype in one kernel ----


@pytest.mark.parametrize("source", ON_METAL, ids=str)
def test_casts_to_every_dtype(source):
    x = values(source, derived(str(source)))
    steps = [ProgramStep("cast", ((0, target),), target) for target in ON_METAL]
    for target, got in zip(ON_METAL, computed([x], steps, list(range(len(steps)))), strict=True):
        check_cast(got, x, target)


@pytest.mark.parametrize("first", ON_METAL, ids=str)
def test_comparisons_with_every_dtype(first):
    """The bits of an integer are the results of nine operations on one pair."""
    x = values(first, derived(str(first)))
    others = [values(d, derived(f"{first} {d}")) for d in ON_METAL]
    steps: list[ProgramStep] = []
    outputs = []
    count = 1 + len(others)
    for place, second in enumerate(ON_METAL, 1):
        start = count + len(steps)
        operands = (0, first), (place, second)
        steps += [step(name, *operands, gives=dt.bool_) for name in (*COMPARED, *LOGICAL)]
        bits = tuple((start + i, dt.bool_) for i in range(9))
        steps.append(ProgramStep("packed", bits, dt.uint16, PACKED))
        outputs.append(len(steps) - 1)
    for y, got in zip(others, computed([x, *others], steps, outputs), strict=True):
        for bit, name in enumerate((*COMPARED, *LOGICAL)):
            expected = expected_of(name, x, y)
            np.testing.assert_array_equal((got >> bit) & 1, expected, f"{name} {y.dtype}")


@pytest.mark.parametrize("first", ON_METAL, ids=str)
def test_choices_with_every_dtype(first):
    """Maxima, minima and `where`, in turn and with all dtypes from this one on."""
    x = values(first, derived(str(first)))
    seconds = ON_METAL[ON_METAL.index(first) :]
    others = [values(d, derived(f"{first} {d}")) for d in seconds]
    condition = np.arange(COUNT) % 3 == 0
    inputs = [condition, x, *others]
    for names in (CHOSEN[:1], CHOSEN[1:], ("where",)):
        steps = []
        for place, second in enumerate(seconds, 2):
            operands = [(1, first), (place, second)]
            gives = dt.promote(first, second)
            for name in names:
                given = [(0, dt.bool_), *operands] if name == "where" else operands
                steps.append(step(name, *given, gives=gives))
        results = iter(computed(inputs, steps, list(range(len(steps)))))
        for y, name in product(others, names):
            same(next(results), expected_of(name, x, y), f"{name} {y.dtype}")


# ---- a kernel for each ----


def check_alone(source: Dtype, target: Dtype, device: str) -> None:
    x = values(source, derived(f"{source} {target}"))
    check_cast(lbrx.tensor(x, device=device).astype(target).numpy(), x, target)


@pytest.mark.parametrize("source", ON_METAL, ids=str)
def test_casts_of_halves_alone(source):
    for target in ON_METAL:
        if source in HALVES or target in HALVES:
            check_alone(source, target, "metal")


@pytest.mark.full
@pytest.mark.parametrize("source", ON_METAL, ids=str)
def test_casts_alone(source):
    for target in ON_METAL:
        check_alone(source, target, "metal")


def test_casts_on_the_cpu():
    for source, target in product(ON_METAL, repeat=2):
        check_alone(source, target, "cpu")


def apply(name: str, x: Tensor, y: Tensor) -> Tensor:
    if name != "where":
        return call(name, x, y)
    condition = lbrx.tensor(np.arange(COUNT) % 3 == 0, device=x.device)
    return lbrx.where(condition, x, y)


def check_pair(name: str, first: Dtype, second: Dtype, device: str) -> None:
    """The result alone, and cast in the same kernel."""
    seed = derived(f"{name} {first} {second}")
    x, y = values(first, seed), values(second, seed + 1)
    a, b = (lbrx.tensor(v, device=device) for v in (x, y))
    expected = expected_of(name, x, y)
    same(apply(name, a, b).numpy(), expected)
    target = ON_METAL[seed % len(ON_METAL)]
    check_cast(apply(name, a, b).astype(target).numpy(), expected, target)


NAMES = (*COMPARED, *LOGICAL, *CHOSEN, "where")


@pytest.mark.parametrize("first", HALVES, ids=str)
def test_halves_with_every_dtype_alone(first):
    for second in ON_METAL:
        check_pair(NAMES[derived(f"{first} {second}") % len(NAMES)], first, second, "metal")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_comparisons_of_halves_with_a_number_become_every_dtype(dtype):
    x = values(dtype, derived(str(dtype)))
    for target in ON_METAL:
        got = (on_metal(x) > 0).astype(target).numpy()
        np.testing.assert_array_equal(got.astype(np.float32), x.astype(np.float32) > 0)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_pairs_alone(name):
    for first, second in combinations_with_replacement(ON_METAL, 2):
        check_pair(name, first, second, "metal")


def test_pairs_on_the_cpu():
    for name, first, second in product(NAMES, ON_METAL, ON_METAL):
        check_pair(name, first, second, "cpu")


# ---- rounding ----

ROUNDED: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [
    ("float16", lambda x: x.astype(np.float32).astype(np.float16)),
    ("bfloat16", lambda x: x.astype(np.float32).astype(dt.bfloat16.numpy)),
]


@pytest.mark.parametrize("dtype", [dt.int32, dt.uint32, dt.int64, dt.uint64], ids=str)
def test_integers_are_rounded_to_float_before_they_become_halves(dtype):
    """2**24 + 2**16 + 1 is a tie only after it was rounded to float32."""
    x = np.array([2**24 + 2**16 + 1, 2**25 + 2**17 + 1, 2**12 + 2 + 1, 2**11 + 1], dtype.numpy)
    for name, oracle in ROUNDED:
        for view in (x, np.tile(x, 40)):
            got = on_metal(view).astype(name).numpy()
            same(got, oracle(view))
