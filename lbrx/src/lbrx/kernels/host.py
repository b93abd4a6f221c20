"""Operations that have no kernel: their numpy references, computed by the host."""

from __future__ import annotations

import logging
from functools import cache

from lbrx import dtype as dt
from lbrx.errors import TraceError
from lbrx.kernels.arrays import imported
from lbrx.kernels.registry import Call
from lbrx.metal.commands import recorder
from lbrx.storage import Array
from lbrx.storage.cpu import copied

log = logging.getLogger("lbrx")


def run(call: Call) -> tuple[Array, ...]:
    """Wait for the operands, compute the reference, and copy the results to the device."""
    name = call.op.name
    if recorder() is not None:
        raise TraceError(
            f"operation {name} has no Metal kernel, so a compiled function cannot replay it: "
            "call it outside, or give it a kernel"
        )
    _warn(name)
    inputs = [None if x is None else x.numpy() for x in call.inputs]
    results = call.op(inputs, call.attributes)
    return tuple(imported(call.gpu, copied(x, dt.parse(x.dtype))) for x in results)


@cache
def _warn(name: str) -> None:
    """Once for each operation."""
    log.warning("operation %s has no Metal kernel: it is computed by the host", name)
