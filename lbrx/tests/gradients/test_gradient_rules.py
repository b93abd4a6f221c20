"""The column `vjp` of the operation table, every row: the gradients that the rules give are those
of finite differences of the numpy reference in float64, and other dtypes and devices agree."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_cases import Case, every
from op_oracle import PRECISION
from seeds import derived

import lbrx
import lbrx.gradients
from lbrx import ops
from lbrx.arrays import dtype as dt
from lbrx.ops.vjp import NotDifferentiable, Vjp

CASES = list(every(np.random.default_rng(35)))
STEP = 1e-6
OTHERS = (dt.float32, dt.float16, dt.bfloat16)


def test_every_operation_has_a_rule_or_a_reason():
    for name in ops.BUILT_IN:
        column = ops.TABLE[name].vjp
        assert isinstance(column, Vjp | NotDifferentiable), name
        if isinstance(column, NotDifferentiable):
            assert len(column.reason) > 20, name


def test_every_rule_has_a_case():
    ruled = {name for name in ops.BUILT_IN if isinstance(ops.TABLE[name].vjp, Vjp)}
    assert ruled == {case.name for case in CASES}


def test_rules_read_what_the_operation_has():
    for name in ops.BUILT_IN:
        op = ops.TABLE[name]
        if isinstance(op.vjp, Vjp):
            known = {x.name for x in op.operands} | op.attributes.keys()
            assert op.vjp.reads <= known | {"g", "output", "shapes", "at"}, name


def _places(case: Case) -> list[int]:
    """The operands that have a gradient."""
    op = ops.TABLE[case.name]
    column = op.vjp
    assert isinstance(column, Vjp)
    no_gradient = {"rope": {"factors"}}.get(case.name, set())
    return [
        i
        for i, (x, operand) in enumerate(
            zip(case.operands, op.operands_of(len(case.operands)), strict=True)
        )
        if x is not None and x.dtype == np.float64 and operand.name not in no_gradient
    ]


def _results(case: Case, operands) -> list[np.ndarray]:
    made = ops.TABLE[case.name](operands, case.attributes)
    return [x.astype(np.float64) for x in made if x.dtype.kind == "f"]


def _weights(case: Case) -> list[np.ndarray]:
    """The gradients of the results: any numbers, the same for all devices and dtypes."""
    rng = np.random.default_rng(7)
    return [rng.normal(size=x.shape) for x in _results(case, case.operands)]


def _by_differences(case: Case, place: int) -> np.ndarray:
    """The gradient of one operand, an element at a time."""
    weights = _weights(case)
    found = np.zeros(case.operands[place].shape)
    for index in np.ndindex(*found.shape):
        if not np.isfinite(case.operands[place][index]):
            continue
        sums = []
        for step in (STEP, -STEP):
            operands = [None if x is None else x.copy() for x in case.operands]
            operands[place][index] += step
            results = _results(case, operands)
            sums.append(sum((x * w).sum() for x, w in zip(results, weights, strict=True)))
        found[index] = (sums[0] - sums[1]) / (2 * STEP)
    return found


def _by_rules(case: Case, places, device: str, dtype) -> list[np.ndarray]:
    """The gradients of the operands in a dtype on a device."""
    attributes = dict(case.attributes)
    if case.name == "cast":
        attributes["dtype"] = dtype
    given = [
        None
        if x is None
        else lbrx.tensor(x, dtype=dtype if x.dtype == np.float64 else None, device=device)
        for x in case.operands
    ]

    def function(*chosen):
        operands = list(given)
        for place, x in zip(places, chosen, strict=True):
            operands[place] = x
        made = lbrx.apply(case.name, *operands, **attributes)
        made = made if isinstance(made, tuple) else (made,)
        return [x for x in made if x.dtype.is_float]

    cotangents = [lbrx.tensor(w, dtype=dtype, device=device) for w in _weights(case)]
    _, found = lbrx.vjp(function, [given[place] for place in places], cotangents)
    for place, g in zip(places, found, strict=True):
        assert g.dtype is dtype
        assert g.shape == given[place].shape
        assert g.device == device
    return [g.numpy().astype(np.float64) for g in found]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rules_agree_with_finite_differences(case):
    places = _places(case)
    with np.errstate(all="ignore"):
        found = _by_rules(case, places, "cpu", dt.float64)
        for place, g in zip(places, found, strict=True):
            expected = _by_differences(case, place)
            size = max(np.abs(expected).max(initial=0), 1)
            np.testing.assert_allclose(g, expected, rtol=2e-6, atol=4e-8 * size)


def _rounded(case: Case, dtype) -> Case:
    """The case with operands that the dtype holds: an error of rounding them is no gradient's."""
    operands = [
        x
        if x is None or x.dtype != np.float64
        else lbrx.tensor(x, dtype=dtype, device="cpu").numpy().astype(np.float64)
        for x in case.operands
    ]
    return Case(case.name, operands, case.attributes, case.note)


def _agrees(case: Case, device: str, dtype) -> None:
    """The gradients on a device in a dtype are those of float64 on the cpu."""
    own = _rounded(case, dtype)
    places = _places(own)
    with np.errstate(all="ignore"):
        expected = _by_rules(own, places, "cpu", dt.float64)
        found = _by_rules(own, places, device, dtype)
    for g, wanted in zip(found, expected, strict=True):
        size = max(np.abs(wanted).max(initial=0), 1)
        precision = PRECISION[dtype] * 12
        np.testing.assert_allclose(g, wanted, rtol=precision, atol=precision * size)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_other_dtypes_on_the_cpu(case):
    for dtype in OTHERS:
        _agrees(case, "cpu", dtype)


def _on_metal():
    """Each case in one dtype, which depends on the seed: most of the time is spent compiling, so the
    default run takes one case in eight."""
    for case in CASES:
        marks = [pytest.mark.full] if derived(str(case)) % 8 else []
        yield pytest.param(case, OTHERS[derived(case.name) % 3], id=str(case), marks=marks)


@pytest.mark.metal
@pytest.mark.parametrize(("case", "dtype"), list(_on_metal()))
def test_other_dtypes_on_metal(case, dtype):
    _agrees(case, "metal", dtype)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_dtype_on_metal(case):
    for dtype in OTHERS:
        _agrees(case, "metal", dtype)
