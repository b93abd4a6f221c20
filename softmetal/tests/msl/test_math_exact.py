"""metal_math where the answer is exact: special values, parts of numbers, rounding, vectors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from harness import Case, check, evaluate_all
from math_table import FUNCTIONS
from seeds import generator

INF, NAN = np.inf, np.nan
SMALL = [0.0, 1e-45, 3e-39, 1.1754944e-38, 0.1, 0.49999997, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.0]
LARGE = [1e3, 8388607.5, 8388609.0, 1.6777216e7, 1e30, 3.4028235e38, INF]
VALUES = np.array([*SMALL, *LARGE, *(-v for v in SMALL + LARGE), NAN], np.float32)


def same(got: Any, want: Any) -> Any:
    """Equal in value and in the sign of zero; NaN equals NaN."""
    equal = (got == want) & (np.signbit(got) == np.signbit(want))
    return equal | (np.isnan(got) & np.isnan(want))


def assert_same(got: Any, want: Any, *arguments: Any) -> None:
    want = np.asarray(want).astype(got.dtype)
    wrong = np.flatnonzero(~same(got, want))
    assert wrong.size == 0, [([a[i] for a in arguments], got[i], want[i]) for i in wrong[:5]]


def pairs(values: Any) -> list[Any]:
    grid = np.meshgrid(values, values)
    return [g.ravel() for g in grid]


# C's Annex F: function, arguments, value.
SPECIAL: list[tuple[str, Sequence[float], float]] = [
    ("exp", [-INF], 0), ("exp", [INF], INF), ("exp", [0], 1), ("exp", [-0.0], 1), ("exp", [NAN], NAN),
    ("exp2", [-INF], 0), ("exp2", [INF], INF), ("exp2", [-149], 1e-45), ("exp2", [127], 2.0**127),
    ("exp10", [-INF], 0), ("exp10", [INF], INF), ("exp10", [2], 100),
    ("log", [0], -INF), ("log", [-0.0], -INF), ("log", [1], 0), ("log", [INF], INF), ("log", [-1], NAN),
    ("log2", [0], -INF), ("log2", [2.0**-149], -149), ("log2", [8], 3), ("log2", [-INF], NAN),
    ("log10", [0], -INF), ("log10", [INF], INF), ("log10", [-2], NAN), ("log10", [NAN], NAN),
    ("sin", [-0.0], -0.0), ("sin", [INF], NAN), ("cos", [INF], NAN), ("cos", [0], 1),
    ("tan", [-0.0], -0.0), ("tan", [-INF], NAN), ("sinpi", [-0.0], -0.0), ("sinpi", [3], 0.0),
    ("sinpi", [-2], -0.0), ("sinpi", [INF], NAN), ("cospi", [0.5], 0.0), ("cospi", [-1.5], 0.0),
    ("cospi", [1e9], 1), ("cospi", [3], -1), ("tanpi", [-0.0], -0.0), ("tanpi", [0.5], INF),
    ("tanpi", [-0.5], -INF), ("tanpi", [0.25], 1), ("sinh", [-0.0], -0.0), ("sinh", [-INF], -INF),
    ("cosh", [-INF], INF), ("cosh", [0], 1), ("tanh", [INF], 1), ("tanh", [-INF], -1),
    ("tanh", [-0.0], -0.0), ("tanh", [1e30], 1), ("asin", [2], NAN), ("asin", [-0.0], -0.0),
    ("acos", [1], 0), ("acos", [-1.5], NAN), ("atan", [-0.0], -0.0), ("asinh", [-INF], -INF),
    ("asinh", [-0.0], -0.0), ("acosh", [1], 0), ("acosh", [0.5], NAN), ("acosh", [INF], INF),
    ("atanh", [1], INF), ("atanh", [-1], -INF), ("atanh", [1.5], NAN), ("atanh", [-0.0], -0.0),
    ("rsqrt", [0], INF), ("rsqrt", [-0.0], -INF), ("rsqrt", [INF], 0), ("rsqrt", [-1], NAN),
    ("sqrt", [-0.0], -0.0), ("sqrt", [-1], NAN), ("sqrt", [1e-45], 3.743392130e-23),
    ("pow", [0, 0], 1), ("pow", [NAN, 0], 1), ("pow", [1, NAN], 1), ("pow", [-1, INF], 1),
    ("pow", [-1, -INF], 1), ("pow", [-2, 3], -8), ("pow", [-2, 2], 4), ("pow", [-2, 0.5], NAN),
    ("pow", [0, -1], INF), ("pow", [-0.0, -1], -INF), ("pow", [-0.0, 3], -0.0),
    ("pow", [-0.0, 2], 0.0), ("pow", [0.5, INF], 0), ("pow", [0.5, -INF], INF),
    ("pow", [2, INF], INF), ("pow", [-INF, 3], -INF), ("pow", [-INF, 2], INF),
    ("pow", [-INF, -3], -0.0), ("pow", [INF, -1], 0), ("pow", [2, -149], 1e-45),
    ("pow", [-1, 16777216], 1), ("pow", [-1, 16777215], -1), ("pow", [NAN, 1], NAN),
    ("powr", [0, 0], NAN), ("powr", [-1, 2], NAN), ("powr", [2, 10], 1024), ("powr", [0, 2], 0),
    ("atan2", [0, -1], np.pi), ("atan2", [-0.0, -1], -np.pi), ("atan2", [0, 1], 0),
    ("atan2", [-0.0, 0.0], -0.0), ("atan2", [0, -0.0], np.pi), ("atan2", [INF, INF], np.pi / 4),
    ("atan2", [INF, -INF], 3 * np.pi / 4), ("atan2", [1, INF], 0), ("atan2", [-1, -INF], -np.pi),
    ("atan2", [1, 0], np.pi / 2), ("atan2", [NAN, 1], NAN),
    ("fmin", [NAN, 1], 1), ("fmin", [1, NAN], 1), ("fmax", [NAN, 1], 1), ("fmax", [-INF, NAN], -INF),
    ("max", [NAN, -3], -3), ("min", [2, NAN], 2), ("fmax3", [NAN, 1, 2], 2), ("fmin3", [3, NAN, 2], 2),
    ("median3", [3, 1, 2], 2), ("fmedian3", [5, 5, -INF], 5), ("max3", [1, 2, 3], 3), ("min3", [1, 2, 3], 1),
    ("fdim", [INF, INF], 0), ("fdim", [3, 1], 2), ("fdim", [1, 3], 0), ("fdim", [NAN, 1], NAN),
    ("fract", [1.25], 0.25), ("fract", [-0.25], 0.75), ("fract", [-1e-30], 0.99999994),
    ("fract", [INF], 0), ("fract", [NAN], NAN),
]  # fmt: skip
# Flushing denormals and the sign of zero are free in fast maths; these are not.
FAST_TOO = {"exp", "exp2", "exp10", "log", "log2", "log10", "tanh", "atan2", "fmin", "fmax", "asin"}


@pytest.mark.parametrize(
    ("space", "fast_math"), [("precise", False), ("precise", True), ("fast", True)]
)
def test_special_values(space: str, fast_math: bool) -> None:
    rows = [row for row in SPECIAL if space == "precise" or row[0] in FAST_TOO]
    if space == "fast":
        rows = [row for row in rows if not any(0 < abs(v) < 1e-37 for v in (row[1][0], row[2]))]
    cases = [
        Case(
            f"{space}::{name}({', '.join('abc'[: len(a)])})", [np.array([v], np.float32) for v in a]
        )
        for name, a, _ in rows
    ]
    wrong = []
    for (name, arguments, want), got in zip(rows, evaluate_all(cases, fast_math), strict=True):
        close = np.isfinite(want) and want != 0 and np.isclose(got[0], want, 1e-6, 0)
        zero = space == "fast" and got[0] == 0 == want
        if not (same(got[0], np.float32(want)) or close or zero):
            wrong.append((name, arguments, got[0], want))
    assert not wrong


def c_nextafter(x: Any, y: Any) -> Any:
    """numpy's half version keeps the sign of x where the two are equal."""
    return np.where(x == y, y, np.nextafter(x, y))


