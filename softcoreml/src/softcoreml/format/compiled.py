"""Compiled models (`.mlmodelc`): a folder with the program as text.

A folder that softcoreml writes holds

- `model.mil`: the program as text,
- `weights/`: the weight files, hard links to those of the source or, failing that, copies,
- `softcoreml.description`: the message ModelDescription of the source, byte for byte,
- `metadata.json`: the specification version and a count of the operations.

Apple's folders have `model.mil`, `weights/` and `metadata.json` too; their features are taken from
`metadata.json`, and from the types of the function where it does not say.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from softcoreml import mil
from softcoreml.description import (
    ArrayFeature,
    Feature,
    FeatureType,
    FunctionDescription,
    ImageFeature,
    ModelDescription,
    ScalarFeature,
    StateFeature,
)
from softcoreml.errors import ModelError, UnreadableModel
from softcoreml.format import description_message, schema
from softcoreml.format.package import NEWEST_SPECIFICATION, ModelFile, mapped
from softcoreml.format.text_parser import parse
from softcoreml.format.text_writer import write
from softcoreml.format.weights import FolderWeights, relative_path
from softcoreml.format.wire import decode

_DESCRIPTION = "softcoreml.description"
_MAX_METADATA = 16 << 20
_ARRAY_TYPES = {
    "Float16": "fp16",
    "Float32": "fp32",
    "Double": "fp64",
    "Int32": "int32",
    "Int8": "int8",
}
_COLORS = {
    "RGB": "RGB",
    "BGR": "BGR",
    "Grayscale": "GRAYSCALE",
    "Grayscale16Half": "GRAYSCALE_FLOAT16",
}


def write_compiled(file: ModelFile, source: Path, folder: Path) -> None:
    """Write the compiled form of a model; `source` is the folder of its weights."""
    folder.mkdir(parents=True)
    (folder / "model.mil").write_text(write(file.program), "utf-8")
    (folder / _DESCRIPTION).write_bytes(file.description_bytes)
    counts = Counter(
        operation.type
        for function in file.program.functions.values()
        for operation in mil.walk(function.block)
    )
    metadata = {
        "generatedBy": "softcoreml",
        "specificationVersion": file.specification,
        "mlProgramOperationTypeHistogram": dict(sorted(counts.items())),
    }
    (folder / "metadata.json").write_text(json.dumps([metadata], indent=2), "utf-8")
    for name in sorted(_blob_files(file.program)):
        relative = relative_path(name)
        _link(source / relative, folder / relative)


def _link(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), destination)
    except OSError:
        try:
            shutil.copyfile(source, destination)
        except OSError as problem:
            raise UnreadableModel(f"cannot read the weights {source}: {problem.strerror}") from None


def _blob_files(program: mil.Program) -> set[str]:
    found = set()
    for function in program.functions.values():
        for operation in mil.walk(function.block):
            for one in (*operation.attributes.values(), *chain(*operation.inputs.values())):
                if isinstance(one, mil.Value) and isinstance(one.data, mil.Blob):
                    found.add(one.data.file)
    return found


def read_compiled(folder: Path) -> ModelFile:
    """Read a compiled model, of softcoreml or of Apple's compiler.

    Raises:
        ModelError: it has no program as text, or is malformed.
    """
    text = folder / "model.mil"
    if not text.exists():
        raise ModelError(f"{folder} has no model.mil: softcoreml runs compiled ML programs only")
    try:
        program = parse(text.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise UnreadableModel(f"cannot read {text}: {problem}") from None
    metadata = _metadata(folder / "metadata.json")
    if (folder / _DESCRIPTION).exists():
        data = bytes(mapped(folder / _DESCRIPTION))
        description = description_message.description(decode(memoryview(data), schema.DESCRIPTION))
    else:
        data, description = b"", _described(program, metadata)
    version = metadata.get("specificationVersion", NEWEST_SPECIFICATION)
    return ModelFile(
        specification=version if isinstance(version, int) else NEWEST_SPECIFICATION,
        description=description,
        program=program,
        weights=FolderWeights(folder),
        description_bytes=data,
    )


def _metadata(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        if path.stat().st_size > _MAX_METADATA:
            raise ModelError(f"{path} is larger than {_MAX_METADATA} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelError(f"{path} is not JSON: {problem}") from None
    first = found[0] if isinstance(found, list) and found else found
    return first if isinstance(first, dict) else {}


def _described(program: mil.Program, metadata: dict[str, Any]) -> ModelDescription:
    """The description of a model of Apple's compiler, whose own file is not documented."""
    schemas = {
        one.get("name"): one for one in _dictionaries(metadata.get("functions")) if "name" in one
    }
    functions = {
        name: _function(name, function, schemas.get(name, metadata))
        for name, function in program.functions.items()
    }
    default = metadata.get("defaultFunctionName")
    first = "main" if "main" in functions else next(iter(functions))
    return ModelDescription(
        functions=functions,
        default_function=default if default in functions else first,
        summary=str(metadata.get("shortDescription", "")),
        version=str(metadata.get("version", "")),
        author=str(metadata.get("author", "")),
        license=str(metadata.get("license", "")),
    )


