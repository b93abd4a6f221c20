"""metal_common, metal_geometric and metal_relational, for float, half and bfloat of every width."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from harness import TYPES, Array, Case, Refused, bfloat16, check, evaluate_all
from numpy.typing import NDArray
from seeds import generator

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), bfloat16]
EPSILON = {FLOATS[0]: 2.0**-23, FLOATS[1]: 2.0**-10, FLOATS[2]: 2.0**-7}
Doubles = NDArray[np.float64]
Reference = Callable[..., Doubles]


def values(dtype: np.dtype, width: int, count: int) -> list[Array]:
    rng = generator(width)
    shape = (64,) if width == 1 else (64, width)
    return [rng.uniform(-2, 2, shape).astype(dtype) for _ in range(count)]


def result_type(dtype: np.dtype) -> np.dtype:
    """A bfloat argument is promoted."""
    return FLOATS[0] if dtype == bfloat16 else dtype


def smooth(low: Doubles, high: Doubles, x: Doubles) -> Doubles:
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


COMMON: dict[str, tuple[int, Reference]] = {
    "clamp(a, T(-0.5), T(1))": (1, lambda a: np.clip(a, -0.5, 1)),
    "clamp(a, min(b, c), max(b, c))": (
        3,
        lambda a, b, c: np.clip(a, np.minimum(b, c), np.maximum(b, c)),
    ),
    "mix(a, b, c)": (3, lambda a, b, c: a + (b - a) * c),
    "saturate(a)": (1, lambda a: np.clip(a, 0, 1)),
    "sign(a)": (1, np.sign),
    "step(a, b)": (2, lambda a, b: (b >= a).astype(float)),
    "smoothstep(T(-1), T(1), a)": (1, lambda a: smooth(np.full_like(a, -1), np.full_like(a, 1), a)),
}


def dot(a: Doubles, b: Doubles) -> Doubles:
    return np.sum(a * b, axis=1, keepdims=True)


def refract(a: Doubles, b: Doubles) -> Doubles:
    k = 1 - 0.25 * (1 - dot(a, b) ** 2)
    return np.where(k < 0, 0, 0.5 * a - (0.5 * dot(a, b) + np.sqrt(np.maximum(k, 0))) * b)


# Whether the value is a scalar, and the function of rows.
GEOMETRIC: dict[str, tuple[bool, int, Reference]] = {
    "dot(a, b)": (True, 2, dot),
    "length(a)": (True, 1, lambda a: np.sqrt(dot(a, a))),
    "length_squared(a)": (True, 1, lambda a: dot(a, a)),
    "distance(a, b)": (True, 2, lambda a, b: np.sqrt(dot(a - b, a - b))),
    "distance_squared(a, b)": (True, 2, lambda a, b: dot(a - b, a - b)),
    "normalize(a)": (False, 1, lambda a: a / np.sqrt(dot(a, a))),
    "reflect(a, b)": (False, 2, lambda a, b: a - 2 * dot(a, b) * b),
    "refract(a, b, 0.5)": (False, 2, refract),
    "faceforward(a, b, c)": (False, 3, lambda a, b, c: np.where(dot(b, c) < 0, a, -a)),
}


def assert_near(case: Case, got: Array, want: Doubles, epsilon: float) -> None:
    """Within the rounding of a few operations on values of this size."""
    np.testing.assert_allclose(
        got.astype(float), want, rtol=16 * epsilon, atol=16 * epsilon, err_msg=case.expression
    )


@pytest.mark.parametrize("fast_math", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_common(dtype: np.dtype, fast_math: bool) -> None:
    cases, wants = [], []
    for width in (1, 2, 3, 4):
        for text, (count, reference) in COMMON.items():
            inputs = values(dtype, width, count)
            scalar = TYPES[dtype]
            if dtype == bfloat16 and "min(" in text:
                continue  # min of bfloats is a float: the types would differ
            expression = text.replace("T(", f"{scalar}(")
            cases.append(Case(expression, inputs, result_type(dtype), width))
            wants.append(reference(*(v.astype(float) for v in inputs)))
    for case, got, want in zip(cases, evaluate_all(cases, fast_math), wants, strict=True):
        assert_near(case, got, want, EPSILON[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_geometric(dtype: np.dtype) -> None:
    cases, wants = [], []
    for width in (2, 3, 4):
        for text, (scalar, count, reference) in GEOMETRIC.items():
            inputs = values(dtype, width, count)
            if text.startswith("refract"):  # of unit vectors
                inputs = [
                    (v / np.sqrt(dot(v, v))).astype(dtype)
                    for v in (i.astype(float) for i in inputs)
                ]
            cases.append(Case(text, inputs, dtype, 1 if scalar else width))
            want = reference(*(v.astype(float) for v in inputs))
            wants.append(want[:, 0] if scalar else want)
    a, b = values(dtype, 3, 2)
    cases.append(Case("cross(a, b)", [a, b], dtype, 3))
    wants.append(np.cross(a.astype(float), b.astype(float)))
    for case, got, want in zip(cases, evaluate_all(cases), wants, strict=True):
        assert_near(case, got, want, 4 * EPSILON[dtype])


def test_half_sums_do_not_overflow() -> None:
    a = np.full((1, 4), 200, np.float16)
    cases = [Case("length(a)", [a], np.float16), Case("normalize(a)", [a], np.float16, 4)]
    length, unit = evaluate_all(cases)
    assert length == 400
    np.testing.assert_array_equal(unit, 0.5)


@pytest.mark.parametrize("fast_math", [True, False])
def test_nan_in_common(fast_math: bool) -> None:
    a = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    cases = [Case(f"{text}", [a]) for text in ("saturate(a)", "clamp(a, -2.0, 3.0)", "sign(a)")]
    saturated, clamped, sign = evaluate_all(cases, fast_math)
    np.testing.assert_array_equal(saturated, [0, 1, 0, 0])
    np.testing.assert_array_equal(clamped, [-2, 3, -2, 0])
    np.testing.assert_array_equal(sign, [0, 1, -1, 0])


RELATIONAL: dict[str, Callable[..., NDArray[np.bool_]]] = {
    "isnan(a)": np.isnan,
    "isinf(a)": np.isinf,
    "isfinite(a)": np.isfinite,
    "signbit(a)": np.signbit,
}


def specials(dtype: np.dtype) -> Array:
    """NaNs, infinities, zeros, subnormals and ordinary numbers, by their bits."""
    bits = {4: np.uint32, 2: np.uint16}[dtype.itemsize]
    infinity = np.array(np.inf, dtype).view(bits)
    positive = np.array(
        [infinity + 1, infinity | infinity >> 2, infinity, infinity - 1, 0, 1, 9], bits
    )
    sign = bits(1 << (8 * dtype.itemsize - 1))
    ordinary = np.array([1, 2.5], dtype).view(bits)
    positive = np.concatenate([positive, ordinary, np.array([infinity // 2], bits)])
    return np.concatenate([positive, positive | sign]).view(dtype)


@pytest.mark.parametrize("fast_math", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_relational(dtype: np.dtype, fast_math: bool) -> None:
    flat = specials(dtype)
    wide = flat.astype(np.float32)
    tiny = 2.0**-14 if dtype == np.float16 else 2.0**-126
    normal = np.isfinite(wide) & (np.abs(wide) >= tiny)
    cases, wants = [], []
    for width in (1, 2, 3, 4):
        a = np.resize(flat, (24,) if width == 1 else (24, width))
        b = np.resize(np.roll(flat, 3), a.shape)
        wide_a = a.astype(np.float32)
        for text, reference in RELATIONAL.items():
            cases.append(Case(text, [a], np.bool_, width))
            wants.append(reference(wide_a))
        unordered = np.isnan(wide_a) | np.isnan(b.astype(np.float32))
        cases += [
            Case("isnormal(a)", [a], np.bool_, width),
            Case("isordered(a, b)", [a, b], np.bool_, width),
            Case("isunordered(a, b)", [a, b], np.bool_, width),
        ]
        wants += [np.resize(normal, a.shape), ~unordered, unordered]
    for case, got, want in zip(cases, evaluate_all(cases, fast_math), wants, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{case.expression} width {case.width}")


def test_all_any() -> None:
    cases, wants = [], []
    for width in (2, 3, 4):
        a = (np.arange(2**width)[:, None] >> np.arange(width) & 1).astype(bool)
        cases += [Case("all(a)", [a], np.bool_), Case("any(a)", [a], np.bool_)]
        wants += [a.all(axis=1), a.any(axis=1)]
    for got, want in zip(evaluate_all(cases), wants, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_select(dtype: np.dtype) -> None:
    cases, wants = [], []
    for width in (1, 2, 3, 4):
        shape = (10,) if width == 1 else (10, width)
        a = (np.arange(10 * width).reshape(shape) % 2).astype(dtype)
        b = (np.arange(10 * width).reshape(shape) % 3 == 0).astype(dtype)
        c = (np.arange(10 * width).reshape(shape) % 5 < 2).astype(bool)
        cases.append(Case("select(a, b, c)", [a, b, c], dtype, width))
        wants.append(np.where(c, b, a))
        cases.append(Case("select(a, b, i % 2 == 1)", [a, b], dtype, width))
        odd = (np.arange(10) % 2 == 1).reshape((10,) if width == 1 else (10, 1))
        wants.append(np.where(odd, b, a))
    for got, want in zip(evaluate_all(cases), wants, strict=True):
        np.testing.assert_array_equal(got.astype(float), want.astype(float))


@pytest.mark.parametrize(
    "call", ["dot(v, u)", "cross(v, v)", "all(v)", "isnan(1)", "select(v, u, true)", "length(i)"]
)
def test_refused(call: str) -> None:
    with pytest.raises(Refused):
        check(f"void f(float4 v, float3 u, int4 i) {{ {call}; }}")
