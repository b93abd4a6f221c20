"""Where a program loses precision, operation by operation.

One prediction runs as the program declares, another holds every fp16 value in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from softcoreml import mil
from softcoreml.description import ArrayFeature, FunctionDescription, ImageFeature
from softcoreml.errors import InputError
from softcoreml.format.package import ModelFile
from softcoreml.interpreter.prepare import opset_of
from softcoreml.loaded import LoadedModel
from softcoreml.operations import registry


@dataclass(frozen=True)
class Loss:
    """What one result lost.

    `own` is the error of rounding this result alone, `total` that against the float32 run, which
    has the errors of all operations before; both relative to the largest value. `overflows` counts
    values that are finite in float32 and not as declared.
    """

    operation: str
    name: str
    own: float
    total: float
    overflows: int


def compare(file: ModelFile, inputs: Mapping[str, Any], function: str | None = None) -> list[Loss]:
    """The losses of every floating-point result of one prediction, in the order of execution.

    The float32 results of a whole prediction are kept in memory meanwhile. A loop's results are
    compared iteration by iteration, as far as both runs take the same way.
    """
    reference: list[tuple[mil.Operation, tuple[Any, ...]]] = []

    def remember(operation: mil.Operation, _: Mapping[str, Any], results: tuple[Any, ...]) -> None:
        reference.append((operation, tuple(_kept(one) for one in results)))

    wide = LoadedModel(file, function, "float32")
    wide.predict(inputs, wide.new_states(), remember)
    judge = _Judge(reference, opset_of(wide.function))
    declared = LoadedModel(file, function)
    declared.predict(inputs, declared.new_states(), judge)
    return judge.losses


def _kept(value: Any) -> Any:
    """A result that a later write to a state does not change."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.owndata else value


class _Judge:
    """Watches the run as declared and compares each result with the float32 run."""

    def __init__(self, reference: list[tuple[mil.Operation, tuple[Any, ...]]], opset: str) -> None:
        self.losses: list[Loss] = []
        self._reference = iter(reference)
        self._opset = opset

    def __call__(
        self, operation: mil.Operation, arguments: Mapping[str, Any], results: tuple[Any, ...]
    ) -> None:
        expected, wide = next(self._reference, (None, ()))
        if expected is not operation:
            self._reference = iter(())
            return
        alone = self._alone(operation, arguments) or results
        for number, out in enumerate(operation.outputs):
            declared, exact = np.asarray(results[number]), np.asarray(wide[number])
            if declared.dtype.kind == "f" and declared.size:
                overflows = int((np.isfinite(exact) & ~np.isfinite(declared)).sum())
                own, total = _relative(alone[number], declared), _relative(exact, declared)
                self.losses.append(Loss(operation.type, out.name, own, total, overflows))

    def _alone(
        self, operation: mil.Operation, arguments: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        """This operation's results from the same arguments in float32; None for control flow."""
        definition = registry.find(operation.type, self._opset)
        if definition is None:
            return None
        given = {name: _widened(one) for name, one in arguments.items()}
        if operation.type == "cast" and given.get("dtype") == "fp16":
            given["dtype"] = "fp32"
        found = definition.function(**given)
        return found if isinstance(found, tuple) else (found,)


def _widened(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_widened(one) for one in value)
    half = isinstance(value, np.ndarray | np.generic) and value.dtype == np.float16
    return value.astype(np.float32) if half else value


def _relative(exact: Any, found: Any) -> float:
    """Largest difference over the largest value, of the values that are finite in both."""
    exact, found = np.asarray(exact, np.float64), np.asarray(found, np.float64)
    both = np.isfinite(exact) & np.isfinite(found)
    if not both.any():
        return 0.0
    scale = float(np.abs(exact[both]).max())
    return float(np.abs(exact[both] - found[both]).max()) / scale if scale else 0.0


def random_inputs(description: FunctionDescription, seed: int = 0) -> dict[str, Any]:
    """Inputs to try a model with: normal for floating point, zeros for integers."""
    generator = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for one in description.inputs:
        kind = one.type
        if isinstance(kind, ArrayFeature):
            dtype = mil.DTYPES[kind.dtype]
            whole = dtype.kind in "iu"
            normal = generator.standard_normal(kind.shape)
            made[one.name] = np.zeros(kind.shape, dtype) if whole else normal.astype(dtype)
        elif isinstance(kind, ImageFeature):
            shape = (1, kind.channels, kind.height, kind.width)
            made[one.name] = generator.integers(0, 256, shape).astype(np.float32)
        else:
            raise InputError(f"input {one.name!r} is not an array: give it with --inputs")
    return made


def table(losses: list[Loss]) -> str:
    """The page that `python -m softcoreml compare` prints."""
    rows = [f"{'operation':<28} {'own':>9} {'total':>9} {'overflow':>9}  result"]
    for one in losses:
        overflow = str(one.overflows) if one.overflows else ""
        rows.append(
            f"{one.operation:<28} {one.own:>9.2e} {one.total:>9.2e} {overflow:>9}  {one.name}"
        )
    if losses:
        worst = max(losses, key=lambda one: one.own)
        rows.append(f"largest own loss: {worst.own:.2e} in {worst.operation} ({worst.name})")
    return "\n".join(rows)
