"""The operation table: what every device, graph and test is built on.

An operation is one registered numpy function. Its signature says the rest: positional parameters
are the operands (with a default of None they may be left out), keyword-only ones the attributes.
Names are those of the Python array API standard where that has one.

An operand's name says its role, too: `condition` is boolean; `indices`, `positions` and `lengths`
are integer; `mask`, `factors` and `rows` are floating and keep their own type; `codes`, `scales`
and `offsets` are what quantized values are stored as, and `key_codes`, `value_codes` and
`cache_codes` blocks of bytes. All others are values, promoted together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.errors import DtypeError, ShapeError
from lbrx.shape import Shape, list_of

NumpyArray = NDArray[Any]
Attributes = Mapping[str, Any]
ShapeRule = Callable[[Sequence[Shape | None], Attributes], "Shape | list[Shape]"]
DtypeRule = Callable[[Dtype, Attributes], "Dtype | tuple[Dtype, ...]"]
Reference = Callable[..., Any]
REQUIRED = inspect.Parameter.empty


class OpFamily(StrEnum):
    UNARY = "unary"
    BINARY = "binary"
    COMPARISON = "comparison"
    TERNARY = "ternary"
    CAST = "cast"
    ACTIVATION = "activation"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    NORM = "norm"
    MATMUL = "matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    POOLING = "pooling"
    ROPE = "rope"
    MOVEMENT = "movement"
    INDEXING = "indexing"
    SORTING = "sorting"
    RANDOM = "random"
    QUANTIZATION = "quantization"


class Role(StrEnum):
    """What an operand is for."""

    VALUE = "value"
    CONDITION = "condition"
    INDICES = "indices"
    FLOATING = "floating"
    """Numbers of a floating type of their own, which has no say in the result's."""
    CACHE = "cache"
    """Memory that the operation may write; it decides the result's type and is not converted."""
    STORED = "stored"
    """Part of quantized values, of whatever type their scheme says."""


_ROLES = {
    "condition": Role.CONDITION,
    "indices": Role.INDICES,
    "positions": Role.INDICES,
    "lengths": Role.INDICES,
    "mask": Role.FLOATING,
    "factors": Role.FLOATING,
    "rows": Role.FLOATING,
    "cache": Role.CACHE,
    "cache_codes": Role.CACHE,
    "codes": Role.STORED,
    "key_codes": Role.STORED,
    "value_codes": Role.STORED,
    "scales": Role.STORED,
    "offsets": Role.STORED,
}


class Spec(NamedTuple):
    """What is known of a tensor before it is computed."""

    shape: Shape
    dtype: Dtype

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Operand(NamedTuple):
    name: str
    role: Role
    optional: bool

    def check(self, dtype: Dtype) -> None:
        """Refuse an element type that its role cannot have."""
        if self.role is Role.CONDITION and dtype is not dt.bool_:
            raise DtypeError(f"the {self.name} is {dtype}: compare it, or cast it to bool")
        if self.role is Role.INDICES and not dtype.is_integer:
            raise DtypeError(f"the {self.name} are {dtype}: cast them to an integer type")
        if self.role is Role.FLOATING and not dtype.is_float:
            added = "it is added, so give where(mask, 0, -inf)"
            remedy = added if self.name == "mask" else "cast to a floating type"
            raise DtypeError(f"{self.name} cannot be {dtype}: {remedy}")
        if self.name.endswith("_codes") and dtype is not dt.uint8:
            raise DtypeError(f"{self.name} are {dtype}: give quantized blocks, which are uint8")


