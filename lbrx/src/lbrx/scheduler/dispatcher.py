"""Running a graph: its kernels are planned, then encoded in order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from lbrx.kernels import (
    RUNNERS,
    elementwise,
    fused_rows,
    host,
    matmul,
    quantized_lines,
    rope_write,
)
from lbrx.kernels.arrays import reshaped
from lbrx.kernels.finishing import FINISHERS, Finish
from lbrx.kernels.quantized_row import Prologue, RowTurns
from lbrx.kernels.registry import Call, Runner, under
from lbrx.kernels.rope_write import RowPart, RowRotation
from lbrx.metal import Context, context
from lbrx.metal.commands import Work, recorder, working
from lbrx.metal.library import lists_pipelines
from lbrx.metal.watching import watcher, watching
from lbrx.ops import Op, Spec, arithmetic
from lbrx.scheduler.fusion import KernelPlan, computation
from lbrx.scheduler.graph import (
    Node,
    Pending,
    identity,
    in_order,
    node_of,
    settle,
)
from lbrx.scheduler.planning import planned
from lbrx.scheduler.prepared import KNOWN, KnownGraph, Preparation
from lbrx.scheduler.prologue import SUM, prologue_of
from lbrx.scheduler.row_writes import RowsNode, rotation_of
from lbrx.scheduler.structure import GraphStructure, structure_of
from lbrx.scheduler.tracing import refuse_inputs
from lbrx.storage import Array


def run(targets: Sequence[Node], submit: bool = False) -> None:
    """Compute nodes. `submit` gives their commands to the device at once, for a caller that waits.

    The memory of an intermediate result returns to the pool when its last reader is encoded: the
    device runs commands in order, so the next kernel can use it.
    """
    gpu = context()
    order = in_order(targets)
    watched_by_others = recorder() is not None or watcher() is not None or lists_pipelines()
    plain = not watched_by_others and not gpu.queue.observed
    structure = structure_of(order, targets) if plain and KNOWN.takes(len(order)) else None
    if structure is None:
        _run_planned(gpu, order, targets)
    else:
        known = KNOWN.appeared(gpu, structure, len(order))
        if known.prepared is not None:
            known.prepared.run(gpu, order, structure, submit)
            return
        _run_unprepared(gpu, order, targets, structure, known)
    if submit:
        with gpu.queue.encoding():
            gpu.queue.submit()


def _run_unprepared(
    gpu: Context,
    order: list[Node],
    targets: Sequence[Node],
    structure: GraphStructure,
    known: KnownGraph,
) -> None:
    """Plan the kernels of a graph and encode them; watch this if the graph was seen before."""
    watched = Preparation(order, structure) if known.wants_preparation else None
    structure.leaves.clear()
    if watched is None:
        _run_planned(gpu, order, targets)
        return
    with watching(watched):
        _run_planned(gpu, order, targets)
    known.finish(watched)


def _run_planned(gpu: Context, order: list[Node], targets: Sequence[Node]) -> None:
    """Plan the kernels of a graph and encode them. Empties the list of nodes, so that each is freed
    after its kernel."""
    refuse_inputs(order)
    kernels = deque(planned(order, targets, gpu.info))
    order.clear()
    while kernels:
        kernel = kernels.popleft()
        with under(kernel.root.policy), working(partial(_work, kernel)):
            results = _encoded(gpu, kernel)
        for node, result in zip(kernel.stored, _shares(kernel, results), strict=True):
            _settle(node, dict(enumerate(result)))
        told = watcher()
        if isinstance(told, Preparation):
            told.done(kernel.views)


def _settle(node: Node, results: Mapping[int, Array], whole: bool = True) -> None:
    """Set the memory of a node's results, and tell who prepares the graph for others."""
    storages = {index: result.storage for index, result in results.items()}
    settle(node, storages, whole)
    told = watcher()
    if isinstance(told, Preparation):
        told.settled(node, storages, whole)