EXACT_BINARY: list[tuple[str, Callable[..., Any]]] = [
    ("fmod", np.fmod),
    ("nextafter", c_nextafter),
    ("copysign", np.copysign),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fast_math", [False, True])
def test_exact_functions_of_two(dtype: Any, fast_math: bool) -> None:
    rng = generator(977)
    unsigned = np.uint32 if dtype == np.float32 else np.uint16
    top = 2 ** (8 * np.dtype(dtype).itemsize)
    with np.errstate(all="ignore"):
        edge = pairs(VALUES.astype(dtype))
    random = [rng.integers(0, top, 200_000, dtype=unsigned).view(dtype) for _ in range(2)]
    columns = [np.concatenate(c) for c in zip(edge, random, strict=True)]
    cases = [Case(f"precise::{name}(a, b)", columns, dtype) for name, _ in EXACT_BINARY]
    for (_, oracle), got in zip(EXACT_BINARY, evaluate_all(cases, fast_math), strict=True):
        with np.errstate(all="ignore"):
            want = oracle(*columns)
        assert_same(got, want, *columns)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rounding_and_parts(dtype: Any) -> None:
    """Every half; for floats the edge values and random bit patterns."""
    rng = generator(977)
    if dtype == np.float16:
        x = np.arange(65536, dtype=np.uint16).view(np.float16)
    else:
        random = rng.integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32)
        x = np.concatenate([VALUES, random])
    name = "half" if dtype == np.float16 else "float"
    cases = [
        Case(f"{name} w; result = precise::modf(a, w);", [x], dtype),
        Case(f"{name} w; precise::modf(a, w); result = w;", [x], dtype),
        Case("int e; result = precise::frexp(a, e);", [x], dtype),
        Case("int e; precise::frexp(a, e); result = e;", [x], np.int32),
        Case("precise::ilogb(a)", [x], np.int32),
    ]
    fraction, whole, mantissa, exponent, binade = evaluate_all(cases, True)
    with np.errstate(all="ignore"):
        want_fraction, want_whole = np.modf(x)
        want_mantissa, want_exponent = np.frexp(x)
    assert_same(fraction, want_fraction, x)
    assert_same(whole, want_whole, x)
    assert_same(mantissa, want_mantissa, x)
    finite = np.isfinite(x)
    assert np.array_equal(exponent[finite], want_exponent[finite])
    usual = finite & (x != 0)
    assert np.array_equal(binade[usual], want_exponent[usual] - 1)
    assert set(binade[np.isinf(x)]) == {2**31 - 1}
    assert set(binade[np.isnan(x) | (x == 0)]) == {-(2**31)}