@dataclass(frozen=True, repr=False)
class Op:
    """One operation. Calling it computes the numpy reference."""

    name: str
    family: OpFamily
    operands: tuple[Operand, ...]
    variadic: bool
    """Whether it takes any number of operands of the last kind in `operands`."""
    attributes: Attributes
    """Their defaults, or REQUIRED."""
    shape_rule: ShapeRule
    dtype_rule: DtypeRule
    reference: Reference

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    def each(self, count: int) -> tuple[Operand, ...]:
        """What each of `count` operands is."""
        least = sum(not operand.optional for operand in self.operands)
        if count < least or (count > len(self.operands) and not self.variadic):
            names = ", ".join(operand.name for operand in self.operands)
            raise TypeError(f"{self.name} takes ({names}), not {count} operands")
        return (self.operands + self.operands[-1:] * (count - len(self.operands)))[:count]

    def roles(self, count: int) -> list[Role]:
        """The role of each of `count` operands."""
        return [operand.role for operand in self.each(count)]

    def bind(self, given: Attributes) -> dict[str, Any]:
        """The attributes with defaults filled in and lists made tuples."""
        if unknown := given.keys() - self.attributes.keys():
            known = ", ".join(self.attributes) or "none"
            raise TypeError(
                f"{self.name} has no attribute {list_of(sorted(unknown))}: it has {known}"
            )
        bound = {**self.attributes, **given}
        if missing := [name for name, value in bound.items() if value is REQUIRED]:
            raise TypeError(f"{self.name} needs {list_of(missing)}")
        if "dtype" in bound:
            bound["dtype"] = dt.parse(bound["dtype"])
        return {name: _frozen(value) for name, value in bound.items()}

    def infer(self, specs: Sequence[Spec | None], given: Attributes) -> tuple[Spec, ...]:
        """Shapes and dtypes of the results; raises what is wrong with the operands."""
        attributes = self.bind(given)
        for spec, operand in zip(specs, self.each(len(specs)), strict=True):
            if spec is None and not operand.optional:
                raise TypeError(f"{self.name} needs {operand.name}: it may not be None")
        try:
            dtypes = self.dtype_rule(self._promoted(specs), attributes)
            shapes = self.shape_rule([spec and spec.shape for spec in specs], attributes)
        except (ShapeError, DtypeError) as error:
            operands = ", ".join(str(spec) for spec in specs)
            raise type(error)(f"{self.name}({operands}): {error}") from None
        types = dtypes if isinstance(dtypes, tuple) else (dtypes,)
        # Several results have one shape, unless the rule gives a list of them.
        each = shapes if isinstance(shapes, list) else [shapes] * len(types)
        return tuple(map(Spec, each, types))

    def _promoted(self, specs: Sequence[Spec | None]) -> Dtype:
        values = []
        for spec, operand in zip(specs, self.each(len(specs)), strict=True):
            if spec is not None:
                operand.check(spec.dtype)
                if operand.role in (Role.VALUE, Role.CACHE):
                    values.append(spec.dtype)
        return reduce(dt.promote, values, values[0] if values else dt.bool_)

    def __call__(
        self, inputs: Sequence[NDArray[Any] | None], given: Attributes
    ) -> tuple[NDArray[Any], ...]:
        """The reference: values meet in one type, halves are computed in float32, rounded once."""
        specs = [None if x is None else Spec(x.shape, dt.parse(x.dtype)) for x in inputs]
        outputs = self.infer(specs, given)
        roles = self.roles(len(inputs))
        working = _working(self._promoted(specs), outputs[0].dtype).numpy
        arrays = [
            x.astype(working, copy=False) if x is not None and role is Role.VALUE else x
            for x, role in zip(inputs, roles, strict=True)
        ]
        with np.errstate(all="ignore"):
            results = self.reference(*arrays, **self.bind(given))
            if not isinstance(results, tuple):
                results = (results,)
            return tuple(
                np.asarray(result).astype(spec.dtype.numpy, copy=False)
                for result, spec in zip(results, outputs, strict=True)
            )


def _frozen(value: Any) -> Any:
    """Attributes are hashable, so that a graph can compare operations."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _working(promoted: Dtype, output: Dtype) -> Dtype:
    wide = output if output.is_float and not promoted.is_float else promoted
    return dt.float32 if wide in (dt.float16, dt.bfloat16) else wide


TABLE: dict[str, Op] = {}


def register(
    name: str, family: OpFamily, shape: ShapeRule, dtype: DtypeRule, reference: Reference
) -> None:
    """Add a row to the table."""
    operands: list[Operand] = []
    attributes: dict[str, Any] = {}
    variadic = False
    for parameter in inspect.signature(reference).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            attributes[parameter.name] = parameter.default
            continue
        variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        role = _ROLES.get(parameter.name, Role.VALUE)
        operands.append(Operand(parameter.name, role, parameter.default is None))
    if name in TABLE:
        raise ValueError(f"operation {name} is registered twice")
    TABLE[name] = Op(name, family, tuple(operands), variadic, attributes, shape, dtype, reference)


def op(family: OpFamily, shape: ShapeRule, dtype: DtypeRule) -> Callable[[Reference], Reference]:
    """Register the decorated function under its own name."""

    def decorate(reference: Reference) -> Reference:
        # A trailing underscore keeps Python's own sum, any and all usable beside ours.
        register(reference.__name__.rstrip("_"), family, shape, dtype, reference)
        return reference

    return decorate
