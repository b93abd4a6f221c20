"""Forms of weights: what a program multiplies with, against the values of our own encodings."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.errors import LbrxError
from lbrx.neural_engine import weight_forms
from lbrx.neural_engine.binding import mil_builder, mil_types
from lbrx.neural_engine.core_ml_model import CoreMLModel, compiled_model
from lbrx.neural_engine.mil_package import build_function, write_package
from lbrx.neural_engine.weight_forms import WeightForm, parse_form, program_weight, values_of

ROWS, COLUMNS = 12, 64


def matrix(seed=0):
    return (np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)) / 4).astype(np.float32)


def multiplied(weights, folder):
    """Each weight as a program has it: its convolution with the identity matrix."""
    mb, types = mil_builder(), mil_types()

    def body(x):
        return tuple(
            mb.conv(x=x, weight=weight.emit(name), pad_type="valid", name=f"y_{name}")
            for name, weight in weights.items()
        )

    inputs = {"x": mb.placeholder((1, COLUMNS, 1, COLUMNS), dtype=types.fp16)}
    function = build_function(inputs, body)
    write_package(folder / "w.mlpackage", {"main": function})
    model = CoreMLModel(compiled_model(folder / "w.mlpackage"), "main")
    eye = np.eye(COLUMNS, dtype=np.float16).reshape(1, COLUMNS, 1, COLUMNS)
    made = model.predict({"x": eye})
    return {name: made[f"y_{name}"].reshape(-1, COLUMNS) for name in weights}


def test_every_form(tmp_path):
    """Errors of at most half a step of a channel's scale, or of a table's neighbours."""
    values = matrix()
    tensor = lbrx.tensor(values, device="cpu")
    weights = {form.value: program_weight(tensor, form) for form in WeightForm}
    made = multiplied(weights, tmp_path)
    np.testing.assert_array_equal(made["f16"], values.astype(np.float16))
    np.testing.assert_array_equal(made["stored"], values.astype(np.float16))
    for bits in (8, 4):
        step = np.abs(values).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
        assert (np.abs(made[f"int{bits}"] - values) <= 0.51 * step + 2e-3).all()
        assert len(np.unique(made[f"lut{bits}"])) <= 2**bits
    errors = [np.abs(made[f"lut{bits}"] - values).mean() for bits in (8, 6, 4)]
    assert errors == sorted(errors)
    # A uniform grid of 16 points over the whole range has a mean error of a quarter step.
    assert errors[-1] < np.ptp(values) / 15 / 4


@pytest.mark.parametrize(
    "scheme", ["q8_0", "q4_0", "q4:64", "q8:32", "q4:32:symmetric", "q8:64:symmetric"]
)
def test_stored_codes_are_kept(scheme, tmp_path):
    tensor = lbrx.quantize(lbrx.tensor(matrix(1), device="cpu"), scheme)
    weight = program_weight(tensor, WeightForm.STORED)
    assert weight.operation == "constexpr_blockwise_shift_scale"
    made = multiplied({"w": weight}, tmp_path)["w"]
    np.testing.assert_array_equal(made, tensor.astype("float16").numpy())


@pytest.mark.parametrize("scheme", ["q4_1", "q5_0", "mlx:4:64"])
def test_other_encodings_become_fp16(scheme):
    tensor = lbrx.quantize(lbrx.tensor(matrix(2), device="cpu"), scheme)
    weight = program_weight(tensor, WeightForm.STORED)
    assert weight.operation == "const"
    np.testing.assert_array_equal(weight.parts["val"][..., 0, 0], tensor.astype("float16").numpy())


@pytest.mark.parametrize("form", WeightForm)
def test_rows_in_another_order(form):
    """Before it is written, a weight's rows can be taken and put in order in its own form."""
    tensor = lbrx.quantize(lbrx.tensor(matrix(3), device="cpu"), "q8_0")
    order = np.random.default_rng(0).permutation(ROWS)
    weight = program_weight(tensor, form)
    moved = weight.take(order)
    main = next(iter(weight.parts))
    np.testing.assert_array_equal(moved.parts[main], weight.parts[main][order])
    if "lut" in weight.parts:
        np.testing.assert_array_equal(moved.parts["lut"], weight.parts["lut"])
    assert weight.take(slice(2, 5)).rows == 3


def test_constant_channels():
    """A channel of zeros has a scale of zero, which must not divide."""
    values = matrix()
    values[3] = 0
    weight = program_weight(lbrx.tensor(values, device="cpu"), WeightForm.INT8)
    assert not weight.parts["data"][3].any()


def test_values_beyond_fp16():
    with pytest.raises(LbrxError, match="beyond the range of float16"):
        values_of(lbrx.tensor(np.array([[1e6, 1.0]], np.float32), device="cpu"))


def test_unknown_form():
    with pytest.raises(LbrxError, match="'q4_k' is not a form of weights: give f16, int8"):
        parse_form("q4_k")


@pytest.mark.parametrize("entries", [16, 64, 256])
def test_places_in_a_table_are_those_of_a_search(entries, rng):
    """Also of values on a border, of equal borders, of several within one half, and of infinities."""
    values = (rng.standard_normal((50, 100)) * 0.02).astype(np.float32)
    borders = rng.choice(values.reshape(-1), entries - 1)
    borders[:8] = 0.01 + np.float32(1e-6) * np.arange(8)
    borders[8:12] = borders[8], borders[8], 0.0, -0.0
    borders.sort()
    values[0, : entries - 1][:100] = borders[:100]
    values[1, :4] = 0.0, -0.0, np.inf, -np.inf
    values[2] = np.linspace(0.0099999, 0.0100099, 100)
    made = weight_forms._places(borders, values)
    np.testing.assert_array_equal(made, np.searchsorted(borders, values))
