"""Where Core ML would run each operation of a compiled program: MLComputePlan, read back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lbrx.errors import DeviceError
from lbrx.neural_engine.binding import core_ml, file_url
from lbrx.neural_engine.core_ml_model import CPU_AND_NEURAL_ENGINE

# Classes of devices, as Core ML names them, by our names of units.
_UNITS = {"MLNeuralEngine": "neural-engine", "MLGPU": "gpu", "MLCPU": "cpu"}
LIMIT = 120.0  # seconds: a plan compiles the program


def placement(compiled: Path, function: str) -> dict[str, Counter[str]]:
    """The operations of a function by the unit that Core ML prefers, each with its count. Constants
    have no unit and are left out. Raises DeviceError if there is no plan."""
    plan = _loaded(compiled)
    functions = plan.modelStructure().program().functions()
    found: dict[str, Counter[str]] = {}
    for operation in _operations(functions[function].block()):
        usage = plan.computeDeviceUsageForMLProgramOperation_(operation)
        if usage is None:
            continue
        kind = type(usage.preferredComputeDevice()).__name__
        unit = next((unit for name, unit in _UNITS.items() if kind.startswith(name)), kind)
        name = str(operation.operatorName()).rpartition(".")[2]
        found.setdefault(unit, Counter())[name] += 1
    return found


def _operations(block: Any) -> Iterator[Any]:
    for operation in block.operations():
        yield operation
        for inner in operation.blocks():
            yield from _operations(inner)


def _loaded(compiled: Path) -> Any:
    module, done, given = core_ml(), threading.Event(), list[Any]()

    def handler(plan: Any, problem: Any) -> None:
        given.extend((plan, problem))
        done.set()

    settings = module.MLModelConfiguration.alloc().init()
    settings.setComputeUnits_(CPU_AND_NEURAL_ENGINE)
    load = module.MLComputePlan.loadContentsOfURL_configuration_completionHandler_
    load(file_url(str(compiled)), settings, handler)
    if not done.wait(LIMIT):
        raise DeviceError(f"Core ML gave no plan of {compiled.name} in {LIMIT:.0f} s")
    plan, problem = given
    if plan is None:
        raise DeviceError(f"Core ML plans nothing for {compiled.name}: {problem}")
    return plan
