"""The values of a method's parameters for one tensor: precedence, filters and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from lbrx.errors import FormatError
from lbrx.merging.config import Filtered, MergeConfig, Parameters, Setting, Value
from lbrx.merging.config_fields import suggestion
from lbrx.merging.methods import METHODS, Method, Parameter


def resolve(
    parameters: Sequence[Parameter], settings: Iterable[Parameters], tensor: str, t: float
) -> dict[str, Any]:
    """A value for each parameter: the first setting that has one for this tensor, or the default.

    Raises FormatError for a value that the parameter does not take, or if a required one has none.
    """
    known = tuple(settings)
    return {parameter.name: _value_of(parameter, known, tensor, t) for parameter in parameters}


def _value_of(
    parameter: Parameter, settings: Iterable[Parameters], tensor: str, t: float
) -> float | int | bool | None:
    for scope in settings:
        if parameter.name in scope:
            value = _evaluated(parameter, scope[parameter.name], tensor, t)
            if value is not None:
                return value
    if parameter.required:
        raise FormatError(
            f"{parameter.name} has no value for {tensor}: add it to the parameters of each model "
            f"or of the merge (--{parameter.name.replace('_', '-')})"
        )
    return parameter.default


def _evaluated(
    parameter: Parameter, setting: Setting, tensor: str, t: float
) -> float | int | bool | None:
    """The value for a tensor; None if no filter matches."""
    if not isinstance(setting, tuple):
        return _checked(parameter, setting)
    for item in setting:
        if not isinstance(item, Filtered):
            break
        if item.matches(tensor):
            return _evaluated(parameter, item.value, tensor, t)
    else:
        return None
    values = [_checked(parameter, item) for item in setting if not isinstance(item, Filtered)]
    return _interpolated(parameter, values, t)


def _interpolated(
    parameter: Parameter, values: Sequence[float | int | bool], t: float
) -> float | int | bool:
    """Linear between values at equal distances from t = 0 to 1; booleans are not interpolated."""
    place = t * (len(values) - 1)
    first = int(place)
    if parameter.kind is bool:
        return values[first]
    share = place - first
    last = min(first + 1, len(values) - 1)
    # At a value itself no rounding: a weight of exactly 1 stays so.
    value = values[first] if share == 0 else (1 - share) * values[first] + share * values[last]
    return _checked(parameter, value)


def _checked(parameter: Parameter, value: Value) -> float | int | bool:
    """The value as the parameter's kind. YAML reads 1e-5, which lacks a point, as text."""
    number: float | int | bool | None = None
    if parameter.kind is bool:
        number = value if isinstance(value, bool) else None
        number = bool(value) if value in (0, 1) else number
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = None
        if number is not None and parameter.kind is int:
            number = int(number) if number.is_integer() else None
    kinds = {float: "a number", int: "an integer", bool: "true or false"}
    if number is None or not math.isfinite(number):
        raise FormatError(f"{parameter.name} is {value!r:.60}: give {kinds[parameter.kind]}")
    least, most = parameter.least, parameter.most
    if (least is not None and number < least) or (most is not None and number > most):
        limits = [f"at least {least:g}"] if least is not None else []
        limits += [f"at most {most:g}"] if most is not None else []
        raise FormatError(f"{parameter.name} is {number:g}: give {' and '.join(limits)}")
    return number


def find_method(name: str) -> Method:
    """The method of a name. Raises FormatError with the nearest name."""
    if name not in METHODS:
        raise FormatError(f"{name!r:.60} is not a merge method{suggestion(name, METHODS)}")
    return METHODS[name]


def check_names(config: MergeConfig, method: Method) -> list[str]:
    """Notes about parameters that the method does not use but another one does.

    Raises FormatError for parameters that no method has, with the nearest name.
    """
    used = {parameter.name for parameter in (*method.parameters, *method.own)}
    every = {p.name for m in METHODS.values() for p in (*m.parameters, *m.own)}
    notes = []
    for name in dict.fromkeys(name for scope in _scopes(config) for name in scope):
        if name in used:
            continue
        if name not in every:
            remedy = suggestion(name, sorted(used) or ["none"])
            raise FormatError(f"{name!r:.60} is not a parameter of {method.name}{remedy}")
        notes.append(f"{method.name} has no parameter {name}: it is ignored")
    return notes


def _scopes(config: MergeConfig) -> list[Parameters]:
    body = config.body
    result = [config.parameters, body.parameters]
    result += [entry.parameters for entry in body.models]
    for part in body.slices:
        result += [part.parameters, *(source.parameters for source in part.sources)]
    return result
