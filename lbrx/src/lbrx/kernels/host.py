"""Operations that have no kernel: their numpy references, computed by the host."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

from numpy.typing import NDArray

from lbrx.arrays.storage import Array
from lbrx.kernels.registry import Call

log = logging.getLogger("lbrx")


def run(call: Call) -> tuple[Array, ...]:
    """Compute the reference between the kernels of a plan."""
    op, attributes, b = call.op, call.attributes, call.builder
    _warn(op.name)

    def compute(values: Sequence[NDArray[Any] | None]) -> Sequence[NDArray[Any]]:
        return op(values, attributes)

    operands = [None if x is None else b.placed(x) for x in call.inputs]
    return b.host(op.name, operands, call.outputs, compute)


@cache
def _warn(name: str) -> None:
    """Once for each operation."""
    log.warning("operation %s has no Metal kernel: it is computed by the host", name)
