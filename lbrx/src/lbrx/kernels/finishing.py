"""Operations whose kernels apply elementwise steps to each result before they store it.

The scheduler moves the elementwise operations that follow such an operation, and that nothing else
needs, into its kernel. A step rounds as it does in a kernel of its own, so results do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from lbrx.device_info import DeviceInfo
from lbrx.kernels.elementwise import Computation
from lbrx.kernels.registry import Call
from lbrx.storage import Array


@dataclass(frozen=True)
class Finish:
    """The steps that follow an operation, as a computation over the shape of its result."""

    computation: Computation
    place: int
    """The input of the computation that is the operation's result. It has no memory."""

    def after(self, result: Array) -> Computation:
        """The steps as a computation of their own, given the operation's result."""
        inputs = list(self.computation.inputs)
        inputs[self.place] = replace(inputs[self.place], storage=result.storage)
        return replace(self.computation, inputs=tuple(inputs))


@dataclass(frozen=True)
class Finisher:
    """How an operation is computed together with the steps after it."""

    run: Callable[[Call, Finish], tuple[Array, ...]]
    accepts: Callable[[DeviceInfo], bool]
    """Whether a device has a kernel for it."""


FINISHERS: dict[str, Finisher] = {}
"""By the operation's name."""

Run = TypeVar("Run", bound=Callable[[Call, Finish], tuple[Array, ...]])


def finishes(
    name: str, accepts: Callable[[DeviceInfo], bool] = lambda info: True
) -> Callable[[Run], Run]:
    """Register the decorated function for an operation with one result."""

    def decorate(run: Run) -> Run:
        if name in FINISHERS:
            raise ValueError(f"operation {name} has two kernels that finish it")
        FINISHERS[name] = Finisher(run, accepts)
        return run

    return decorate
