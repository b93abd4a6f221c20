"""The operation table, from which devices, graphs, the API and the tests take the operations.

An operation is one registered numpy function. Its positional parameters are the operands (optional
if the default is None) and its keyword-only parameters the attributes. Its docstring becomes that
of the method and function of the same name. Names follow the Python array API standard where the
standard has the operation.

An operand's name also decides its role: `condition` is bool; `indices`, `positions` and `lengths`
are integers; `mask`, `factors`, `rows` and `sinks` are floating and keep their dtype; `codes`,
`scales` and `offsets` are the stored arrays of quantized values, `planes` those of video frames,
and `key_codes`, `value_codes` and `cache_codes` are blocks of bytes. All other operands are values
and are promoted to one dtype.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape, list_of, representable
from lbrx.entry_points import Registry
from lbrx.errors import DtypeError, ShapeError

if TYPE_CHECKING:
    from lbrx.ops.vjp import NotDifferentiable, Vjp

NumpyArray = NDArray[Any]
Attributes = Mapping[str, Any]
ShapeRule = Callable[[Sequence[Shape | None], Attributes], "Shape | list[Shape]"]
DtypeRule = Callable[[Dtype, Attributes], "Dtype | tuple[Dtype, ...]"]
Reference = Callable[..., Any]
REQUIRED = inspect.Parameter.empty


class OpFamily(StrEnum):
    """Groups of operations that are scheduled and documented alike."""

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
    CUSTOM = "custom"
    OUTSIDE = "outside"
    """Operations of other distributions."""


class Role(StrEnum):
    """How an operand is used, which decides its dtype."""

    VALUE = "value"
    CONDITION = "condition"
    INDICES = "indices"
    FLOATING = "floating"
    """Floating, with a dtype that is not promoted and does not affect the result's dtype."""
    CACHE = "cache"
    """Memory that the operation may write; it decides the result's dtype and is not converted."""
    STORED = "stored"
    """An array of quantized values or of video, with the dtype that their format defines."""


_ROLES = {
    "condition": Role.CONDITION,
    "indices": Role.INDICES,
    "positions": Role.INDICES,
    "lengths": Role.INDICES,
    "mask": Role.FLOATING,
    "factors": Role.FLOATING,
    "rows": Role.FLOATING,
    "sinks": Role.FLOATING,
    "cache": Role.CACHE,
    "cache_codes": Role.CACHE,
    "codes": Role.STORED,
    "key_codes": Role.STORED,
    "value_codes": Role.STORED,
    "scales": Role.STORED,
    "offsets": Role.STORED,
    "planes": Role.STORED,
}


