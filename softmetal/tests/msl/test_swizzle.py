"""Swizzles: every one of them, where they may stand, and what MSL refuses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
import pytest
from harness import TYPES, Case, Refused, check, compare, sample


def swizzles(n: int) -> Iterator[tuple[int, ...]]:
    for length in (2, 3, 4):
        yield from product(range(n), repeat=length)


def named(index: tuple[int, ...], names: str) -> str:
    return "".join(names[i] for i in index)


@pytest.mark.parametrize("names", ["xyzw", "rgba"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_swizzle(n: int, names: str) -> None:
    """Read all of them and write all those with distinct components, in constant expressions."""
    start = ", ".join(str(10 + i) for i in range(n))
    lines = [f"constexpr constant int{n} v = int{n}({start});"]
    for index in swizzles(n):
        want = ", ".join(str(10 + i) for i in index)
        size = len(index)
        lines.append(f'static_assert(all(v.{named(index, names)} == int{size}({want})), "");')
    writable = [p for size in range(2, n + 1) for p in permutations(range(n), size)]
    for k, index in enumerate(writable):
        value = ", ".join(str(50 + j) for j in range(len(index)))
        after = [10 + i for i in range(n)]
        for j, i in enumerate(index):
            after[i] = 50 + j
        lines.append(
            f"constexpr int{n} put_{k}() {{ int{n} u = v; "
            f"u.{named(index, names)} = int{len(index)}({value}); return u; }}\n"
            f'static_assert(all(put_{k}() == int{n}({", ".join(map(str, after))})), "");'
        )
    check("\n".join(lines))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_swizzles_at_run_time(dtype: np.dtype) -> None:
    cases, wants = [], []
    for n, k in ((2, 5), (3, 17), (4, 41)):
        a, b = sample(dtype, (11, n), 1), sample(dtype, (11, 4), 2)
        for index in list(swizzles(n))[::k]:
            cases.append(Case(f"a.{named(index, 'rgba')}", [a], dtype, len(index)))
            wants.append(a[:, index])
        for index in list(permutations(range(n), 2))[::2]:
            cases.append(
                Case(f"result = a; result.{named(index, 'xyzw')} = b.wy;", [a, b], dtype, n)
            )
            want = a.copy()
            want[:, index] = b[:, [3, 1]]
            wants.append(want)
    compare(cases, wants)


def test_compound_assignment_to_a_swizzle() -> None:
    a = sample(np.dtype(np.int32), (7, 4))
    want = a.copy()
    want[:, [2, 1, 0]] += [1, 2, 3]
    want[:, [3, 0]] *= 2
    want[:, [0, 1]] = want[:, [1, 0]]
    body = "a.zyx += int3(1, 2, 3); a.wx *= 2; a.xy = a.yx; result = a;"
    compare([Case(body, [a], np.int32, 4)], [want])


# What a program does with a swizzle. T, T2 and T4 are the types, r the result.
FORMS = """
auto t = a.xy; r = t;|r = decltype(a.xy)(1);|T4 u{a.xy, b.zw}; r = u.zw;|r = T4(a.xy, 1, 2).zy;
r = i > 2 ? a.xy : b.xy;|r = i > 2 ? a.xy : 0;|r = -a.xy;|r = +a.xy;|r = (a + b).xy;|r = a.xyz.zy;
a.xy += b.yx; r = a.xy;|a.xy = b.yx; r = a.xy;|a.xyz *= 2; r = a.yz;|a.xyz = 0; r = a.yz;
a.xy = a.zw = b.xy; r = a.xy;|a.xy++; r = a.xy;|r.xy = a.zw;|r.x = a.xy[1];|r.x = dot(a.xyz, b.zyx);
r = T2(int2(a.xy));|r = (T2)a.xy;|r = static_cast<T2>(a.xy);|r = vec<T, 2>(a.xy);|r = {a.x, b.y};
r = max(a.xy, b.xy);|r = abs(a.xy);|r = mix(a.xy, b.xy, T(0.5));|r = fma(a.xy, b.xy, a.zw);
r = a.xy + b.xy;|r = a.xy - b.xy;|r = a.xy * b.xy;|r = a.xy / b.xy;|r = a.xy * b.x;|r = 2 * a.xy;
r = a.xy * (a.zw + b.zw);|r = a.xy * a.zw * b.xy;|r.x = a.xy.x * b.zw.y;|r = a.xy / 2 + 1;
r = twice(a.xy);|r = same(a.xy, b.zw);|r.x = length(a.xy - b.xy);|r = ptr->xy;|r = (*ptr).zw;
r = ptr[0].xy * ptr[0].zw;|r = select(a.xy, b.xy, a.xy < b.xy);|bool2 m = a.xy < b.xy; r = T2(m);
r.x = any(a.xy == b.xy) ? 1 : 0;|if (all(a.xyz != b.xyz)) r = a.xy;|thread T& q = a.y; q = 3; r = a.xy;
T2 w[2] = {a.xy, b.xy}; r = w[i & 1];|S<T> s = {a.xy, 1}; r = s.v;|S<T> s; s.v = a.yx; r = s.v.yx;
"""


OPERATORS = "+ - * / % & | ^ << >> == != < <= > >= && ||".split()


def test_operators_on_dependent_types() -> None:
    """clang cannot resolve an operator on swizzles of dependent type once look-up finds any operator
    function of that name: none of our headers may declare one in namespace metal."""
    functions = [
        f"template <typename T> auto use_{k}(vec<T, 3> a, vec<T, 3> b) {{ return a.zx {op} b.yy; }}"
        for k, op in enumerate(OPERATORS)
    ]
    calls = [f"use_{k}(a, a);" for k in range(len(OPERATORS))]
    check("\n".join([*functions, "void f(int3 a) {", *calls, "}"]))


# Operators that a program declares for a class of its own, as MLX does for complex numbers.
OWN = """struct Complex { float re, im; };
constexpr thread Complex& operator+=(thread Complex& a, Complex b) { a.re += b.re; return a; }
constexpr Complex operator-(Complex a) { return {-a.re, -a.im}; }
""" + "\n".join(
    f"constexpr {'bool' if op in '== != < <= > >= && ||'.split() else 'Complex'} "
    f"operator{op}(Complex a, Complex b) {{ return {{}}; }}"
    for op in "+ - * / % == != < <= > >= && ||".split()
)


@pytest.mark.parametrize("dtype", ["float", "half", "bfloat", "int"])
def test_swizzles_beside_operators_of_the_program(dtype: str) -> None:
    forms = """return a.xyz * b.zyx;|return a.xyz * 2;|return 2 * a.xyz;|return -a.xyz;|return a.xyz + -b.xyz;
