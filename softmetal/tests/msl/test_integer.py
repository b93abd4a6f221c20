"""metal_integer: every function on every integer type and width, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from harness import TYPES, Array, Case, Refused, check, evaluate_all
from seeds import generator

INTEGERS = [d for d in TYPES if d.kind in "iu"]


@dataclass(frozen=True)
class Kind:
    """An integer type, for the reference functions."""

    bits: int
    signed: bool

    @property
    def least(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def most(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    def wrap(self, x: int) -> int:
        x &= (1 << self.bits) - 1
        return x - (1 << self.bits) if self.signed and x >> (self.bits - 1) else x

    def saturate(self, x: int) -> int:
        return min(max(x, self.least), self.most)

    def unsigned(self, x: int) -> int:
        return x & ((1 << self.bits) - 1)


def rotate(k: Kind, x: int, n: int) -> int:
    n, u = n % k.bits, k.unsigned(x)
    return k.wrap(u << n | u >> (k.bits - n))


def extract(k: Kind, x: int, offset: int, bits: int) -> int:
    field = (k.unsigned(x) >> offset) & ((1 << bits) - 1)
    return field - (1 << bits) if k.signed and bits and field >> (bits - 1) else field


def insert(k: Kind, base: int, x: int, offset: int, bits: int) -> int:
    field = ((1 << bits) - 1) << offset
    return k.wrap((k.unsigned(base) & ~field) | (k.unsigned(x) << offset & field))


def low24(k: Kind, x: int) -> int:
    return Kind(24, k.signed).wrap(x)


Reference = Callable[..., int]
FUNCTIONS: dict[str, Reference] = {
    "abs(a)": lambda k, a: k.wrap(abs(a)),
    "clz(a)": lambda k, a: k.bits - k.unsigned(a).bit_length(),
    "ctz(a)": lambda k, a: (k.unsigned(a) & -k.unsigned(a)).bit_length() - 1 if a else k.bits,
    "popcount(a)": lambda k, a: k.unsigned(a).bit_count(),
    "reverse_bits(a)": lambda k, a: k.wrap(int(f"{k.unsigned(a):0{k.bits}b}"[::-1], 2)),
    "extract_bits(a, 3u, 5u)": lambda k, a: extract(k, a, 3, 5),
    "extract_bits(a, 2u, 0u)": lambda k, a: extract(k, a, 2, 0),
    "extract_bits(a, 0u, uint(sizeof(b.x) * 8))": lambda k, a: a,
    "addsat(a, b)": lambda k, a, b: k.saturate(a + b),
    "subsat(a, b)": lambda k, a, b: k.saturate(a - b),
    "max(a, b)": lambda k, a, b: max(a, b),
    "min(a, b)": lambda k, a, b: min(a, b),
    "hadd(a, b)": lambda k, a, b: (a + b) >> 1,
    "rhadd(a, b)": lambda k, a, b: (a + b + 1) >> 1,
    "mulhi(a, b)": lambda k, a, b: k.wrap((a * b) >> k.bits),
    "rotate(a, b)": rotate,
    "insert_bits(a, b, 2u, 4u)": lambda k, a, b: insert(k, a, b, 2, 4),
    "max3(a, b, c)": lambda k, *v: max(v),
    "min3(a, b, c)": lambda k, *v: min(v),
    "median3(a, b, c)": lambda k, *v: sorted(v)[1],
    "clamp(a, min(b, c), max(b, c))": lambda k, a, b, c: min(max(a, min(b, c)), max(b, c)),
    "madhi(a, b, c)": lambda k, a, b, c: k.wrap(((a * b) >> k.bits) + c),
    "madsat(a, b, c)": lambda k, a, b, c: k.saturate(a * b + c),
}
ONLY_32: dict[str, Reference] = {
    "mul24(a, b)": lambda k, a, b: k.wrap(low24(k, a) * low24(k, b)),
    "mad24(a, b, c)": lambda k, a, b, c: k.wrap(low24(k, a) * low24(k, b) + c),
}


def operands(dtype: np.dtype, width: int) -> list[Array]:
    """Extremes against each other first, then values of every magnitude."""
    info = np.iinfo(dtype)
    rng = generator(width)
    edges = [info.min, info.max, 0, 1, info.max - 1, info.min + 1]
    random = rng.integers(info.min, info.max, 300, dtype, endpoint=True)
    random >>= rng.integers(0, info.bits, 300).astype(dtype)
    columns = np.array(list(product(edges, edges, edges)), dtype).T
    values = [np.concatenate([c, rng.permutation(random)]) for c in columns]
    return [v[: len(v) // width * width].reshape((-1, width) if width > 1 else -1) for v in values]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_function(dtype: np.dtype) -> None:
    kind = Kind(dtype.itemsize * 8, dtype.kind == "i")
    table = FUNCTIONS | (ONLY_32 if kind.bits == 32 else {})
    cases, wants = [], []
    for width, (text, reference) in product((1, 2, 3, 4), table.items()):
        inputs = operands(dtype, width)
        count = reference.__code__.co_argcount - 1 or 3
        columns = [v.reshape(-1).tolist() for v in inputs[:count]]
        want = [reference(kind, *row) for row in zip(*columns, strict=True)]
        expression = text if width > 1 else text.replace("b.x", "b")
        cases.append(Case(expression, inputs, dtype, width))
        wants.append(np.array(want, dtype).reshape(inputs[0].shape))
    for case, got, want in zip(cases, evaluate_all(cases), wants, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=f"{case.expression} width {case.width}")


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_absdiff_is_unsigned(dtype: np.dtype) -> None:
    unsigned = np.dtype(f"u{dtype.itemsize}")
    for width in (1, 3):
        a, b, _ = operands(dtype, width)
        want = [abs(p - q) for p, q in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)]
        got = evaluate_all([Case("absdiff(a, b)", [a, b], unsigned, width)])[0]
        np.testing.assert_array_equal(got, np.array(want, unsigned).reshape(a.shape))


def test_scalars_splat_and_types_stay() -> None:
    check("""
    void f(int4 v, uchar3 u, ushort2 s, int i, uint n) {
      static_assert(is_same_v<decltype(max(v, 0)), int4>, "");
      static_assert(is_same_v<decltype(clamp(u, 1, 200)), uchar3>, "");
      static_assert(is_same_v<decltype(popcount(s)), ushort2>, "");
      static_assert(is_same_v<decltype(min(i, 3)), int>, "");
      static_assert(is_same_v<decltype(absdiff(short(1), short(2))), ushort>, "");
    }""")


@pytest.mark.parametrize("call", ["min(i, n)", "max(v, u)", "clz(1.0f)", "popcount(float2(1))"])
def test_refused(call: str) -> None:
    with pytest.raises(Refused):
        check(f"void f(int4 v, uint4 u, int i, uint n) {{ {call}; }}")


WIDE = [d for d in INTEGERS if d.itemsize >= 4]  # narrower scalars are promoted to int


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_scalars_are_shifted_modulo_their_width(dtype: np.dtype) -> None:
    bits = dtype.itemsize * 8
    random = generator(3)
    a = random.integers(0, 1 << 31, 300).astype(dtype)
    b = random.integers(0, 200, 300).astype(dtype)
    count = b % bits
    beyond = f"b % {bits} + {bits}"  # the compiler can see that the count is too large
    cases = [
        Case(f"a {op} ({amount})", [a, b], dtype) for op in ("<<", ">>") for amount in ("b", beyond)
    ]
    wants = [a << count, a << count, a >> count, a >> count]
    for got, want in zip(evaluate_all(cases), wants, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_impossible_quotients_are_numbers(dtype: np.dtype, width: int) -> None:
    """Where a quotient exists it is right, and the others do not stop the kernel."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.resize(np.array([least, most, 7, 0, 1, 5], dtype), 35 * width)
    b = np.resize(np.array([0, -1 if least else most, 3, 1, 0], dtype), 35 * width)
    shape = (35,) if width == 1 else (35, width)
    inputs = [a.reshape(shape), b.reshape(shape)]
    cases = [Case(f"a {op} b", inputs, dtype, width) for op in "/%"]
    quotients, remainders = (found.reshape(-1).tolist() for found in evaluate_all(cases))
    for x, y, quotient, remainder in zip(
        a.tolist(), b.tolist(), quotients, remainders, strict=True
    ):
        if y:
            want = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            assert quotient == (want if want <= most else least)
            assert remainder == x - want * y


NARROW = [d for d in INTEGERS if d.itemsize < 4]  # computed as int, which cannot overflow here


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_what_uses_a_result_sees_it_wrapped(dtype: np.dtype) -> None:
    """A narrow result may be in a wider register."""
    kind, name = Kind(dtype.itemsize * 8, dtype.kind == "i"), TYPES[dtype]
    results = {
        "abs(a)": abs,
        "-a": lambda x: -x,
        "a + a": lambda x: x + x,
        "~a": lambda x: ~x,
        "a - 1": lambda x: x - 1,
    }
    values = [kind.least, kind.least + 1, 0, 1, 3, kind.most // 2 + 1, kind.most]
    a, cases, wants = np.array(values, dtype), [], []
    for text, result in results.items():
        wrapped = [kind.wrap(result(x)) for x in values]
        cases.append(Case(f"{name}({text}) > {name}(a >> 1)", [a], dtype))
        wants.append([int(w > x >> 1) for w, x in zip(wrapped, values, strict=True)])
        cases.append(Case(f"int({name}({text})) < 7", [a], dtype))
        wants.append([int(w < 7) for w in wrapped])
    for case, got, want in zip(cases, evaluate_all(cases), wants, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=case.expression)
