"""The value of a parameter for a tensor."""

from __future__ import annotations

import pytest

from lbrx import FormatError
from lbrx.merging.config import Filtered, parse
from lbrx.merging.methods import METHODS, Parameter
from lbrx.merging.parameters import check_names, find_method, resolve

T = Parameter("t", float, "a number", required=True, least=0, most=1)
FLAG = Parameter("flag", bool, "a switch", False)
COUNT = Parameter("count", int, "a count", 3)
FILTERS = (Filtered("self_attn", 0.25), Filtered("mlp", (0, 1)), Filtered("*", 0.5))

VALUES = [
    ("a number", T, 0.5, 0.0, 0.5),
    ("text of a number", T, "1e-2", 0.0, 0.01),
    ("the first value of a gradient", T, (0.2, 0.8, 0.0), 0.0, 0.2),
    ("the last value of a gradient", T, (0.2, 0.8, 0.0), 1.0, 0.0),
    ("between values of a gradient", T, (0, 1, 0), 0.25, 0.5),
    ("a value of a gradient itself", T, (0, 0.7, 0), 0.5, 0.7),
    ("a gradient of one value", T, (0.3,), 0.9, 0.3),
    ("the first filter", T, FILTERS, 0.7, 0.25),
    ("a boolean", FLAG, True, 0.0, True),
    ("a boolean as a number", FLAG, 1, 0.0, True),
    ("booleans of a gradient", FLAG, (False, True), 0.99, False),
    ("an integer", COUNT, 5.0, 0.0, 5),
]


@pytest.mark.parametrize(
    ("parameter", "setting", "t", "expected"), [v[1:] for v in VALUES], ids=[v[0] for v in VALUES]
)
def test_values(parameter, setting, t, expected):
    found = resolve([parameter], [{parameter.name: setting}], "model.layers.0.self_attn.q", t)
    assert found == {parameter.name: pytest.approx(expected)}
    assert type(found[parameter.name]) is parameter.kind


def test_filters_with_gradients_and_defaults():
    def value(tensor, setting=FILTERS, t=0.75):
        return resolve([T], [{"t": setting}], tensor, t)["t"]

    assert value("model.layers.0.mlp.up_proj.weight") == 0.75
    assert value("model.norm.weight") == 0.5
    with pytest.raises(FormatError, match=r"t has no value for model\.norm\.weight"):
        value("model.norm.weight", FILTERS[:2])


def test_precedence_falls_through_filters_that_do_not_match():
    scopes = [{"t": (Filtered("mlp", 0.1),)}, {}, {"t": 0.2}, {"t": 0.3}]
    assert resolve([T], scopes, "mlp", 0) == {"t": 0.1}
    assert resolve([T], scopes, "norm", 0) == {"t": 0.2}
    assert resolve([COUNT], scopes, "norm", 0) == {"count": 3}


@pytest.mark.parametrize(
    ("parameter", "value", "problem"),
    [
        (T, 1.5, "t is 1.5: give at least 0 and at most 1"),
        (T, True, "t is True: give a number"),
        (T, "x", "t is 'x': give a number"),
        (T, 10**400, "t is 1000"),
        (T, float("nan"), "t is nan: give a number"),
        (T, (0.0, "x"), "t is 'x'"),
        (FLAG, 0.5, "flag is 0.5: give true or false"),
        (COUNT, 1.5, "count is 1.5: give an integer"),
    ],
)
def test_bad_values(parameter, value, problem):
    with pytest.raises(FormatError, match=problem):
        resolve([parameter], [{parameter.name: value}], "x", 0)


def config(**parameters):
    models = [{"model": "a", "parameters": parameters}]
    return parse({"merge_method": "linear", "models": models})


def test_names_of_methods_and_parameters():
    with pytest.raises(FormatError, match="'liner' is not a merge method: did you mean linear"):
        find_method("liner")
    with pytest.raises(FormatError, match="'weigth' is not a parameter of linear: did you mean"):
        check_names(config(weigth=1), METHODS["linear"])
    assert check_names(config(weight=1), METHODS["linear"]) == []
    assert check_names(config(weight=1, scale=2), METHODS["linear"]) == [
        "linear has no parameter scale: it is ignored"
    ]
