"""Matrices: construction, products, transposition, determinants, for every shape."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from harness import Array, Case, Refused, bfloat16, check, evaluate_all
from seeds import generator

FLOATS = {"float": np.dtype(np.float32), "half": np.dtype(np.float16), "bfloat": bfloat16}
SHAPES = list(product((2, 3, 4), (2, 3, 4)))  # columns, rows


def flat(m: Array) -> str:
    """The elements of a numpy matrix in MSL's order: column by column."""
    return ", ".join(str(float(x)) for x in m.T.ravel())


def columns_of(expression: str, m: Array, dtype: np.dtype) -> list[tuple[Case, Array]]:
    """One case for each column of a matrix-valued expression."""
    return [
        (Case(f"({expression})[{c}]", (), dtype, m.shape[0]), m[:, c][None])
        for c in range(m.shape[1])
    ]


def compare(pairs: list[tuple[Case, Array]]) -> None:
    for (case, want), got in zip(pairs, evaluate_all([c for c, _ in pairs]), strict=True):
        np.testing.assert_allclose(got.astype(float), want, rtol=0.02, err_msg=case.expression)


@pytest.mark.parametrize("name", FLOATS)
def test_construction_and_arithmetic(name: str) -> None:
    dtype, rng, pairs = FLOATS[name], generator(1), []
    for columns, rows in SHAPES:
        kind = f"{name}{columns}x{rows}"
        a, b = (rng.integers(-4, 5, (rows, columns)).astype(float) for _ in range(2))
        m, other = f"{kind}({flat(a)})", f"{kind}({flat(b)})"
        vectors = ", ".join(f"{name}{rows}({flat(a[:, c : c + 1])})" for c in range(columns))
        wanted = {
            m: a,
            f"{kind}({vectors})": a,
            f"{kind}({name}(3))": 3 * np.eye(rows, columns),
            f"{kind}({m.replace(name, 'float')})": a,
            f"{m} + {other}": a + b,
            f"{m} - {other}": a - b,
            f"{m} * {name}(2)": a * 2,
            f"2 * {m}": a * 2,
            f"-{m}": -a,
            f"{m} / {name}(2)": a / 2,
            f"transpose({m})": a.T,
        }
        for expression, want in wanted.items():
            pairs += columns_of(expression, want, dtype)
    compare(pairs)


@pytest.mark.parametrize("name", FLOATS)
def test_products(name: str) -> None:
    dtype, rng, pairs = FLOATS[name], generator(2), []
    for (inner, rows), columns in product(SHAPES, (2, 3, 4)):
        a = rng.integers(-4, 5, (rows, inner)).astype(float)
        b = rng.integers(-4, 5, (inner, columns)).astype(float)
        left, right = f"{name}{inner}x{rows}({flat(a)})", f"{name}{columns}x{inner}({flat(b)})"
        pairs += columns_of(f"{left} * {right}", a @ b, dtype)
    for columns, rows in SHAPES:
        a = rng.integers(-4, 5, (rows, columns)).astype(float)
        v, w = np.arange(1.0, columns + 1), np.arange(1.0, rows + 1)
        m = f"{name}{columns}x{rows}({flat(a)})"
        vector = f"{name}{columns}({flat(v[:, None])})"
        row = f"{name}{rows}({flat(w[:, None])})"
        pairs.append((Case(f"{m} * {vector}", (), dtype, rows), (a @ v)[None]))
        pairs.append((Case(f"{row} * {m}", (), dtype, columns), (w @ a)[None]))
    compare(pairs)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_determinant(n: int) -> None:
    rng, pairs = generator(n), []
    for _ in range(6):
        a = rng.integers(-4, 5, (n, n)).astype(float)
        want = np.array([np.linalg.det(a)]).round()
        pairs.append((Case(f"determinant(float{n}x{n}({flat(a)}))"), want))
    compare(pairs)


def test_elements_are_lvalues() -> None:
    body = """
    float3x2 m = float3x2(0.0); m[1] = a; m[2][0] = 5; m.columns[0].y = a.x; m *= 2; m += m;
    result = float3(m[0].y, m[1].x + m[1].y, m[2].x);"""
    a = np.array([[1, 2], [3, 4]], np.float32)
    want = 4 * np.stack([a[:, 0], a.sum(axis=1), [5, 5]], axis=1)
    compare([(Case(body, [a], np.float32, 3), want)])


@pytest.mark.parametrize(
    "statement",
    [
        "m * float3(1);",
        "m + n;",
        "n * m;",
        "float2x2 x = n;",
        "m[0] = 1.0 * m;",
        "float4x4(1, 2, 3);",
    ],
)
def test_refused(statement: str) -> None:
    with pytest.raises(Refused):
        check(f"void f(float2x2 m, float3x3 n) {{ {statement} }}")