def _function(name: str, function: mil.Function, metadata: dict[str, Any]) -> FunctionDescription:
    said = {
        key: {one.get("name"): one for one in _dictionaries(metadata.get(f"{key}Schema"))}
        for key in ("input", "output", "state")
    }
    types = {
        out.name: out.type for operation in function.block.operations for out in operation.outputs
    }
    types |= {one.name: one.type for one in function.inputs}
    inputs, states = [], []
    shapes = _flexible_shapes(function)
    for one in function.inputs:
        if isinstance(one.type, mil.StateType):
            array = _array(one.type.wrapped, said["state"].get(one.name, {}), one.name)
            states.append(Feature(one.name, StateFeature(array)))
        else:
            known = shapes.get(one.name, {}) | said["input"].get(one.name, {})
            inputs.append(_feature(one.name, one.type, known))
    outputs = [
        _feature(each, types[each], said["output"].get(each, {}))
        for each in function.block.outputs
        if each in types
    ]
    return FunctionDescription(name, tuple(inputs), tuple(outputs), tuple(states))


def _flexible_shapes(function: mil.Function) -> dict[str, dict[str, Any]]:
    """What the attribute FlexibleShapeInformation says of inputs, by the keys of metadata.json."""
    attribute = function.attributes.get("FlexibleShapeInformation")
    found: dict[str, dict[str, Any]] = {}
    for part in attribute.data if attribute is not None else ():
        if not isinstance(part.data, tuple) or len(part.data) != 2:
            raise ModelError("the attribute FlexibleShapeInformation is not a list of pairs")
        title, content = part.data[0].data, part.data[1].data
        if title == "DefaultShapes":
            for name, shape in content.items():
                found.setdefault(name, {})["shape"] = shape.data.tolist()
        elif title == "RangeDims":
            for name, ranges in content.items():
                limits = [one.data.tolist() for one in ranges.data]
                found.setdefault(name, {})["shapeRange"] = limits
        elif title == "EnumeratedShapes":
            for shapes in content.values():
                for name, shape in shapes.data.items():
                    several = found.setdefault(name, {}).setdefault("enumeratedShapes", [])
                    several.append(shape.data.tolist())
    return found


def _dictionaries(found: Any) -> Iterator[dict[str, Any]]:
    return (one for one in found if isinstance(one, dict)) if isinstance(found, list) else iter(())


def _feature(name: str, kind: mil.ValueType, said: dict[str, Any]) -> Feature:
    optional = str(said.get("isOptional", "0")) == "1"
    summary = str(said.get("shortDescription", ""))
    return Feature(name, _feature_type(name, kind, said), optional, summary)


def _feature_type(name: str, kind: mil.ValueType, said: dict[str, Any]) -> FeatureType:
    if said.get("type") == "Image":
        return ImageFeature(
            width=_number(said.get("width"), name),
            height=_number(said.get("height"), name),
            color=_COLORS.get(str(said.get("colorspace")), "RGB"),
        )
    if isinstance(kind, mil.TensorType) and kind.dtype == "string":
        return ScalarFeature("string")
    if not isinstance(kind, mil.TensorType):
        raise ModelError(f"feature {name!r} has the type {kind}, which softcoreml does not have")
    return _array(kind, said, name)


def _number(text: Any, name: str) -> int:
    if not str(text).isdecimal():
        raise ModelError(f"metadata.json: {text!r} is not a size of {name!r}")
    return int(text)


def _array(kind: mil.TensorType, said: dict[str, Any], name: str) -> ArrayFeature:
    dtype = _ARRAY_TYPES.get(str(said.get("dataType")), kind.dtype)
    if dtype not in _ARRAY_TYPES.values():
        dtype = "int32" if dtype.startswith(("int", "uint", "bool")) else "fp32"
    dims = kind.dims or ()
    known = tuple(size for size in dims if size is not None)
    shape = tuple(_sizes(said.get("shape"), name)) or (known if len(known) == len(dims) else ())
    ranges = tuple((low, None if high < 0 else high) for low, high in _pairs(said, name))
    shapes = tuple(tuple(one) for one in _lists(said.get("enumeratedShapes"), name))
    return ArrayFeature(shape, dtype, shapes, () if shapes else ranges)


def _sizes(text: Any, name: str) -> list[int]:
    found = _json(text, name)
    if not isinstance(found, list) or not all(isinstance(size, int) for size in found):
        raise ModelError(f"metadata.json: {text!r} is not a shape of {name!r}")
    return found


def _lists(text: Any, name: str) -> list[list[int]]:
    found = _json(text, name)
    if not isinstance(found, list) or not all(isinstance(one, list) for one in found):
        raise ModelError(f"metadata.json: {text!r} are not shapes of {name!r}")
    return found


def _pairs(said: dict[str, Any], name: str) -> list[tuple[int, int]]:
    found = _lists(said.get("shapeRange"), name)
    if any(len(one) != 2 for one in found):
        raise ModelError(f"metadata.json: the range of {name!r} is not a list of pairs")
    return [(low, high) for low, high in found]


def _json(text: Any, name: str) -> Any:
    if text in (None, ""):
        return []
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        raise ModelError(f"metadata.json: {text!r} of {name!r} is not a list") from None
