"""MLModelStructure: a program as objects that can be looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softcoreml import mil
from softcoreml.api.foundation import url_path
from softcoreml.api.objects import Object, in_background
from softcoreml.format.package import ModelFile
from softcoreml.format.read import read_model


class MLModelStructureProgramValue(Object):
    """A constant in place."""


class MLModelStructureProgramValueType(Object):
    """The type of a value; Core ML shows nothing of it."""


class MLModelStructureProgramBinding(Object):
    """A name, or a constant in place."""

    _readonly = {"name": None, "value": None}  # noqa: RUF012


class MLModelStructureProgramArgument(Object):
    _readonly = {"bindings": []}  # noqa: RUF012


class MLModelStructureProgramNamedValueType(Object):
    _readonly = {"name": "", "type": None}  # noqa: RUF012


class MLModelStructureProgramOperation(Object):
    """One operation; `operation` (not of Core ML) is its record."""

    _readonly = {"operatorName": "", "inputs": {}, "outputs": [], "blocks": []}  # noqa: RUF012

    def __init__(self, operation: mil.Operation, opset: str) -> None:
        super().__init__(
            # Core ML names an operation with its opset, as in "ios17.conv".
            operatorName=operation.type
            if operation.type == "const"
            else f"{opset}.{operation.type}",
            inputs={name: _argument(given) for name, given in operation.inputs.items()},
            outputs=[_named(out) for out in operation.outputs],
            blocks=[MLModelStructureProgramBlock(block, opset) for block in operation.blocks],
        )
        self.operation = operation


class MLModelStructureProgramBlock(Object):
    _readonly = {"inputs": [], "outputNames": [], "operations": []}  # noqa: RUF012

    def __init__(self, block: mil.Block, opset: str) -> None:
        super().__init__(
            inputs=[_named(one) for one in block.inputs],
            outputNames=list(block.outputs),
            operations=[MLModelStructureProgramOperation(one, opset) for one in block.operations],
        )


class MLModelStructureProgramFunction(Object):
    _readonly = {"inputs": [], "block": None}  # noqa: RUF012

    def __init__(self, function: mil.Function) -> None:
        opset = mil.OPSETS.get(function.opset, function.opset)
        super().__init__(
            inputs=[_named(one) for one in function.inputs],
            block=MLModelStructureProgramBlock(function.block, opset),
        )


class MLModelStructureProgram(Object):
    _readonly = {"functions": {}}  # noqa: RUF012


class MLModelStructure(Object):
    """The structure of a model: only `program` is ever there."""

    _readonly = {"program": None, "neuralNetwork": None, "pipeline": None}  # noqa: RUF012

    # ML: +loadContentsOfURL:completionHandler:
    @classmethod
    def loadContentsOfURL_completionHandler_(
        cls, url: Any, handler: Callable[[Any, Any], Any]
    ) -> None:
        in_background(lambda: structure(read_model(url_path(url))), handler)

    # ML: +loadModelAsset:completionHandler:
    @classmethod
    def loadModelAsset_completionHandler_(
        cls, asset: Any, handler: Callable[[Any, Any], Any]
    ) -> None:
        in_background(lambda: structure(asset.file), handler)


def structure(file: ModelFile) -> MLModelStructure:
    """The structure of a model that was read."""
    functions = {
        name: MLModelStructureProgramFunction(one) for name, one in file.program.functions.items()
    }
    return MLModelStructure(program=MLModelStructureProgram(functions=functions))


def _named(one: mil.NamedType) -> MLModelStructureProgramNamedValueType:
    kind = MLModelStructureProgramValueType()
    return MLModelStructureProgramNamedValueType(name=one.name, type=kind)


def _argument(given: tuple[mil.Binding, ...]) -> MLModelStructureProgramArgument:
    return MLModelStructureProgramArgument(
        bindings=[
            MLModelStructureProgramBinding(name=one)
            if isinstance(one, str)
            else MLModelStructureProgramBinding(value=MLModelStructureProgramValue())
            for one in given
        ]
    )
