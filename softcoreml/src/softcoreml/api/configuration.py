"""MLModelConfiguration, MLOptimizationHints and MLPredictionOptions."""

from __future__ import annotations

from typing import Any

from softcoreml.api.devices import (
    MLComputeUnitsAll,
    MLComputeUnitsCPUAndNeuralEngine,
    MLComputeUnitsCPUOnly,
)
from softcoreml.api.objects import Object

MLReshapeFrequencyHintFrequent = 0
MLReshapeFrequencyHintInfrequent = 1
MLSpecializationStrategyDefault = 0
MLSpecializationStrategyFastPrediction = 1


class MLOptimizationHints(Object):
    """Hints for Apple's compiler. They are kept, and change nothing here but the placement."""

    _properties = {  # noqa: RUF012
        "reshapeFrequency": MLReshapeFrequencyHintFrequent,
        "specializationStrategy": MLSpecializationStrategyDefault,
    }


class MLModelConfiguration(Object):
    """How a model is loaded: its function and the compute units, which `MLComputePlan` models."""

    _properties = {  # noqa: RUF012
        "computeUnits": MLComputeUnitsAll,
        "functionName": None,
        "modelDisplayName": None,
        "allowLowPrecisionAccumulationOnGPU": False,
        "preferredMetalDevice": None,
        "parameters": None,
        "optimizationHints": None,
    }

    def __init__(self, **values: object) -> None:
        super().__init__(**{"optimizationHints": MLOptimizationHints(), **values})

    # ML: -computeUnits
    def computeUnits(self) -> int:
        return int(self._values["computeUnits"])

    # ML: -functionName
    def functionName(self) -> str | None:
        name: str | None = self._values["functionName"]
        return name

    # ML: -setComputeUnits:
    def setComputeUnits_(self, units: int) -> None:
        if not MLComputeUnitsCPUOnly <= units <= MLComputeUnitsCPUAndNeuralEngine:
            raise ValueError(f"{units} is not one of MLComputeUnits: give 0 to 3")
        self._values["computeUnits"] = units


class MLPredictionOptions(Object):
    """`outputBackings` are multi-arrays by output name, into which results are written."""

    _properties = {"outputBackings": {}, "usesCPUOnly": False}  # noqa: RUF012

    # ML: -outputBackings
    def outputBackings(self) -> dict[str, Any]:
        return dict(self._values["outputBackings"])
