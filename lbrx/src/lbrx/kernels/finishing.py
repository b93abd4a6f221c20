"""Operations whose kernels apply elementwise steps to each result before they store it.

The scheduler moves the elementwise operations that follow such an operation, and that nothing else
needs, into its kernel. A step rounds as it does in a kernel of its own, so results do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from lbrx.arrays.storage import Array
from lbrx.device_info import DeviceInfo
from lbrx.entry_points import Registry
from lbrx.kernels.elementwise.elementwise import Computation
from lbrx.kernels.registry import ENTRY_POINTS, Call
from lbrx.ops import Spec


class Operation(Protocol):
    """What is known of an operation before its operands are in memory."""

    @property
    def inputs(self) -> tuple[Array | None, ...]:
        """The operands, None for those that were left out."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes with their defaults."""

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """Shapes and dtypes of the results."""


@dataclass(frozen=True)
class Finish:
    """The steps that follow an operation, as a computation over the shape of its result."""

    computation: Computation
    place: int
    """The input of the computation that is the operation's result. It has no memory."""

    @property
    def spec(self) -> Spec:
        """Of what is stored."""
        return self.computation.outputs[0][1]

    def changed(self, change: Callable[[Array], Array]) -> Finish:
        """The same with other operands."""
        inputs = enumerate(self.computation.inputs)
        changed_inputs = tuple(x if i == self.place else change(x) for i, x in inputs)
        return replace(self, computation=replace(self.computation, inputs=changed_inputs))


Run = TypeVar("Run", bound=Callable[[Call, Finish], tuple[Array, ...]])
Can = Callable[[DeviceInfo, Operation, Finish], bool]


@dataclass(frozen=True)
class Finisher:
    """How an operation is computed together with the steps after it."""

    run: Callable[[Call, Finish], tuple[Array, ...]]
    can: Can
    """Whether a device has a kernel for an operation with these steps."""


FINISHERS: Registry[Finisher] = Registry(ENTRY_POINTS)
"""By the operation's name."""


def finishes(name: str, can: Can = lambda info, operation, finish: True) -> Callable[[Run], Run]:
    """Register the decorated function for an operation with one result."""

    def decorate(run: Run) -> Run:
        if name in FINISHERS:
            raise ValueError(f"operation {name} has two kernels that finish it")
        FINISHERS[name] = Finisher(run, can)
        return run

    return decorate