return f<T>(a).xyz * b.xyz;|return p[1].xyz * (p + 1)->zyx;|return s.v.xyz - s.w[1].xyz;
return (a + b).xyz * a.x;|return a.xyz * f<T>(b.xyzw + a.wzyx).xyz;|vec<T, 3> r = 0; r += a.xyz * b.x; return r;
vec<T, 3> r = a.xyz; r.xy += b.zw; r.xy = r.yx + b.xy; return r;|return vec<T, 3>(a.xyz == b.xyz);
return vec<T, 3>(a.xyz < b.xyz && a.xyz != b.xyz);"""
    listed = [form for line in forms.split("\n") for form in line.split("|") if form]
    functions = [
        f"template <typename T> vec<T, 3> use_{k}(vec<T, 4> a, vec<T, 4> b, device vec<T, 4>* p, S<T> s)"
        f" {{ {form} }}"
        for k, form in enumerate(listed)
    ]
    calls = [f"use_{k}<{dtype}>(a, a, p, s);" for k in range(len(functions))]
    shared = """template <typename T> struct S { vec<T, 4> v; vec<T, 4> w[2]; };
template <typename T> vec<T, 4> f(vec<T, 4> x) { return x; }"""
    head = f"void g({dtype}4 a, device {dtype}4* p, S<{dtype}> s) {{"
    check("\n".join([OWN, shared, *functions, head, *calls, "}"]))


def test_values_of_swizzles_beside_operators_of_the_program() -> None:
    a, b = (sample(np.dtype(np.float32), (11, 4), seed) for seed in (1, 2))
    prelude = (
        OWN
        + "template <typename T> auto product(vec<T, 4> a, vec<T, 4> b) { return a.wyx * b.xyz; }"
    )
    want = a[:, [3, 1, 0]] * b[:, [0, 1, 2]]
    compare([Case("product(a, b)", [a, b], np.float32, 3, prelude)], [want])


def test_members_of_the_program_that_are_called_like_swizzles() -> None:
    check(
        OWN + "struct P { float xy; float rg; };\n"
        "template <typename T> float use(T p) { return p.xy * p.rg + 1; }\n"
        "float g(P p) { return use(p) - p.xy; }"
    )


@pytest.mark.parametrize("dependent", [False, True])
def test_forms_of_use(dependent: bool) -> None:
    """In plain functions and where the vector's type depends on a template parameter."""
    scalar = "typename T" if dependent else "int unused"
    names = (
        "" if dependent else "typedef float T; "
    ) + "typedef vec<T, 2> T2; typedef vec<T, 4> T4;"
    types = ("vec<T, 2>", "vec<T, 4>") if dependent else ("float2", "float4")
    forms = [form for line in FORMS.split("\n") for form in line.split("|") if form]
    functions = [
        f"template <{scalar}> {types[0]} use_{k}({types[1]} a, {types[1]} b, thread {types[1]}* ptr,"
        f" int i) {{ {names} T2 r = 0; {form} return r; }}"
        for k, form in enumerate(forms)
    ]
    argument = "float" if dependent else "0"
    calls = [f"use_{k}<{argument}>(a, a, p, 3);" for k in range(len(forms))]
    check(
        """template <typename T> struct S { vec<T, 2> v; T w; };
        METAL_FUNC float2 twice(float2 x) { return x * 2; }
        template <typename T> vec<T, 2> same(vec<T, 2> x, vec<T, 2> y) { return x + y; }\n"""
        + "\n".join([*functions, "void f(float4 a, thread float4* p) {", *calls, "}"])
    )


@pytest.mark.parametrize(
    "statement",
    [
        "v.xx = float2(1);",
        "v.xyz = float2(1);",
        "float2 u = v;",
        "int4 u = v;",
        "float x = v;",
        "v + int4(1);",
        "float2 u = float2(v);",
        "v.xq;",
        "v = float3(1);",
        "bool b = v == v;",
    ],
)
def test_what_msl_refuses(statement: str) -> None:
    with pytest.raises(Refused):
        check(f"void f(float4 v) {{ {statement} }}")
