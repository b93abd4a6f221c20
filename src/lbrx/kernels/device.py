"""The Metal device: every operation of the table, by kernels."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx import dtype as dt
from lbrx.errors import DtypeError
from lbrx.kernels.arrays import imported, shared
from lbrx.kernels.registry import RUNNERS, Call
from lbrx.metal import context
from lbrx.ops import Attributes, Op, Spec
from lbrx.storage import Array


class MetalDevice:
    """Encodes each operation as it comes; results are waited for when they are read."""

    name = "metal"

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        specs = [None if x is None else Spec(x.layout.shape, x.dtype) for x in inputs]
        outputs = op.infer(specs, attributes)
        for spec in (*specs, *outputs):
            if spec is not None and spec.dtype is dt.float64:
                raise DtypeError(
                    f"{op.name} of {spec}: Metal has no float64, cast to float32 or use 'cpu'"
                )
        gpu = context()
        first = inputs[0] if inputs else None
        if op.name == "copy" and first is not None and first.storage.device != self.name:
            return (imported(gpu, first),)
        return RUNNERS[op.name](Call(gpu, op, tuple(inputs), attributes, outputs))

    def share(self, array: Array) -> Array | None:
        """The memory of an array of the host's, however small."""
        return shared(context(), array)
