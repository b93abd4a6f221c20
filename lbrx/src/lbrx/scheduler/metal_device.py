"""The Metal device: operations become nodes of a graph, computed when results are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array, MetalCache
from lbrx.command_lists.builder import Builder
from lbrx.graph import graph
from lbrx.kernels.arrays import whole_buffer
from lbrx.kernels.movement.movement import copy
from lbrx.metal import Context, context
from lbrx.metal.arrays import imported, long_lived, may_share, shared
from lbrx.metal.library import PipelineRequest
from lbrx.ops import Attributes, Op, Spec
from lbrx.scheduler.running import ready


class MetalDevice:
    """Computes every operation of the table with kernels."""

    name = "metal"

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        """Add the operation to the graph and return its pending results. A `copy` from another
        device brings the data here at once."""
        first = inputs[0] if inputs else None
        if op.name == "copy" and first is not None and first.storage.device != self.name:
            graph.refuse_float64(op, Spec(first.layout.shape, first.dtype))
            return (imported(context(), first),)
        return graph.add(op, inputs, attributes)

    def share(self, array: Array) -> Array | None:
        """An array over the memory of a host array, of any size; None if Metal cannot use it."""
        return shared(context(), array)

    def new_cache(self, shape: Shape, dtype: Dtype) -> Array:
        """In a heap."""
        memory = long_lived(context(), Spec(shape, dtype), "caches")
        buffer = whole_buffer(memory)
        return replace(memory, storage=MetalCache(buffer, 0, buffer.size))

    def write(self, cache: Array, values: Array) -> None:
        """By a kernel, or by the host when the device has ended its work with the memory."""
        gpu = context()
        if values.storage.device == self.name:
            graph.realise([values.storage])
            _copy(gpu, graph.concrete(values), cache)
        elif whole_buffer(cache).block.private:
            _copy(gpu, imported(gpu, values), cache)
        else:
            np.copyto(cache.writable(), values.numpy())

    def keep(self, array: Array) -> Array:
        """Mapped memory as it is, a copy in a heap."""
        gpu = context()
        same = shared(gpu, array) if may_share(array) else None
        if same is not None:
            return same
        kept = long_lived(gpu, Spec(array.layout.shape, array.dtype), "weights")
        if array.storage.device == self.name:
            self.write(kept, array)
        else:
            gpu.write(whole_buffer(kept), array.numpy())
        return kept


def _copy(gpu: Context, source: Array, target: Array) -> None:
    def describe(b: Builder) -> tuple[Array, ...]:
        copy(b, source, target)
        return ()

    ready(gpu, describe).run()


def copy_pipelines(source: Array, target: Array) -> list[PipelineRequest]:
    """The kernels with which an array in memory of the device is written into a cache."""
    b = Builder(context())
    copy(b, source, target)
    return b.pipelines()
