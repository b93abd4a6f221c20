"""A MIL program as plain records: types, values, operations, blocks, functions.

Nothing here reads a file or computes: `softcoreml.format` makes these records from protobuf or from
MIL text, and `softcoreml.interpreter` runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: Mapping[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int4": np.dtype(np.int8),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint1": np.dtype(np.uint8),
    "uint2": np.dtype(np.uint8),
    "uint3": np.dtype(np.uint8),
    "uint4": np.dtype(np.uint8),
    "uint6": np.dtype(np.uint8),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
}
"""NumPy's type for each MIL type of numbers; values narrower than a byte are held one to a byte."""

SUB_BYTE_BITS: Mapping[str, int] = {
    "int4": 4,
    "uint1": 1,
    "uint2": 2,
    "uint3": 3,
    "uint4": 4,
    "uint6": 6,
}
"""The types that are stored packed, and the bits of one value."""


OPSETS: Mapping[str, str] = {
    "CoreML5": "ios15",
    "CoreML6": "ios16",
    "CoreML7": "ios17",
    "CoreML8": "ios18",
    "CoreML9": "ios26",
}
"""The opsets of the file format by the names that MIL's text has for them."""

OLD_OPSET_NAMES: Mapping[str, str] = {"ios19": "ios26"}
"""Names from before the version was renumbered, which compiled models may still have."""


@dataclass(frozen=True)
class TensorType:
    """`dtype` as MIL's text names it ("fp16"); `dims` has None for each unknown dimension.

    `dims` itself is None where even the rank is unknown. A scalar has no dimensions.
    """

    dtype: str
    dims: tuple[int | None, ...] | None = ()

    @property
    def count(self) -> int | None:
        """Number of elements, or None where a dimension is unknown."""
        if self.dims is None:
            return None
        known = [size for size in self.dims if size is not None]
        return prod(known) if len(known) == len(self.dims) else None

    @property
    def nbytes(self) -> int | None:
        """Bytes as the tensor is stored in a file, or None where a dimension is unknown."""
        if self.count is None or self.dtype == "string":
            return None
        if bits := SUB_BYTE_BITS.get(self.dtype):
            return (self.count * bits + 7) // 8
        return self.count * DTYPES[self.dtype].itemsize

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape is of this type."""
        if self.dims is None:
            return True
        return len(shape) == len(self.dims) and all(
            size is None or size == given for size, given in zip(self.dims, shape, strict=True)
        )

    def __str__(self) -> str:
        if self.dims == ():
            return self.dtype
        if self.dims is None:
            return f"tensor<{self.dtype}, ?>"
        return (
            f"tensor<{self.dtype}, [{', '.join('?' if d is None else str(d) for d in self.dims)}]>"
        )


@dataclass(frozen=True)
class ListType:
    """A list of tensors; `length` is None for a list that grows."""

    element: ValueType
    length: int | None

    def __str__(self) -> str:
        return f"list<{self.element}, {'?' if self.length is None else self.length}>"


@dataclass(frozen=True)
class TupleType:
    """A fixed sequence of types."""

    elements: tuple[ValueType, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


@dataclass(frozen=True)
class DictionaryType:
    """A dictionary, which only attributes and classifiers have."""

    key: ValueType
    value: ValueType

    def __str__(self) -> str:
        return f"dict<{self.key}, {self.value}>"


@dataclass(frozen=True)
class StateType:
    """A tensor that lives from one prediction to the next."""

    wrapped: TensorType

    def __str__(self) -> str:
        return f"state<{self.wrapped}>"


ValueType = TensorType | ListType | TupleType | DictionaryType | StateType


@dataclass(frozen=True)
class Blob:
    """A place in a weight file: `offset` is that of the record before the data."""

    file: str
    offset: int


@dataclass(frozen=True, eq=False)
class Value:
    """A constant: an array, a `str`, a `Blob`, a tuple of values, or a dictionary of values."""

    type: ValueType
    data: Any


@dataclass(frozen=True)
class NamedType:
    """A parameter or a result."""

    name: str
    type: ValueType


Binding = str | Value
"""What an operation is given: the name of an earlier result, or a constant in place."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation. An input of several values (`values` of concat) has several bindings."""

    type: str
    inputs: Mapping[str, tuple[Binding, ...]]
    outputs: tuple[NamedType, ...]
    blocks: tuple[Block, ...] = ()
    attributes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The operation's own name, else that of its first result."""
        given = self.attributes.get("name")
        if given is not None and isinstance(given.data, str):
            return given.data
        return self.outputs[0].name if self.outputs else self.type


@dataclass(frozen=True, eq=False)
class Block:
    """Operations in the order of their execution, and the names of their results."""

    inputs: tuple[NamedType, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, eq=False)
class Function:
    """A function; `blocks` are its specializations by opset, of which `opset` is the active one."""

    inputs: tuple[NamedType, ...]
    opset: str
    blocks: Mapping[str, Block]
    attributes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def block(self) -> Block:
        return self.blocks[self.opset]


@dataclass(frozen=True, eq=False)
class Program:
    """All functions of a model."""

    version: int
    functions: Mapping[str, Function]
    attributes: Mapping[str, Value] = field(default_factory=dict)


def walk(block: Block) -> Iterator[Operation]:
    """Every operation of a block, and after each the operations of its nested blocks."""
    for operation in block.operations:
        yield operation
        for nested in operation.blocks:
            yield from walk(nested)
