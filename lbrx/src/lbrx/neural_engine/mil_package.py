"""Writes functions of MIL operations as an `.mlpackage`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lbrx.errors import LbrxError
from lbrx.neural_engine.binding import coremltools

SPECIFICATION = 9  # macOS 15 and iOS 18: states and several functions


def opset() -> Any:
    """The opset of programs for the Neural Engine: the oldest with states and attention."""
    return coremltools().target.iOS18


def build_function(inputs: Mapping[str, Any], body: Callable[..., Any]) -> Any:
    """A MIL function with these placeholders of the builder as its inputs. `body` is called with
    their variables in order, and returns the outputs."""
    coremltools()
    made = import_module("coremltools.converters.mil.mil").Function(inputs, opset_version=opset())
    with made:
        result = body(*(made.inputs[name] for name in inputs))
        made.set_outputs(list(result) if isinstance(result, tuple) else [result])
    return made


def check_path(path: Path) -> None:
    """Raise LbrxError for a path that does not end in .mlpackage."""
    if path.suffix != ".mlpackage":
        raise LbrxError(f"{path} is not a path of a package: give a name that ends in .mlpackage")


def write_package(
    path: Path,
    functions: Mapping[str, Any],
    *,
    summary: str = "",
    features: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write MIL functions as one package, the first of them as its default.

    `features` describes inputs, outputs and states by name; `metadata` are strings that a program
    can read from the model's description. A package that exists is replaced when the new one is
    complete. Raises LbrxError for a path that does not end in .mlpackage.
    """
    check_path(path)
    program = import_module("coremltools.converters.mil.mil").Program()
    for name, function in functions.items():
        program.add_function(name, function)
    program.default_function_name = next(iter(functions))
    program.export_as_multifunction = True
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.stem}.{os.getpid()}.mlpackage")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        # The functions are in their final form: coremltools' passes would take most of the time.
        with TemporaryDirectory(dir=path.parent) as weights:
            load = import_module("coremltools.converters.mil.backend.mil.load").load
            model = load(program, weights, specification_version=SPECIFICATION)
            _describe(model.description, summary, features or {}, metadata or {})
            coremltools().models.utils.save_spec(model, str(unfinished), weights_dir=weights)
        shutil.rmtree(path, ignore_errors=True)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _describe(
    description: Any, summary: str, features: Mapping[str, str], metadata: Mapping[str, str]
) -> None:
    """Put texts into a model's description, a message of Model.proto."""
    description.metadata.shortDescription = summary
    for key, text in metadata.items():
        description.metadata.userDefined[key] = text
    for function in description.functions:
        for feature in (*function.input, *function.output, *function.state):
            feature.shortDescription = features.get(feature.name, "")
