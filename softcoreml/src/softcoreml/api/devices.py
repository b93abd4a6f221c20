"""Compute devices and the units that a configuration allows.

No such hardware is used: the devices are those that a Mac would have, so that programs which look
for them run, and their figures are modelled.
"""

from __future__ import annotations

from typing import Any

from softcoreml.api.objects import Object

MLComputeUnitsCPUOnly = 0
MLComputeUnitsCPUAndGPU = 1
MLComputeUnitsAll = 2
MLComputeUnitsCPUAndNeuralEngine = 3

NEURAL_ENGINE_CORES = 16


class MLCPUComputeDevice(Object):
    """The CPU."""


class MLGPUComputeDevice(Object):
    """A GPU; it has no Metal device here."""

    # ML: -metalDevice
    def metalDevice(self) -> Any:
        return None


class MLNeuralEngineComputeDevice(Object):
    """The Neural Engine of a Mac, modelled."""

    # ML: -totalCoreCount
    def totalCoreCount(self) -> int:
        return NEURAL_ENGINE_CORES


CPU = MLCPUComputeDevice()
GPU = MLGPUComputeDevice()
NEURAL_ENGINE = MLNeuralEngineComputeDevice()
DEVICES = {"cpu": CPU, "gpu": GPU, "neural-engine": NEURAL_ENGINE}


# ML: MLAllComputeDevices()
def MLAllComputeDevices() -> list[Object]:
    return [CPU, GPU, NEURAL_ENGINE]


def allowed_units(units: int) -> frozenset[str]:
    """The units that a value of MLComputeUnits allows, as `placement` names them."""
    return {
        MLComputeUnitsCPUOnly: frozenset({"cpu"}),
        MLComputeUnitsCPUAndGPU: frozenset({"cpu", "gpu"}),
        MLComputeUnitsAll: frozenset({"cpu", "gpu", "neural-engine"}),
        MLComputeUnitsCPUAndNeuralEngine: frozenset({"cpu", "neural-engine"}),
    }[units]
