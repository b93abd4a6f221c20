"""metal_math's errors against MSL's bounds, over random bit patterns and every half and bfloat."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import Case, evaluate_all
from math_samples import Measurement, call, compare, measure_all
from math_table import FUNCTIONS, Function
from seeds import generator

by_name = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
measured = functools.cache(measure_all)


def show(measurement: Measurement) -> None:
    print(f"{measurement.worst:.3f} ulp, worst {measurement}")


@by_name
@pytest.mark.parametrize("fast_math", [False, True], ids=["safe", "fast_math"])
def test_precise(function: Function, fast_math: bool) -> None:
    """A program compiled with fast maths does not spoil metal::precise."""
    result = measured("precise", fast_math)[function.name]
    show(result)
    assert result.excess <= 1.0, str(result)


@by_name
def test_fast(function: Function) -> None:
    result = measured("fast", True)[function.name]
    show(result)
    assert result.excess <= 1.0, str(result)


def every_value(dtype: Any, function: Function) -> list[Any]:
    values = np.arange(65536, dtype=np.uint16).view(dtype)
    rng = generator()
    return [values, *(rng.permutation(values) for _ in range(function.arity - 1))]


@functools.cache
def half_results() -> dict[str, Any]:
    columns = {f.name: every_value(np.float16, f) for f in FUNCTIONS}
    cases = [Case(call("metal", f), columns[f.name], np.float16) for f in FUNCTIONS]
    names = [f.name for f in FUNCTIONS]
    return dict(zip(names, evaluate_all(cases, True), strict=True))


@by_name
def test_every_half(function: Function) -> None:
    """Computed as a float and rounded: at most 1 ulp of a half, and rarely more than 1/2."""
    columns = every_value(np.float16, function)
    got = half_results()[function.name]
    with np.errstate(all="ignore"):
        exact = np.asarray(function.oracle(*(c.astype(np.float64) for c in columns)))
        rounded = exact.astype(np.float16)
        spacing = np.spacing(np.where(np.isfinite(rounded), np.abs(rounded), 1)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / spacing
    same = (got == rounded) | (np.isnan(got) & np.isnan(exact))
    error = np.where(same, 0.0, error)
    worst = int(np.argmax(np.nan_to_num(error, nan=np.inf)))
    assert error[worst] <= (0.51 if function.precise <= 0.5 else 0.6), (
        [c[worst] for c in columns],
        got[worst],
        exact[worst],
    )


@functools.cache
def bfloat_results() -> dict[str, Any]:
    columns = {f.name: every_value(ml_dtypes.bfloat16, f) for f in FUNCTIONS}
    cases = [Case(call("precise", f), columns[f.name]) for f in FUNCTIONS]
    names = [f.name for f in FUNCTIONS]
    return dict(zip(names, evaluate_all(cases, True), strict=True))


@by_name
def test_every_bfloat(function: Function) -> None:
    """The result for a bfloat is a float, as good as for a float."""
    columns = [c.astype(np.float32) for c in every_value(ml_dtypes.bfloat16, function)]
    result = compare(function, False, columns, bfloat_results()[function.name])
    assert result.excess <= 1.0, str(result)