def test_ldexp_rounds_once() -> None:
    rng = generator(977)
    x = np.concatenate([VALUES, rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)])
    k = rng.integers(-300, 300, len(x)).astype(np.int32)
    k[:4] = [2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]
    (got,) = evaluate_all([Case("precise::ldexp(a, b)", [x, k])], True)
    with np.errstate(all="ignore"):
        want = np.ldexp(x.astype(np.float64), np.clip(k, -1000, 1000)).astype(np.float32)
    assert_same(got, want, x, k)


def test_fma_rounds_once() -> None:
    rng = generator(977)
    half = [rng.integers(0, 2**16, 300_000, dtype=np.uint16).view(np.float16) for _ in range(3)]
    near = [rng.uniform(-2, 2, 300_000).astype(np.float16) for _ in range(3)]
    columns = [np.concatenate(c) for c in zip(half, near, strict=True)]
    # 1 + 2^-10 times itself plus a tie breaker: rounding through float goes wrong here.
    columns[0][:2], columns[1][:2] = np.float16(1.0009766), np.float16(1.0009766)
    columns[2][:2] = np.float16(6e-8), np.float16(-6e-8)
    wide = [c.astype(np.float64) for c in columns]
    (got,) = evaluate_all([Case("fma(a, b, c)", columns, np.float16)], True)
    with np.errstate(all="ignore"):
        want = (wide[0] * wide[1] + wide[2]).astype(np.float16)
    assert_same(got, want, *columns)
    tiny = [np.array([v], np.float32) for v in (1 + 2**-12, 1 + 2**-12, -(1 + 2**-11))]
    (single,) = evaluate_all([Case("precise::fma(a, b, c)", tiny)], True)
    assert single[0] == np.float32(2.0**-24)


def test_fract_and_rounding_of_half() -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    (got,) = evaluate_all([Case("fract(a)", [x], np.float16)], True)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        want = np.minimum((wide - np.floor(wide)).astype(np.float16), np.float16(0.99951172))
    want = np.where(np.isinf(x), np.float16(0), want)
    assert np.all((got == want) | (np.isnan(got) & np.isnan(want)))


