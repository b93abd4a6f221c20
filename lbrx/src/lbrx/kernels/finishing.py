"""Operations whose kernels apply elementwise steps to each result before they store it.

The scheduler moves the elementwise operations that follow such an operation, and that nothing else
needs, into its kernel. A step rounds as it does in a kernel of its own, so results do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lbrx.kernels.elementwise import Computation
from lbrx.kernels.registry import Call
from lbrx.storage import Array


@dataclass(frozen=True)
class Finish:
    """The steps that follow an operation, as a computation over the shape of its result."""

    computation: Computation
    place: int
    """The input of the computation that is the operation's result. It has no memory."""


Finisher = Callable[[Call, Finish], tuple[Array, ...]]
FINISHERS: dict[str, Finisher] = {}
"""The function that computes an operation and the steps after it, by the operation's name."""


def finishes(name: str) -> Callable[[Finisher], Finisher]:
    """Register the decorated function for an operation with one result."""

    def decorate(finisher: Finisher) -> Finisher:
        if name in FINISHERS:
            raise ValueError(f"operation {name} has two kernels that finish it")
        FINISHERS[name] = finisher
        return finisher

    return decorate
