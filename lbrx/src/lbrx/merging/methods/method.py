"""What a merge method is: a pure function of the models' tensors, and a table of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lbrx.tensors import Tensor


@dataclass(frozen=True)
class Parents:
    """What a method gets to compute one tensor. All tensors are on one device and have one shape;
    those of elementwise methods may be ranges of rows."""

    name: str
    """The name of the tensor in the merged model. Random masks are keyed by it and by `seed`."""
    tensors: tuple[Tensor, ...]
    """One for each model that takes part, in the order of the configuration, in its stored type
    (quantized ones decode to float32 when they are used). The base model is not among them, unless
    the method uses no base and the configuration lists it as a model."""
    base: Tensor | None
    """The base model's tensor, where the method uses one."""
    parameters: Mapping[str, Any]
    """The method's parameters for this tensor: a value for each, the default if none was given."""
    own: tuple[Mapping[str, Any], ...]
    """The parameters of each of `tensors`, in the same order."""
    seed: int


class Base(StrEnum):
    """Whether a method computes with the base model. Otherwise a base model is one of the models if
    it is listed, and gives the configuration and the tokenizer."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    UNUSED = "unused"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method. Its values are of `kind`, float, int or bool."""

    name: str
    kind: type[float] | type[int] | type[bool]
    text: str
    """One line for the help and the documentation."""
    default: float | int | bool | None = None
    required: bool = False
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Method:
    """A merge method. The function computes in float32, lazily, and the result is rounded once to
    the type of the merged tensor."""

    name: str
    function: Callable[[Parents], Tensor]
    text: str
    """One line about what it computes."""
    parameters: tuple[Parameter, ...] = ()
    """Those of the merge as a whole."""
    own: tuple[Parameter, ...] = ()
    """Those of each model."""
    base: Base = Base.UNUSED
    models: tuple[int, int | None] = (1, None)
    """The least and the most number of models besides the base that the method uses."""
    is_random: bool = False
    is_elementwise: bool = False
    """Whether an element of the result depends on the same element of each parent only. The engine
    then computes ranges of rows alone, in less memory."""
