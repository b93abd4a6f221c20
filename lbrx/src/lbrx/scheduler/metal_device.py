"""The Metal device: operations become nodes of a graph, computed when somebody looks."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx import dtype as dt
from lbrx.errors import DtypeError
from lbrx.kernels.arrays import imported, shared
from lbrx.metal import context
from lbrx.ops import Attributes, Op, Spec
from lbrx.scheduler import graph
from lbrx.storage import Array


class MetalDevice:
    """Every operation of the table, by kernels."""

    name = "metal"

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        first = inputs[0] if inputs else None
        if op.name == "copy" and first is not None and first.storage.device != self.name:
            _refuse_float64(op, Spec(first.layout.shape, first.dtype))
            return (imported(context(), first),)
        results = graph.add(op, inputs, attributes)
        for array in (*inputs, *results):
            if array is not None:
                _refuse_float64(op, Spec(array.layout.shape, array.dtype))
        return results

    def share(self, array: Array) -> Array | None:
        """The memory of an array of the host's, however small."""
        return shared(context(), array)


def _refuse_float64(op: Op, spec: Spec) -> None:
    if spec.dtype is dt.float64:
        raise DtypeError(f"{op.name} of {spec}: Metal has no float64, cast to float32 or use 'cpu'")
