"""Vector types: layout, construction, conversions, operators, packed forms, as_type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from harness import (
    TYPES,
    Array,
    Case,
    Refused,
    bfloat16,
    check,
    compare,
    evaluate_all,
    msl_type,
    sample,
    shape_of,
)
from seeds import generator

INTEGERS = [d for d in TYPES if d.kind in "iu"]
FLOATS = [np.dtype(np.float32), np.dtype(np.float16), bfloat16]
NUMBERS = INTEGERS + FLOATS
WIDTHS = (1, 2, 3, 4)


# ---- layout --------------------------------------------------------------------------------------


def layout() -> Iterator[tuple[str, int, int]]:
    for dtype, name in TYPES.items():
        size = dtype.itemsize
        yield name, size, size
        for n in (2, 3, 4):
            yield f"{name}{n}", size * (2 if n == 2 else 4), size * (2 if n == 2 else 4)
            yield f"packed_{name}{n}", size * n, size
    for name, size in (("float", 4), ("half", 2), ("bfloat", 2)):
        for columns, r in product((2, 3, 4), (2, 3, 4)):
            column = size * (2 if r == 2 else 4)
            yield f"{name}{columns}x{r}", columns * column, column
    for name, size in (("size_t", 8), ("ptrdiff_t", 8), ("int8_t", 1), ("uint64_t", 8)):
        yield name, size, size


def test_layout() -> None:
    """Each type by its global name and, where it is not a keyword, in metal::."""
    keywords = ("bool", "char", "short", "int", "long", "float")
    check(
        "\n".join(
            f"static_assert(sizeof({t}) == {size} && alignof({t}) == {alignment}"
            f' && is_trivially_copyable_v<{t}> && is_trivial_v<{t}>, "{t}");'
            for name, size, alignment in layout()
            for t in ((name,) if name in keywords else (name, f"metal::{name}"))
        )
    )


def test_fields_are_lvalues() -> None:
    body = """
    float3 v = a; thread float3& w = v; w.x += 1; v.y *= 2; v.b++; v[0] -= 3;
    int k = int(i) % 3; v[k] += 100; result = v;"""
    a = sample(np.dtype(np.float32), (9, 3))
    want = a * [1, 2, 1] + [-2, 0, 1]
    want[np.arange(9), np.arange(9) % 3] += 100
    compare([Case(body, [a], np.float32, 3)], [want])


# ---- construction --------------------------------------------------------------------------------


def partitions(total: int) -> Iterator[tuple[int, ...]]:
    """The ways to build a vector from at least two parts."""
    for count in range(2, total + 1):
        yield from (p for p in product(range(1, total), repeat=count) if sum(p) == total)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_combination_of_parts(dtype: np.dtype) -> None:
    source = np.tile(np.array([3, 5, 0, 7]), (2, 1)).astype(dtype)
    cases, wants = [], []
    for n in (2, 3, 4):
        for parts in partitions(n):
            starts = np.cumsum((0, *parts[:-1]))
            pieces = [f"a.{'xyzw'[s : s + p]}" for s, p in zip(starts, parts, strict=True)]
            for call in ("{}({})", "packed_{}({})"):
                cases.append(
                    Case(call.format(msl_type(dtype, n), ", ".join(pieces)), [source], dtype, n)
                )
                wants.append(source[:, :n])
        for splat in (f"{msl_type(dtype, n)}(a.y)", "a.y"):
            cases.append(Case(splat, [source], dtype, n))
            wants.append(np.repeat(source[:, 1:2], n, axis=1))
        cases.append(Case(f"{msl_type(dtype, n)}()", [source], dtype, n))
        wants.append(np.zeros((2, n), dtype))
    compare(cases, wants)


def test_constants_are_initialised_at_compile_time() -> None:
    check("""
    constant float4 table[] = {float4(1, 2, 3, 4), float4(float2(5), 6, 7), {8, 9, 10, 11}, 12};
    constexpr constant float4 v = float4(1, 2, 3, 4) * 2 + 1;
    static_assert(v.y == 5 && v[2] == 7 && v.wz.x == 9 && all(v > 2) && !any(v == 4), "");
    constexpr constant uint3 grid = uint3(ushort3(1, 2, 3)) << 2;
    static_assert(grid.z == 12 && (-int2(3)).x == -3 && (~uchar2(1)).y == 254, "");
    constexpr constant float2x2 m = float2x2(1, 2, 3, 4);
    static_assert(m[1][0] == 3 && determinant(m) == -2 && (m * float2(1, 1)).y == 6, "");
    union U { float4 v; uint4 bits; }; struct S { half3 a; packed_half3 b; bool4 c; };
    static_assert(is_trivial_v<U> && is_trivial_v<S> && sizeof(S) == 20 + 4, "");""")


# ---- conversions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", TYPES, ids=str)
def test_conversions(source: np.dtype) -> None:
    cases, wants = [], []
    for target, n in product(TYPES, WIDTHS):
        a = (np.arange(12) % 2 if source.kind == "b" else np.arange(12)).astype(source)
        if source.kind in "fV" and target.kind in "iufV":
            a = (np.arange(12) + 0.75).astype(source)  # truncates
        a = np.resize(a, shape_of(n, 6))
        name = msl_type(target, n)
        want = (
            a.astype(np.float32).astype(target)
            if bfloat16 in (source, target)
            else a.astype(target)
        )
        casts = [f"{name}(a)", f"static_cast<{name}>(a)", f"({name})a"]
        if n == 1 and {source, target} == {np.dtype(np.float16), bfloat16}:
            casts.pop()  # clang has no cast between the two; the other forms are rewritten
        for expression in casts:
            cases.append(Case(expression, [a], target, n))
            wants.append(want)
        if n > 1:
            packed = f"packed_{msl_type(source, n)} p = a; result = {name}(p);"
            cases.append(Case(packed, [a], target, n))
            wants.append(want)
    compare(cases, wants)


def test_as_type() -> None:
    cases, wants = [], []
    bits = generator(4).integers(0, 2**31, (9, 4), np.uint32)
    for source, width, target, out in (
        (np.uint32, 1, np.float32, 1),
        (np.uint32, 1, np.uint8, 4),
        (np.uint32, 1, np.float16, 2),
        (np.uint32, 4, np.int32, 4),
        (np.uint32, 2, np.uint64, 1),
        (np.uint16, 2, np.uint32, 1),
        (np.uint8, 4, np.int32, 1),
        (np.uint16, 1, bfloat16, 1),
        (np.uint64, 2, np.uint16, 4),
    ):
        if np.dtype(source).itemsize * width != np.dtype(target).itemsize * out:
            continue
        a = bits.reshape(-1).view(source)[: 8 * width].reshape(shape_of(width, 8))
        cases.append(Case(f"as_type<{msl_type(target, out)}>(a)", [a], target, out))
        wants.append(a.reshape(-1).view(target).reshape(shape_of(out, 8)))
    got = evaluate_all(cases)
    for g, want in zip(got, wants, strict=True):
        assert g.tobytes() == want.tobytes()
    with pytest.raises(Refused, match="same size"):
        check("float f(half h) { return as_type<float>(h); }")


# ---- operators -----------------------------------------------------------------------------------

Binary = Callable[[Array, Array], Array]
ARITHMETIC: dict[str, Binary] = {"+": np.add, "-": np.subtract, "*": np.multiply}
BITWISE: dict[str, Binary] = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}
COMPARISONS: dict[str, Binary] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def divided(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return (a.astype(np.float64) / b.astype(np.float64)).astype(a.dtype)
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)) if a.dtype.kind == "i" else a // b


def remainder(a: Array, b: Array) -> Array:
    return (a - divided(a, b) * b).astype(a.dtype)


def shifted(op: Binary) -> Binary:
    return lambda a, b: op(a, b & np.array(a.dtype.itemsize * 8 - 1, b.dtype))


def operators(dtype: np.dtype) -> dict[str, Binary]:
    table: dict[str, Binary] = {**ARITHMETIC, "/": divided}
    if dtype.kind in "iu":
        table |= {**BITWISE, "%": remainder}
        table |= {"<<": shifted(np.left_shift), ">>": shifted(np.right_shift)}
    return table


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_arithmetic(dtype: np.dtype) -> None:
    """Elements keep their type; a scalar on either side splats; op= agrees with op."""
    cases, wants = [], []
    for n in (2, 3, 4):
        a, b = sample(dtype, (13, n), 1), sample(dtype, (13, n), 2)
        b[b == 0] = 3
        s = np.array(b[:, 0])
        column = np.repeat(s[:, None], n, axis=1)
        for op, function in operators(dtype).items():
            for expression, inputs, want in (
                (f"a {op} b", [a, b], function(a, b)),
                (f"a {op} b", [a, s], function(a, column)),
                (f"b {op} a", [b, s], function(column, b)),
                (f"a {op}= b; result = a;", [a, b], function(a, b)),
                (
                    f"packed_{msl_type(dtype, n)} p = a; p {op}= b; result = p;",
                    [a, b],
                    function(a, b),
                ),
            ):
                cases.append(Case(expression, inputs, dtype, n))
                wants.append(want)
        cases += [
            Case("-a", [a], dtype, n),
            Case("++a; a++; result = a--;", [a], dtype, n),
            Case("result = a; --result;", [a], dtype, n),
        ]
        wants += [-a, a + np.array(2, dtype), a - np.array(1, dtype)]
    compare(cases, wants, rtol={bfloat16: 2**-7, np.dtype(np.float16): 2**-10}.get(dtype, 1e-6))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_comparisons(dtype: np.dtype) -> None:
    cases, wants = [], []
    for n in (2, 3, 4):
        a, b = sample(dtype, (40, n), 1), sample(dtype, (40, n), 2)
        a[::3] = b[::3]
        a[1::4] = 0
        for op, function in COMPARISONS.items():
            cases.append(Case(f"a {op} b", [a, b], np.bool_, n))
            wants.append(function(a, b))
        cases += [
            Case("!a", [a], np.bool_, n),
            Case("a && b", [a, b], np.bool_, n),
            Case("(a == b) || (a > b)", [a, b], np.bool_, n),
            Case("not((a == b) ^ (a >= b))", [a, b], np.bool_, n),
        ]
        zero = np.array(0, dtype)
        wants += [a == zero, (a != zero) & (b != zero), a >= b, ~((a == b) ^ (a >= b))]
    compare(cases, wants)


def test_shift_counts_wrap() -> None:
    a = np.array([[1, -8], [3, 100]], np.int32)
    count = np.array([[33, 35], [64, -1]], np.int32)
    compare(
        [Case("a << b", [a, count], np.int32, 2), Case("a >> b", [a, count], np.int32, 2)],
        [a << (count & 31), a >> (count & 31)],
    )


def test_scalar_branches_of_a_conditional() -> None:
    a = sample(np.dtype(np.float32), (8, 3))
    want = np.where((np.arange(8) % 2 == 0)[:, None], a, 0)
    compare([Case("i % 2 == 0 ? a : 0.0f", [a], np.float32, 3)], [want])


# ---- packed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_packed_arrays_are_tight(dtype: np.dtype) -> None:
    cases, wants = [], []
    for n in (2, 3, 4):
        a = sample(dtype, (6 * n,), 3)
        packed = f"packed_{msl_type(dtype, n)}"
        body = (
            f"device const {packed}* p = (device const {packed}*)in_a; {packed} q = p[i % 6];"
            f" q.x = p[(i + 1) % 6][0]; q[1] = q.g; result = q;"
        )
        want = a.reshape(6, n).copy()
        want[:, 0] = np.roll(a.reshape(6, n)[:, 0], -1)
        cases.append(Case(body, [a], dtype, n))
        wants.append(np.resize(want, (6 * n, n)))
    compare(cases, wants)


def test_packed_operands() -> None:
    a, b = sample(np.dtype(np.float32), (5, 3), 1), sample(np.dtype(np.float32), (5, 3), 2)
    prefix = "packed_float3 p = a, q = b; result = "
    table = {
        "p + q": a + b,
        "p * 2.0f - b": a * 2 - b,
        "1 - p": 1 - a,
        "-p": -a,
        "max(p, q)": np.maximum(a, b),
        "clamp(p, -1.0f, 1.0f)": np.clip(a, -1, 1),
        "cross(p, q)": np.cross(a, b),
        "float3(p.zy, q.x)": np.stack([a[:, 2], a[:, 1], b[:, 0]], axis=1),
    }
    compare(
        [Case(f"{prefix}{e};", [a, b], np.float32, 3) for e in table], list(table.values()), 1e-6
    )
