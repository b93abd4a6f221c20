"""A program from its decoded protobuf message."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from softcoreml import mil
from softcoreml.errors import ModelError
from softcoreml.format.packing import unpack
from softcoreml.format.schema import DTYPE_NAMES
from softcoreml.format.wire import Decoded

MAX_RANK = 64


def program(message: Decoded) -> mil.Program:
    """The records of a message Program."""
    functions = {}
    for entry in message.get("functions", []):
        name = entry.get("key", "")
        if name in functions:
            raise ModelError(f"the program has two functions {name!r}")
        functions[name] = _function(entry.get("value", {}), name)
    if not functions:
        raise ModelError("the program has no function")
    return mil.Program(message.get("version", 0), functions, _attributes(message))


def _function(message: Decoded, name: str) -> mil.Function:
    opset = message.get("opset", "")
    blocks = {
        entry.get("key", ""): _block(entry.get("value", {}))
        for entry in message.get("block_specializations", [])
    }
    if opset not in blocks:
        known = ", ".join(blocks) or "none"
        raise ModelError(f"function {name!r} has no block for its opset {opset!r}, only {known}")
    inputs = tuple(_named(one) for one in message.get("inputs", []))
    return mil.Function(inputs, opset, blocks, _attributes(message))


def _block(message: Decoded) -> mil.Block:
    return mil.Block(
        inputs=tuple(_named(one) for one in message.get("inputs", [])),
        outputs=tuple(message.get("outputs", [])),
        operations=tuple(_operation(one) for one in message.get("operations", [])),
    )


def _operation(message: Decoded) -> mil.Operation:
    inputs = {}
    for entry in message.get("inputs", []):
        bindings = entry.get("value", {}).get("arguments", [])
        inputs[entry.get("key", "")] = tuple(_binding(one) for one in bindings)
    return mil.Operation(
        type=message.get("type", ""),
        inputs=inputs,
        outputs=tuple(_named(one) for one in message.get("outputs", [])),
        blocks=tuple(_block(one) for one in message.get("blocks", [])),
        attributes=_attributes(message),
    )


def _binding(message: Decoded) -> mil.Binding:
    if "value" in message:
        return _value(message["value"])
    name: str = message.get("name", "")
    return name


def _attributes(message: Decoded) -> dict[str, mil.Value]:
    return {
        entry.get("key", ""): _value(entry.get("value", {}))
        for entry in message.get("attributes", [])
    }


def _named(message: Decoded) -> mil.NamedType:
    return mil.NamedType(message.get("name", ""), _type(message.get("type", {})))


def _type(message: Decoded) -> mil.ValueType:
    if "tensorType" in message:
        return _tensor_type(message["tensorType"])
    if "stateType" in message:
        wrapped = _type(message["stateType"].get("wrappedType", {}))
        if not isinstance(wrapped, mil.TensorType):
            raise ModelError(f"a state of type {wrapped}: only a tensor can be a state")
        return mil.StateType(wrapped)
    if "listType" in message:
        one = message["listType"]
        return mil.ListType(_type(one.get("type", {})), _dimension(one.get("length", {})))
    if "tupleType" in message:
        return mil.TupleType(tuple(_type(one) for one in message["tupleType"].get("types", [])))
    if "dictionaryType" in message:
        one = message["dictionaryType"]
        return mil.DictionaryType(_type(one.get("keyType", {})), _type(one.get("valueType", {})))
    raise ModelError("a value has no type")


def _tensor_type(message: Decoded) -> mil.TensorType:
    code = message.get("dataType", 0)
    if code not in DTYPE_NAMES:
        raise ModelError(f"a tensor has the unknown data type {code}")
    rank, sizes = message.get("rank", 0), message.get("dimensions", [])
    variadic = any(one.get("unknown", {}).get("variadic") for one in sizes)
    if rank < 0 or variadic:
        return mil.TensorType(DTYPE_NAMES[code], None)
    if rank != len(sizes) or rank > MAX_RANK:
        raise ModelError(f"a tensor of rank {rank} has {len(sizes)} dimensions")
    return mil.TensorType(DTYPE_NAMES[code], tuple(_dimension(one) for one in sizes))


def _dimension(message: Decoded) -> int | None:
    if "constant" not in message:
        return None
    size: int = message["constant"].get("size", 0)
    if size >= 1 << 48:
        raise ModelError(f"a dimension of {size} elements is larger than any memory")
    return size


def _value(message: Decoded) -> mil.Value:
    kind = _type(message.get("type", {}))
    if "blobFileValue" in message:
        blob = message["blobFileValue"]
        return mil.Value(kind, mil.Blob(blob.get("fileName", ""), blob.get("offset", 0)))
    given = message.get("immediateValue", {})
    if isinstance(kind, mil.TensorType):
        return mil.Value(kind, tensor(kind, given.get("tensor", {})))
    for key in ("tuple", "list"):
        if key in given:
            return mil.Value(kind, tuple(_value(one) for one in given[key].get("values", [])))
    if isinstance(kind, mil.DictionaryType):
        pairs = given.get("dictionary", {}).get("values", [])
        return mil.Value(kind, {_key(one): _value(one.get("value", {})) for one in pairs})
    return mil.Value(kind, ())


def _key(pair: Decoded) -> Any:
    """A key of a dictionary: a string or a number."""
    data = _value(pair.get("key", {})).data
    if isinstance(data, str):
        return data
    if isinstance(data, np.ndarray) and data.ndim == 0:
        return data.item()
    raise ModelError("a dictionary has a key that is neither a string nor a number")


def tensor(kind: mil.TensorType, message: Decoded) -> Any:
    """An immediate tensor: an array of the type's shape, or a str for a scalar string."""
    shape = kind.dims
    if shape is None or None in shape:
        raise ModelError(f"a constant of type {kind}, whose shape is not known")
    if kind.dtype == "string":
        return _strings(kind, message.get("strings", {}).get("values", []))
    dtype, count = mil.DTYPES[kind.dtype], prod(size or 0 for size in shape)
    if "bytes" in message:
        array = _from_bytes(kind, message["bytes"].get("values", memoryview(b"")), count)
    else:
        lists = ("floats", "ints", "bools", "longInts", "doubles")
        parts: list[Any] = next(
            (message[key].get("values", []) for key in lists if key in message), []
        )
        array = np.concatenate(parts) if parts else np.zeros(0, dtype)
        array = array.astype(dtype, copy=False)
    if len(array) != count:
        raise ModelError(f"a constant of type {kind} has {len(array)} elements")
    return array.reshape([size or 0 for size in shape])


def _strings(kind: mil.TensorType, values: list[str]) -> Any:
    if kind.count != len(values):
        raise ModelError(f"a constant of type {kind} has {len(values)} strings")
    if kind.dims == ():
        return values[0]
    return np.array(values, object).reshape([size or 0 for size in kind.dims or ()])


def _from_bytes(kind: mil.TensorType, data: memoryview, count: int) -> Any:
    if len(data) != kind.nbytes:
        raise ModelError(
            f"a constant of type {kind} has {len(data)} bytes instead of {kind.nbytes}"
        )
    if kind.dtype in mil.SUB_BYTE_BITS:
        return unpack(np.frombuffer(data, np.uint8), kind.dtype, count)
    return np.frombuffer(data, mil.DTYPES[kind.dtype])