def _shares(kernel: KernelPlan, results: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    """The results of each stored node; an operation that is not fused may have several."""
    alone = kernel.prologue is None and kernel.gated is None
    several = kernel.is_fused and (alone or bool(kernel.writes))
    return [(result,) for result in results] if several else [results]


def _encoded(gpu: Context, kernel: KernelPlan) -> tuple[Array, ...]:
    node = kernel.root
    if kernel.product is not None:
        product = kernel.product
        given = tuple(None if x is None else _real(x) for x in product.inputs)
        call = Call(gpu, product.matmul.op, given, product.attributes, node.outputs)
        return matmul.finished_product(call)
    if kernel.prologue is not None or kernel.gated is not None:
        return _product(gpu, kernel)
    if kernel.writes:
        return _written(gpu, kernel.writes)
    if kernel.source is not None:
        return _finished(gpu, kernel, kernel.source)
    if kernel.is_fused:
        what = computation(kernel)
        real = replace(what, inputs=tuple(_real(array) for array in what.inputs))
        if isinstance(real, elementwise.Computation):
            return elementwise.compute(gpu, real)
        return fused_rows.compute(gpu, real)
    return _alone(gpu, node)


def _alone(gpu: Context, node: Node) -> tuple[Array, ...]:
    """An operation in kernels of its own."""
    return _runner(node.op)(_call(gpu, node))


def _call(gpu: Context, node: Node) -> Call:
    inputs = tuple(None if x is None else _real(x) for x in node.inputs)
    return Call(gpu, node.op, inputs, node.attributes, node.outputs)


def _product(gpu: Context, kernel: KernelPlan) -> tuple[Array, ...]:
    """A product with the operations before and after it in one kernel, or else in one each."""
    node, before, gated = kernel.gated or kernel.root, kernel.prologue, kernel.gated
    inputs = tuple(None if x is None else _real(x) for x in node.inputs[1:])
    call = Call(gpu, node.op, (node.inputs[0], *inputs), node.attributes, node.outputs)
    x = node.inputs[0]
    assert x is not None
    given = Prologue(x) if before is None else prologue_of(before)
    turns, gate = None, None
    if kernel.writes:
        turns = _turns(kernel.writes)
    elif gated is not None:
        gate = kernel.root.outputs[0]
    made = quantized_lines.fused(call, given.changed(_real), gate, turns)
    if made is None:
        if before is not None:
            _settle(before, dict(enumerate(_alone(gpu, before))))
        if gated is not None:
            _settle(gated, dict(enumerate(_alone(gpu, gated))))
        return _written(gpu, kernel.writes) if kernel.writes else _alone(gpu, kernel.root)
    results, total = made
    if total is not None:
        assert before is not None
        total = reshaped(total, *before.outputs[SUM].shape)
        _settle(before, {SUM: total}, whole=False)
    if turns is not None:
        results = tuple(results[_index(each.x)] for each in kernel.writes)
    return results


def _finished(gpu: Context, kernel: KernelPlan, source: Node) -> tuple[Array, ...]:
    """An operation and the elementwise ones after it in one kernel."""
    what = computation(kernel)
    assert isinstance(what, elementwise.Computation)
    place = next(i for i, array in enumerate(what.inputs) if node_of(array) is source)
    inputs = tuple(x if i == place else _real(x) for i, x in enumerate(what.inputs))
    given = tuple(None if x is None else _real(x) for x in source.inputs)
    call = Call(gpu, source.op, given, source.attributes, source.outputs)
    return FINISHERS[source.op.name].run(call, Finish(replace(what, inputs=inputs), place))


def _index(x: Array) -> int:
    """Which result of its node an array is."""
    assert isinstance(x.storage, Pending)
    return x.storage.index


def _turns(writes: Sequence[RowsNode]) -> RowTurns:
    """What is done with the results of a product, in their order."""
    ordered = sorted(writes, key=lambda each: _index(each.x))
    parts = [RowPart(each.x, each.node.outputs[0], each.cache, each.pairs) for each in ordered]
    return RowTurns(parts, _real(writes[0].positions), _rotation(writes))


def _rotation(writes: Sequence[RowsNode]) -> RowRotation | None:
    rotation = rotation_of(writes)
    if rotation is not None and rotation.factors is not None:
        return replace(rotation, factors=_real(rotation.factors))
    return rotation


def _written(gpu: Context, writes: Sequence[RowsNode]) -> tuple[Array, ...]:
    """Rows that are rotated or written to caches, in one kernel."""
    parts = [
        RowPart(_real(each.x), each.node.outputs[0], each.cache, each.pairs) for each in writes
    ]
    return rope_write.compute(gpu, parts, _real(writes[0].positions), _rotation(writes))


def _runner(op: Op) -> Runner:
    """What computes an operation: its family's kernels, else the host."""
    if op.name in RUNNERS:
        return RUNNERS[op.name]
    return elementwise.run if elementwise.has_function(op) else host.run


def _work(kernel: KernelPlan) -> Work:
    """The bytes and operations that a kernel needs at least."""
    root = kernel.root
    read: dict[object, Spec] = {}
    operations = 0.0
    for node in kernel.views:
        arrays = node.arrays()
        specs = [Spec(array.layout.shape, array.dtype) for array in arrays]
        operations += arithmetic.operations(node.op, specs, node.outputs)
        for array, spec in zip(arrays, specs, strict=True):
            if node_of(array) not in kernel.views and array.storage.device == "metal":
                read[identity(array)] = spec
    nbytes = sum(math.prod(s.shape) * s.dtype.itemsize for s in (*read.values(), *root.outputs))
    shapes = f"{', '.join(map(str, read.values()))} -> {', '.join(map(str, root.outputs))}"
    return Work(shapes, nbytes, operations)


def _real(array: Array) -> Array:
    storage = array.storage
    if isinstance(storage, Pending):
        assert storage.storage is not None, f"{storage!r} is read before it is computed"
        return replace(array, storage=storage.storage)
    return array
