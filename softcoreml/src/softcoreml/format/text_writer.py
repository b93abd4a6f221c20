"""MIL as text, as the `model.mil` of a compiled model has it.

The form of nested blocks is this package's own, because Apple's is not documented:
`(inputs) { operations } -> (outputs)` for each, after the attributes of the operation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from softcoreml import mil


def write(program: mil.Program) -> str:
    """The text of a program, which `text_parser.parse` reads back."""
    return "".join(_program(program))


def _program(program: mil.Program) -> Iterator[str]:
    newest = any(
        one.opset in ("CoreML8", "CoreML9", "ios18", "ios26") for one in _functions(program)
    )
    yield f"program({'1.3' if newest else '1.0'})\n"
    if program.attributes:
        yield f"{_attributes(program.attributes)}\n"
    yield "{\n"
    for name, function in program.functions.items():
        opset = mil.OPSETS.get(function.opset, function.opset)
        yield f"    func {name}<{opset}>({_parameters(function.inputs)})"
        yield f" {_attributes(function.attributes)}" if function.attributes else ""
        yield from _body(function.block, " " * 8)
        yield ";\n"
    yield "}\n"


def _functions(program: mil.Program) -> list[mil.Function]:
    return list(program.functions.values())


def _body(block: mil.Block, indent: str) -> Iterator[str]:
    yield " {\n"
    for operation in block.operations:
        yield from _operation(operation, indent)
    yield f"{indent[4:]}}} -> ({', '.join(block.outputs)})"


def _parameters(parameters: tuple[mil.NamedType, ...]) -> str:
    return ", ".join(f"{one.type} {one.name}" for one in parameters)


def _operation(one: mil.Operation, indent: str) -> Iterator[str]:
    inputs = ", ".join(f"{name} = {_bindings(given)}" for name, given in one.inputs.items())
    results = f"{_parameters(one.outputs)} = " if one.outputs else ""
    yield f"{indent}{results}{one.type}({inputs}){_attributes(one.attributes)}"
    for block in one.blocks:
        yield f" ({_parameters(block.inputs)})"
        yield from _body(block, indent + "    ")
    yield ";\n"


def _bindings(given: tuple[mil.Binding, ...]) -> str:
    if len(given) == 1:
        return _binding(given[0])
    return f"({', '.join(map(_binding, given))})"


def _binding(given: mil.Binding) -> str:
    return given if isinstance(given, str) else value(given)


def _attributes(attributes: Mapping[str, mil.Value]) -> str:
    return f"[{', '.join(f'{name} = {value(one)}' for name, one in attributes.items())}]"


def value(one: mil.Value) -> str:
    """A typed constant: `tensor<int32, [2]>([1, 2])`."""
    return f"{one.type}({_literal(one)})"


def _literal(one: mil.Value) -> str:
    data = one.data
    if isinstance(data, mil.Blob):
        return f"BLOBFILE(path = string({_quoted(data.file)}), offset = uint64({data.offset}))"
    if isinstance(data, str):
        return _quoted(data)
    if isinstance(data, tuple):
        return f"({', '.join(map(_literal, data))})"
    if isinstance(data, dict):
        pairs = (f"{{{_key(key)}, {_literal(each)}}}" for key, each in data.items())
        return f"{{{', '.join(pairs)}}}"
    return _elements(data)


def _key(key: Any) -> str:
    return _quoted(key) if isinstance(key, str) else str(key)


def _elements(array: np.ndarray[Any, Any]) -> str:
    if array.ndim:
        return f"[{', '.join(map(_elements, array))}]"
    scalar = array.item() if array.dtype.kind != "V" else float(array.astype(np.float32))
    if isinstance(scalar, bool):
        return "true" if scalar else "false"
    if isinstance(scalar, str):
        return _quoted(scalar)
    return scalar.hex() if isinstance(scalar, float) else str(scalar)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