class Spec(NamedTuple):
    """Shape and dtype of a tensor, known before it is computed. Prints as `float32[2, 3]`."""

    shape: Shape
    dtype: Dtype

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Operand(NamedTuple):
    """One operand of an operation, from a parameter of its reference."""

    name: str
    role: Role
    optional: bool

    def check(self, dtype: Dtype) -> None:
        """Raise DtypeError for a dtype that the role does not allow."""
        if self.role is Role.CONDITION and dtype is not dt.bool_:
            raise DtypeError(f"the {self.name} is {dtype}: compare it, or cast it to bool")
        if self.role is Role.INDICES and not dtype.is_integer:
            raise DtypeError(f"the {self.name} are {dtype}: cast them to an integer dtype")
        if self.role is Role.FLOATING and not dtype.is_float:
            added = "it is added to the scores: cast it to a floating dtype, or to bool"
            remedy = added if self.name == "mask" else "cast to a floating dtype"
            raise DtypeError(f"{self.name} cannot be {dtype}: {remedy}")
        if self.name.endswith("_codes") and dtype is not dt.uint8:
            raise DtypeError(f"{self.name} are {dtype}: give quantized blocks, which are uint8")


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """One operation of the table. Calling it computes the numpy reference. There is one object for
    each, so `is` compares them, and graphs hash them."""

    name: str
    family: OpFamily
    operands: tuple[Operand, ...]
    variadic: bool
    """Whether the last entry of `operands` stands for any number of operands."""
    attributes: Attributes
    """Names of the attributes with their defaults, or REQUIRED."""
    shape_rule: ShapeRule
    dtype_rule: DtypeRule
    reference: Reference
    metal: str | None = None
    """The MSL function of an elementwise operation that brings its own."""

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    @property
    def vjp(self) -> Vjp | NotDifferentiable | None:
        """How gradients pass through it (`lbrx.ops.vjp`). Those of the built-in operations are set
        when `lbrx.gradients` is imported."""
        return VJPS.get(self.name)

    @cached_property
    def least(self) -> int:
        """The smallest number of operands."""
        return sum(not operand.optional for operand in self.operands)

    @cached_property
    def most(self) -> int:
        """The largest number of operands."""
        return sys.maxsize if self.variadic else len(self.operands)

    def check_count(self, count: int) -> None:
        """Raise TypeError if a call cannot have this number of operands."""
        if not self.least <= count <= self.most:
            names = ", ".join(operand.name for operand in self.operands)
            raise TypeError(f"{self.name} takes ({names}), not {count} operands")

    def operands_of(self, count: int) -> tuple[Operand, ...]:
        """The description of each operand in a call with `count` operands."""
        self.check_count(count)
        return (self.operands + self.operands[-1:] * (count - len(self.operands)))[:count]

    def roles(self, count: int) -> list[Role]:
        """The role of each operand in a call with `count` operands."""
        return [operand.role for operand in self.operands_of(count)]

    @cached_property
    def defaults(self) -> Attributes | None:
        """The attributes of a call that gives none; None if it has to."""
        needed = any(value is REQUIRED for value in self.attributes.values())
        return None if needed else MappingProxyType(self.bind({}))

    def bind(self, given: Attributes) -> dict[str, Any]:
        """The attributes with defaults, dtypes parsed and lists turned into tuples.

        Unknown and missing attributes raise TypeError.
        """
        if not given and not self.attributes:
            return {}
        bound = {**self.attributes, **given}
        if len(bound) > len(self.attributes):
            unknown = sorted(given.keys() - self.attributes.keys())
            known = ", ".join(self.attributes) or "none"
            raise TypeError(f"{self.name} has no attribute {list_of(unknown)}: it has {known}")
        for name, value in bound.items():
            if value is REQUIRED:
                missing = [each for each, value in bound.items() if value is REQUIRED]
                raise TypeError(f"{self.name} needs {list_of(missing)}: give a value by name")
            if isinstance(value, (list, tuple)):
                bound[name] = _frozen(value)
        if "dtype" in bound:
            bound["dtype"] = dt.parse(bound["dtype"])
        return bound

    def infer(self, specs: Sequence[Spec | None], given: Attributes) -> tuple[Spec, ...]:
        """Shapes and dtypes of the results.

        Operands that do not fit raise TypeError, ShapeError or DtypeError, with the operands named.
        """
        attributes = self.bind(given)
        for spec, operand in zip(specs, self.operands_of(len(specs)), strict=True):
            if spec is None and not operand.optional:
                raise TypeError(f"{self.name} needs {operand.name}: give a tensor, not None")
        try:
            dtypes = self.dtype_rule(self._promoted(specs), attributes)
            shapes = self.shape_rule([spec and spec.shape for spec in specs], attributes)
        except (ShapeError, DtypeError) as error:
            operands = ", ".join(str(spec) for spec in specs)
            raise type(error)(f"{self.name}({operands}): {error}") from None
        types = dtypes if isinstance(dtypes, tuple) else (dtypes,)
        # All results have the same shape, unless the rule returns a list of shapes.
        each = shapes if isinstance(shapes, list) else [shapes] * len(types)
        return tuple(map(Spec, map(representable, each), types))

    def _promoted(self, specs: Sequence[Spec | None]) -> Dtype:
        values = []
        for spec, operand in zip(specs, self.operands_of(len(specs)), strict=True):
            if spec is not None:
                operand.check(spec.dtype)
                if operand.role in (Role.VALUE, Role.CACHE):
                    values.append(spec.dtype)
        return reduce(dt.promote, values, values[0] if values else dt.bool_)

    def __call__(
        self, inputs: Sequence[NDArray[Any] | None], given: Attributes
    ) -> tuple[NDArray[Any], ...]:
        """Compute the reference: values are promoted to one dtype, float16 and bfloat16 computed
        in float32, and results rounded once."""
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
    """Lists as tuples: attributes must be hashable, so that a graph can compare operations."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _working(promoted: Dtype, output: Dtype) -> Dtype:
    """The dtype in which the reference computes."""
    wide = output if output.is_float and not promoted.is_float else promoted
    return dt.float32 if wide in (dt.float16, dt.bfloat16) else wide


TABLE: Registry[Op] = Registry("lbrx.operations")
VJPS: dict[str, Vjp | NotDifferentiable] = {}
"""The column `vjp`, by the name of the operation."""


def register(
    name: str,
    family: OpFamily,
    shape: ShapeRule,
    dtype: DtypeRule,
    reference: Reference,
    metal: str | None = None,
) -> None:
    """Add an operation to the table; a name that it already has raises ValueError.

    The reference's docstring documents the operation. `metal` is for elementwise operations that
    are not in `kernels/elementwise/elementwise.h`: an MSL function of the same name, which takes
    the operands and the numeric attributes. Halves are given to it as float. Without it, and
    without a runner of `lbrx.kernels`, metal computes the reference on the host.
    """
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
        raise ValueError(f"operation {name} is already registered: give another name")
    TABLE[name] = Op(
        name, family, tuple(operands), variadic, attributes, shape, dtype, reference, metal
    )


def op(
    family: OpFamily, shape: ShapeRule, dtype: DtypeRule, metal: str | None = None
) -> Callable[[Reference], Reference]:
    """A decorator that registers a function as the operation of the same name."""

    def decorate(reference: Reference) -> Reference:
        # References named sum_ and any_ do not hide the built-in functions.
        register(reference.__name__.rstrip("_"), family, shape, dtype, reference, metal)
        return reference

    return decorate