@pytest.mark.parametrize(
    ("dtype", "width"), [*itertools.product([np.float32, np.float16], [2, 3, 4])]
)
def test_vectors_are_elementwise(dtype: Any, width: int) -> None:
    rng = generator(977)
    n = 37
    x, y, z = (rng.uniform(-3, 3, (n, width)).astype(dtype) for _ in range(3))
    k = rng.integers(-5, 5, (n, width)).astype(np.int32)
    name = f"{'half' if dtype == np.float16 else 'float'}"
    calls = [f"{f.name}({', '.join('abc'[: f.arity])})" for f in FUNCTIONS]
    calls += ["fma(a, b, c)", "fmod(a, b)", "nextafter(a, b)", "fract(a)", "median3(a, b, c)"]
    bodies = ["T s; result = sincos(a, s) + s;", "T w; result = modf(a, w) + w;"]
    bodies += ["I e; result = frexp(a, e); result += T(e);", "result = ldexp(a, d) + T(ilogb(b));"]
    scalar_names = {"T": name, "I": "int"}
    vector_names = {"T": f"{name}{width}", "I": f"int{width}"}
    columns = [x, y, z, k]
    flat = [c.reshape(-1) for c in columns]

    def spelled(names: dict[str, str]) -> list[str]:
        return [body.replace("T", names["T"]).replace("I ", names["I"] + " ") for body in bodies]

    vectors = evaluate_all(
        [Case(text, columns, dtype, width) for text in calls + spelled(vector_names)], False
    )
    scalars = evaluate_all(
        [Case(text, flat, dtype) for text in calls + spelled(scalar_names)], False
    )
    for text, v, s in zip(calls + bodies, vectors, scalars, strict=True):
        assert np.all(same(v.reshape(-1), s)), text


def test_a_program_may_overload_for_bfloat() -> None:
    check(
        """
namespace metal {
METAL_FUNC bfloat exp(bfloat x) {
  return static_cast<bfloat>(__metal_exp(static_cast<float>(x), __METAL_MAYBE_FAST_MATH__));
}
namespace fast { METAL_FUNC bfloat exp(bfloat x) { return x; } }
METAL_FUNC bfloat max(bfloat x, bfloat y) {
  return static_cast<bfloat>(__metal_fmax(float(x), float(y), __METAL_FAST_MATH__));
}
}
template <class A, class B> struct is_same_type { static constant constexpr bool value = false; };
template <class A> struct is_same_type<A, A> { static constant constexpr bool value = true; };
void use(bfloat x, bfloat4 v, float4 w, packed_float3 p, half h) {
  static_assert(is_same_type<decltype(metal::exp(x)), bfloat>::value, "");
  static_assert(is_same_type<decltype(metal::fast::exp(x)), bfloat>::value, "");
  static_assert(is_same_type<decltype(metal::max(x, x)), bfloat>::value, "");
  static_assert(is_same_type<decltype(metal::sin(x)), float>::value, "");
  static_assert(is_same_type<decltype(metal::log(v)), float4>::value, "");
  static_assert(is_same_type<decltype(metal::pow(w, 2.0f)), float4>::value, "");
  static_assert(is_same_type<decltype(metal::max(0.0f, w)), float4>::value, "");
  static_assert(is_same_type<decltype(metal::pow(x, 2)), float>::value, "");
  static_assert(is_same_type<decltype(metal::sqrt(p)), float3>::value, "");
  static_assert(is_same_type<decltype(metal::fmin(h, h)), half>::value, "");
}
"""
    )


def test_constants() -> None:
    names = ["M_PI_F", "M_E_F", "M_LN2_F", "M_SQRT1_2_F", "M_2_SQRTPI_F", "INFINITY", "MAXFLOAT"]
    want = [np.pi, np.e, np.log(2), np.sqrt(0.5), 2 / np.sqrt(np.pi), np.inf, 3.4028235e38]
    got = [value[0] for value in evaluate_all([Case(name) for name in names], False)]
    assert np.array_equal(np.array(got, np.float32), np.array(want, np.float32))
    halves = evaluate_all([Case("M_PI_H", out=np.float16), Case("MAXHALF", out=np.float16)], True)
    assert [value[0] for value in halves] == [np.float16(np.pi), np.float16(65504)]
