"""MLComputePlan: where each operation would run on a Mac. Modelled by `softcoreml.placement`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softcoreml import mil, placement
from softcoreml.api.configuration import MLModelConfiguration
from softcoreml.api.devices import DEVICES, allowed_units
from softcoreml.api.foundation import url_path
from softcoreml.api.objects import Object, in_background
from softcoreml.api.structure import MLModelStructure, MLModelStructureProgramOperation, structure
from softcoreml.format.package import ModelFile
from softcoreml.format.read import read_model


class MLComputePlanDeviceUsage(Object):
    """The devices that can run an operation, and the one that would."""

    _readonly = {"supportedComputeDevices": [], "preferredComputeDevice": None}  # noqa: RUF012


class MLComputePlanCost(Object):
    """An operation's share of the whole function's work, 0 to 1."""

    _readonly = {"weight": 0.0}  # noqa: RUF012


class MLComputePlan(Object):
    """A plan for one model and one configuration."""

    def __init__(self, file: ModelFile, configuration: MLModelConfiguration | None) -> None:
        super().__init__()
        self._structure = structure(file)
        chosen = configuration or MLModelConfiguration()
        self._places: dict[mil.Operation, placement.Placement] = {}
        self._shares: dict[mil.Operation, float] = {}
        for function in file.program.functions.values():
            self._add(function, allowed_units(chosen.computeUnits()))

    def _add(self, function: mil.Function, allowed: frozenset[str]) -> None:
        places, names = placement.place(function, allowed), placement.Names(function)
        costs = {operation: placement.cost(operation, names) for operation in places}
        whole = sum(costs.values()) or 1.0
        self._places |= places
        self._shares |= {operation: value / whole for operation, value in costs.items()}

    # ML: +loadContentsOfURL:configuration:completionHandler:
    @classmethod
    def loadContentsOfURL_configuration_completionHandler_(
        cls,
        url: Any,
        configuration: MLModelConfiguration | None,
        handler: Callable[[Any, Any], Any],
    ) -> None:
        in_background(lambda: cls(read_model(url_path(url)), configuration), handler)

    # ML: +loadModelAsset:configuration:completionHandler:
    @classmethod
    def loadModelAsset_configuration_completionHandler_(
        cls,
        asset: Any,
        configuration: MLModelConfiguration | None,
        handler: Callable[[Any, Any], Any],
    ) -> None:
        in_background(lambda: cls(asset.file, configuration), handler)

    # ML: -modelStructure
    def modelStructure(self) -> MLModelStructure:
        return self._structure

    # ML: -computeDeviceUsageForMLProgramOperation:
    def computeDeviceUsageForMLProgramOperation_(
        self, operation: MLModelStructureProgramOperation
    ) -> MLComputePlanDeviceUsage | None:
        found = self._places.get(operation.operation)
        if found is None:
            return None
        return MLComputePlanDeviceUsage(
            supportedComputeDevices=[DEVICES[unit] for unit in found.supported],
            preferredComputeDevice=DEVICES[found.preferred],
        )

    # ML: -estimatedCostOfMLProgramOperation:
    def estimatedCostOfMLProgramOperation_(
        self, operation: MLModelStructureProgramOperation
    ) -> MLComputePlanCost | None:
        share = self._shares.get(operation.operation)
        return None if share is None else MLComputePlanCost(weight=share)

    # ML: -computeDeviceUsageForNeuralNetworkLayer:
    def computeDeviceUsageForNeuralNetworkLayer_(self, layer: Any) -> None:
        """None: models of this type are not loaded here."""
        del layer
