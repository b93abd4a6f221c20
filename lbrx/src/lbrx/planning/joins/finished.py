"""An operation and the elementwise ones after it in one kernel.

A bias for each column and an activation become operands of a matrix product: its kernel finishes
the sums before they are rounded. Sums of float32 and of integers have the bits of a separate
product; float16 and bfloat16 ones do not, so these are finished by steps after the rounding, except
within `excess_precision`. Other operations declare finishers, which apply such steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lbrx.arrays.dtype import accumulator
from lbrx.arrays.shape import contiguous
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.graph.graph import Node, node_of
from lbrx.kernels.elementwise.elementwise import Computation
from lbrx.kernels.finishing import FINISHERS, Finish
from lbrx.kernels.matmul import matmul
from lbrx.kernels.registry import Call
from lbrx.metal import DeviceInfo
from lbrx.ops.linear import ACTIVATIONS
from lbrx.planning.fusion import is_elementwise, name_of
from lbrx.planning.joins.planned_graph import Joined, PlannedGraph, Real, Results

MAX_FINISH_READS = 16  # layouts that steps inside the kernel of another operation read


@dataclass(frozen=True)
class Finished(Joined):
    """An operation, with what follows it as its own operands or as steps."""

    source: Node
    """The operation."""
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any]
    """The operands and attributes with which it is called."""
    finish: Finish | None


def match(graph: PlannedGraph, node: Node, info: DeviceInfo) -> Finished | None:
    """A cluster that only an operation in front of it feeds, whose kernel takes it."""
    cluster = graph.clusters[node]
    if cluster.rows is not None or cluster.stored != [node] or not is_elementwise(node):
        return None
    return _biased_product(graph, node) or _stepped(graph, node, info)


def emit(b: Builder, join: Finished, real: Real) -> Results:
    """The root's result."""
    inputs = tuple(None if x is None else real(x) for x in join.inputs)
    call = Call(b, join.source.op, inputs, join.attributes, join.source.outputs)
    if join.finish is None:
        results = matmul.finished_product(call)
    else:
        finish = join.finish.changed(real)
        results = FINISHERS[join.source.op.name].run(call, finish)
    return [(join.root, dict(enumerate(results)))]


# ---- steps ----


def _stepped(graph: PlannedGraph, root: Node, info: DeviceInfo) -> Finished | None:
    """The first operation that takes the cluster as steps and that nothing else reads."""
    cluster = graph.clusters[root]
    if sum(map(len, cluster.reads.values())) > MAX_FINISH_READS:
        return None
    whole = {contiguous(cluster.space)}
    for source, layouts in cluster.reads.items():
        if (
            not isinstance(source, Node)
            or source.op.name not in FINISHERS
            or len(source.outputs) != 1
            or source not in graph.clusters
            or source in graph.targets
            or source.policy != root.policy
            or source.outputs[0].shape != cluster.space
            or layouts != whole
            or any(reader not in cluster.views for reader, _ in graph.uses[source])
        ):
            continue
        nodes = (*cluster.views, source)
        what = graph.computation(root)
        assert isinstance(what, Computation)
        place = next(i for i, array in enumerate(what.inputs) if node_of(array) is source)
        finish = Finish(replace(what, name=name_of(nodes)), place)
        if FINISHERS[source.op.name].can(info, source, finish):
            return Finished(nodes, (root,), source, source.inputs, source.attributes, finish)
    return None


# ---- bias and activation ----


def _biased_product(graph: PlannedGraph, root: Node) -> Finished | None:
    """A product with a bias and an activation, if the cluster is nothing else."""
    chain = list(reversed(graph.clusters[root].views))
    activation = _activation(root)
    if activation is not None:
        chain.pop()
    if len(chain) > 1 or (not chain and activation is None):
        return None
    bias = None
    if chain:
        product, bias = _biased(chain[0])
    else:
        (array,) = root.arrays()
        product = _plain_product(array, root)
    if product is None or product.policy != root.policy:
        return None
    if product in graph.targets or len(graph.uses[product]) > 1:
        return None
    dtype = product.outputs[0].dtype
    if accumulator(dtype) is not dtype and not product.policy.excess_precision:
        return None
    nodes = (*graph.clusters[root].views, product)
    inputs, attributes = (*product.inputs[:2], bias), {"activation": activation}
    return Finished(nodes, (root,), product, inputs, attributes, None)


def _activation(node: Node) -> str | None:
    """The name of an activation that can follow a product."""
    words = [v for v in node.attributes.values() if isinstance(v, str) and v != "none"]
    name = "_".join([node.op.name, *words])
    return name if name in ACTIVATIONS and node.outputs[0].dtype.is_float else None


def _biased(node: Node) -> tuple[Node | None, Array | None]:
    """The product and the bias that an addition adds; (None, None) for other nodes."""
    if node.op.name != "add":
        return None, None
    first, second = node.arrays()
    for array, bias in ((first, second), (second, first)):
        matmul = _plain_product(array, node)
        if matmul is not None and _is_bias(bias, node):
            return matmul, bias
    return None, None


def _plain_product(array: Array, consumer: Node) -> Node | None:
    """The unfinished product that an array is, not a view of one; None for other arrays."""
    node = node_of(array)
    if node is None or node.op.name != "matmul" or node.outputs != consumer.outputs:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    finished = bias is not None or node.attributes["activation"] is not None
    return None if finished or array.layout != contiguous(node.outputs[0].shape) else node


def _is_bias(array: Array, node: Node) -> bool:
    """Whether an array has one value for each column, of the product's dtype."""
    (spec,) = node.outputs
    rows = len(spec.shape) > 1 and array.layout.shape == spec.shape[-1:]
    return rows and array.dtype is spec.dtype and array.storage.device == "metal"
