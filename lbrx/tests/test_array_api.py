"""The Python array API standard: names, signatures and results, compared with array-api-strict."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import array_api_strict as strict
import numpy as np
import pytest
from device_memory import shares_memory

import lbrx

strict.set_array_api_strict_flags(api_version="2025.12")
SCRIPT = Path(__file__).parent.parent / "scripts" / "array_api_table.py"
SPEC = importlib.util.spec_from_file_location("array_api_table", SCRIPT)
TABLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(TABLE)
SHARED = [name for name in TABLE.namespace() if hasattr(lbrx, name)]
FUNCTIONS = [
    name
    for name in SHARED
    if callable(getattr(strict, name)) and inspect.isroutine(getattr(strict, name))
]

FLOATS = np.array([[0.5, -1.25, 2.0], [3.0, 0.0, -0.75]], np.float32)
UNIT = np.array([[0.5, -0.25, 0.1], [0.9, 0.0, -0.75]], np.float32)
LARGE = UNIT + np.float32(1.8)
INTEGERS = np.array([[3, -2, 7], [0, 5, -6]], np.int32)
SMALL = np.array([[1, 2, 3], [0, 4, 1]], np.uint8)
FLAGS = np.array([[True, False, True], [False, False, True]])
PLACES = np.array([1, 0, 1])
UNARY = {
    "acos": UNIT, "acosh": LARGE, "asin": UNIT, "atanh": UNIT, "log": LARGE, "log10": LARGE, "log1p": LARGE,
    "log2": LARGE, "sqrt": LARGE, "reciprocal": LARGE, "bitwise_invert": INTEGERS, "logical_not": FLAGS,
}  # fmt: skip
FLOAT_UNARY = """abs asinh atan ceil cos cosh exp expm1 floor isfinite isinf isnan negative positive round sign
    signbit sin sinh square tan tanh trunc""".split()
FLOAT_BINARY = """add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp
    maximum minimum multiply nextafter not_equal pow remainder subtract""".split()
INTEGER_BINARY = """add bitwise_and bitwise_or bitwise_xor equal floor_divide less maximum multiply remainder
    subtract""".split()

# (function, operands, keywords)
CASES = [
    *((name, (UNARY[name],), {}) for name in UNARY),
    *((name, (FLOATS,), {}) for name in FLOAT_UNARY),
    *((name, (LARGE, FLOATS), {}) for name in FLOAT_BINARY),
    *((name, (INTEGERS, SMALL.astype(np.int32) + 1), {}) for name in INTEGER_BINARY),
    *((name, (SMALL, SMALL), {}) for name in ("bitwise_left_shift", "bitwise_right_shift")),
    *((name, (FLAGS, FLAGS[::-1]), {}) for name in ("logical_and", "logical_or", "logical_xor")),
    *(
        (name, (FLOATS,), keywords)
        for name in ("sum", "prod", "mean", "max", "min", "std", "var")
        for keywords in ({}, {"axis": 0}, {"axis": (0, 1)}, {"axis": -1, "keepdims": True})
    ),
    *((name, (INTEGERS,), {"axis": 1}) for name in ("sum", "prod", "max", "argmax", "argmin")),
    ("sum", (SMALL,), {"dtype": "int32"}),
    ("prod", (SMALL,), {"dtype": "float32", "axis": 1}),
    ("var", (FLOATS,), {"axis": 1, "correction": 1}),
    ("std", (FLOATS,), {"correction": 1.0}),
    *((name, (FLAGS,), {"axis": 0}) for name in ("all", "any")),
    ("count_nonzero", (SMALL,), {"axis": 1}),
    ("cumulative_sum", (FLOATS,), {"axis": 1}),
    ("cumulative_sum", (SMALL,), {"axis": 0, "include_initial": True}),
    ("cumulative_prod", (FLOATS,), {"axis": -1}),
    ("sort", (FLOATS,), {"axis": 0}),
    ("sort", (FLOATS,), {"descending": True}),
    ("argsort", (INTEGERS,), {"axis": 0, "stable": True}),
    ("searchsorted", (np.sort(FLOATS.ravel()), FLOATS), {"side": "right"}),
    ("diff", (FLOATS,), {"axis": 0}),
    ("clip", (FLOATS,), {"min": -0.5, "max": 1.0}),
    ("clip", (INTEGERS, -1), {}),
    ("where", (FLAGS, FLOATS, UNIT), {}),
    ("matmul", (FLOATS, UNIT.T), {}),
    ("vecdot", (FLOATS, UNIT), {}),
    ("tensordot", (FLOATS, UNIT), {"axes": ((0, 1), (0, 1))}),
    ("tensordot", (FLOATS, UNIT.T), {"axes": 1}),
    ("matrix_transpose", (FLOATS,), {}),
    ("permute_dims", (FLOATS,), {"axes": (1, 0)}),
    ("moveaxis", (FLOATS, 0, 1), {}),
    ("expand_dims", (FLOATS,), {"axis": 1}),
    ("squeeze", (FLOATS[:1],), {"axis": 0}),
    ("reshape", (FLOATS,), {"shape": (3, -1)}),
    ("reshape", (FLOATS.T, (6,)), {"copy": True}),
    ("flip", (FLOATS,), {}),
    ("flip", (FLOATS,), {"axis": 1}),
    ("roll", (FLOATS, 2), {}),
    ("roll", (FLOATS, (1, -1)), {"axis": (0, 1)}),
    ("tile", (FLOATS, (2, 1, 3)), {}),
    ("repeat", (FLOATS, 2), {"axis": 1}),
    ("repeat", (FLOATS, 3), {}),
    ("broadcast_to", (FLOATS, (4, 2, 3)), {}),
    ("take", (FLOATS, PLACES), {"axis": 0}),
    ("take_along_axis", (FLOATS, INTEGERS[:, :2].astype(np.int64) % 3), {"axis": 1}),
    ("tril", (FLOATS,), {"k": 1}),
    ("triu", (FLOATS,), {"k": -1}),
    ("isin", (SMALL, np.array([1, 4], np.uint8)), {}),
    ("unique_values", (SMALL,), {}),
    ("unique_counts", (SMALL,), {}),
    ("unique_inverse", (SMALL,), {}),
    ("nonzero", (SMALL,), {}),
    ("unstack", (FLOATS,), {"axis": 1}),
    ("zeros_like", (FLOATS,), {}),
    ("ones_like", (FLOATS,), {"dtype": "int16"}),
    ("full_like", (INTEGERS, 3), {}),
    ("astype", (FLOATS, "int8"), {}),
]  # fmt: skip
OF_NUMBERS = [
    ("arange", (1, 9, 2), {}),
    ("arange", (0.5, 2.0, 0.25), {"dtype": "float32"}),
    ("eye", (3, 4), {"k": 1, "dtype": "int32"}),
    ("full", ((2, 3), 7), {"dtype": "uint8"}),
    ("linspace", (0.0, 1.0, 7), {"dtype": "float32"}),
    ("linspace", (2, 8, 4), {"endpoint": False, "dtype": "float32"}),
    ("ones", ((2, 0),), {"dtype": "bool"}),
    ("zeros", (4,), {"dtype": "float32"}),
]


def adapted(values, module):
    """Arrays as those of a module, names of dtypes as its dtypes."""
    if isinstance(values, dict):
        return {
            key: getattr(module, value) if key == "dtype" else value
            for key, value in values.items()
        }
    dtypes = ("int8",)
    return [
        module.asarray(v) if isinstance(v, np.ndarray) else getattr(module, v) if v in dtypes else v
        for v in values
    ]


def compare(found, expected):
    if isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
        return
    wanted = np.asarray(expected)
    assert (str(found.dtype), found.shape) == (str(wanted.dtype), wanted.shape)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "operands", "keywords"),
    CASES + OF_NUMBERS,
    ids=[f"{i}-{name}" for i, (name, *_) in enumerate(CASES + OF_NUMBERS)],
)
def test_results(name, operands, keywords, cpu_default):
    results = [
        getattr(module, name)(*adapted(operands, module), **adapted(keywords, module))
        for module in (lbrx, strict)
    ]
    compare(*results)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures(name):
    """What the standard takes by place or by name, lbrx takes so too."""
    try:
        theirs = inspect.signature(getattr(strict, name)).parameters.values()
    except ValueError:
        pytest.skip("array-api-strict has no signature for it")
    ours = inspect.signature(getattr(lbrx, name)).parameters
    by_place = [p for p in ours.values() if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in ours.values())
    places = 0
    for parameter in theirs:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            places += 1
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert parameter.name in ours, parameter.name
            assert ours[parameter.name].kind is not parameter.POSITIONAL_ONLY, parameter.name
    assert variadic or len(by_place) >= places


def test_every_absent_name_has_a_reason():
    missing = [name for names in TABLE.absent().values() for name in names]
    assert [name for name in missing if name not in TABLE.ABSENT] == []
    assert sorted(TABLE.ABSENT) == sorted(missing)


def test_the_page_is_fresh():
    text = TABLE.PAGE.read_text()
    assert TABLE.page(text) == text, "run lbrx/scripts/array_api_table.py"


def test_the_namespace():
    x = lbrx.ones(3)
    assert x.__array_namespace__() is lbrx
    assert x.__array_namespace__(api_version="2023.12") is lbrx
    with pytest.raises(ValueError, match=r"api_version='1999.01' is not supported: give one of"):
        x.__array_namespace__(api_version="1999.01")


def test_generic_code_runs():
    """A function for any array library, as scipy and scikit-learn write them."""

    def standardised(x):
        xp = x.__array_namespace__()
        x = xp.astype(x, xp.float32)
        centred = x - xp.mean(x, axis=0, keepdims=True)
        return xp.where(xp.isfinite(x), centred / xp.std(x, axis=0, keepdims=True), xp.nan)

    compare(standardised(lbrx.asarray(INTEGERS)), standardised(strict.asarray(INTEGERS)))


@pytest.mark.parametrize(
    ("dtype", "kind", "expected"),
    [
        ("int8", "signed integer", True),
        ("uint8", "signed integer", False),
        ("uint8", "integral", True),
        ("bool", "numeric", False),
        ("bool", "bool", True),
        ("bfloat16", "real floating", True),
        ("float32", "complex floating", False),
        ("float32", ("integral", lbrx.float32), True),
        (lbrx.int64, lbrx.int64, True),
    ],
)
def test_isdtype(dtype, kind, expected):
    assert lbrx.isdtype(dtype, kind) is expected


def test_limits():
    assert lbrx.finfo("bfloat16").eps == 2**-7
    assert lbrx.finfo(lbrx.ones(1)).max == np.finfo(np.float32).max
    assert (lbrx.iinfo("int8").min, lbrx.iinfo("uint16").bits) == (-128, 16)
    with pytest.raises(lbrx.DtypeError, match="int8 is not a floating dtype: use iinfo"):
        lbrx.finfo("int8")
    with pytest.raises(lbrx.DtypeError, match="float16 is not an integer dtype: use finfo"):
        lbrx.iinfo("float16")


def test_result_types_and_casts():
    assert lbrx.result_type(lbrx.ones(1, "float16"), 2.0) == "float16"
    assert lbrx.result_type("uint8", lbrx.int8) == "int16"
    assert lbrx.can_cast("int8", "int16")
    assert not lbrx.can_cast("int16", "int8")
    with pytest.raises(ValueError, match="result_type has no arguments"):
        lbrx.result_type()


def test_namespace_info():
    info = lbrx.__array_namespace_info__()
    assert info.devices() == ["cpu", "metal"]
    assert info.default_device() == lbrx.default_device()
    assert info.default_dtypes()["integral"] == "int64"
    assert "float64" not in info.dtypes(device="metal")
    assert list(info.dtypes(device="cpu", kind="bool")) == ["bool"]


@shares_memory
def test_asarray_copies_only_when_it_must():
    x = lbrx.ones(3)
    assert lbrx.asarray(x) is x
    assert lbrx.asarray(x, copy=True) is not x
    assert lbrx.asarray(x, dtype="int8").dtype == "int8"
    with pytest.raises(ValueError, match="this list cannot become a tensor without a copy"):
        lbrx.asarray([1, 2], copy=False)
    own = lbrx.empty_aligned(4)
    own[:] = 1
    shared = lbrx.asarray(own, copy=False)
    own[0] = 5
    assert shared.tolist()[0] == 5
