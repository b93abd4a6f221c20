"""Operations that move into the kernel of a quantized product.

An RMS norm, also of a sum, and SwiGLU, which only the product reads, are computed as its kernel
reads its row. The sum is stored as well. SwiGLU of two products with the same row is computed by
their kernel as it writes them, and so are RoPE and writes to a cache of a token's queries, keys and
values. Values are rounded as they would be in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array, MetalStorage
from lbrx.command_lists.builder import Builder
from lbrx.graph.graph import Node, concrete
from lbrx.kernels.arrays import reshaped
from lbrx.kernels.quantized.quantized import form_of
from lbrx.kernels.quantized_matmul import quantized_lines
from lbrx.kernels.quantized_matmul.quantized_matmul import QuantizedProduct, problem_of
from lbrx.kernels.quantized_matmul.quantized_row import Prologue, RowTurns
from lbrx.metal import DeviceInfo
from lbrx.ops.quantized import weights_of
from lbrx.planning.joins import cache_write
from lbrx.planning.joins.alone import Alone
from lbrx.planning.joins.cache_write import CacheWrite, RowsNode, part_of, rotation_of
from lbrx.planning.joins.planned_graph import (
    Joined,
    PlannedGraph,
    Real,
    Results,
    call_of,
    result_of,
)

PRODUCT = "quantized_matmul"
NORMS = ("rms_norm", "add_rms_norm")
GATE = "swiglu"
SUM = 1  # the second result of add_rms_norm
ROOTS = frozenset({PRODUCT, GATE, *cache_write.ROOTS})
"""Operations in whose places such a product may be computed."""


@dataclass(frozen=True)
class Product(Joined):
    """A quantized product of one row, and what is computed of its operand and of its results."""

    product: Node
    before: Node | None
    """The norm or the SwiGLU that computes its row."""
    gate: Node | None = None
    """The SwiGLU of its results."""
    writes: tuple[RowsNode, ...] = ()
    """How its results are rotated, or written to caches."""


def match(graph: PlannedGraph, node: Node, info: DeviceInfo) -> Product | None:
    """A product with the operation before it, or operations after one."""
    join = graph.home(node)
    if isinstance(join, Alone) and node.op.name == PRODUCT:
        before = _before(graph, node, info)
        return None if before is None else Product((node, before), (node,), node, before)
    product = None
    if isinstance(join, CacheWrite):
        product = _turned(join, info)
    elif isinstance(join, Alone) and node.op.name == GATE:
        product = _gated(node, info)
    if product is None or product in graph.targets:
        return None
    inner = graph.home(product)
    is_inner = isinstance(inner, Product) and inner.product is inner.root and not inner.writes
    if inner is None or not (is_inner or isinstance(inner, Alone)):
        return None
    assert join is not None
    if any(len(graph.readers(product, i)) != 1 for i in range(len(product.outputs))):
        return None
    if not graph.can_wait(inner.nodes, node, (*join.nodes, *inner.nodes)):
        return None
    before = inner.before if isinstance(inner, Product) else None
    nodes = (*join.nodes, *inner.nodes)
    if isinstance(join, CacheWrite):
        return Product(nodes, join.stored, product, before, writes=join.writes)
    return Product(nodes, join.stored, product, before, gate=node)


def emit(b: Builder, join: Product, real: Real) -> Results:
    """The results of the product or of what follows it, and the sum of a norm in front of it."""
    node, before = join.product, join.before
    call = call_of(b, node, lambda x: x if x is node.inputs[0] else real(x))
    x = node.inputs[0]
    assert x is not None
    prologue = Prologue(real(x)) if before is None else _prologue(before).changed(real)
    gate = None if join.gate is None else join.gate.outputs[0]
    turns = _turns(join.writes, real) if join.writes else None
    results, total = quantized_lines.fused(call, prologue, gate, turns)
    computed: Results = [(join.root, dict(enumerate(results)))]
    if turns is not None:
        computed = [(each.node, {0: results[_index(each.x)]}) for each in join.writes]
    if before is not None and total is not None:
        computed.append((before, {SUM: reshaped(total, *before.outputs[SUM].shape)}))
    return computed


# ---- what is computed of the results ----


def _turns(writes: Sequence[RowsNode], real: Real) -> RowTurns:
    """What is done with the results of a product, in their order."""
    ordered = sorted(writes, key=lambda each: _index(each.x))
    parts = [part_of(each, each.x, real) for each in ordered]
    return RowTurns(parts, real(writes[0].positions), rotation_of(writes, real))


def _index(x: Array) -> int:
    """Which result of its node an array is."""
    result = result_of(x)
    assert result is not None
    return result[1]


def _gated(node: Node, info: DeviceInfo) -> Node | None:
    """The product of two matrices of which a node is the SwiGLU."""
    arrays = node.arrays()
    results = [result_of(x) for x in arrays]
    product = results[0][0] if results[0] is not None else None
    if product is None or results != [(product, 0), (product, 1)] or product.op.name != PRODUCT:
        return None
    whole = all(_is_whole(x, product) and x.dtype is node.outputs[0].dtype for x in arrays)
    same = len(product.outputs) == 2 and product.outputs[0] == product.outputs[1]
    if not (whole and same and product.policy == node.policy):
        return None
    return product if _is_one_launch(product, info) else None


def _turned(join: CacheWrite, info: DeviceInfo) -> Node | None:
    """The product of whose results, for one token, a launch rotates or writes all."""
    inputs = [result_of(part.x) for part in join.writes]
    product = inputs[0][0] if inputs[0] is not None else None
    if product is None or product.op.name != PRODUCT:
        return None
    results = sorted(each[1] for each in inputs if each is not None and each[0] is product)
    whole = results == [*range(len(product.outputs))] and len(results) == len(inputs)
    if not whole or not _is_one_launch(product, info):
        return None
    features = {part.x.layout.shape[-1] for part in join.writes}
    sizes = [spec.shape[-1] for spec in product.outputs]
    taken = len(features) == 1 and all(_is_token(part, product) for part in join.writes)
    if not taken or not quantized_lines.turns_rows(problem_of(product), sizes, *features):
        return None
    return product


def _is_token(part: RowsNode, product: Node) -> bool:
    """Whether a part has all heads of a token, in order, and rotates all features or none."""
    layout = part.x.layout
    result = result_of(part.x)
    whole = layout.is_contiguous and layout.offset == 0
    return (
        whole
        and result is not None
        and layout.size == math.prod(product.outputs[result[1]].shape)
        and part.pairs in (0, layout.shape[-1] // 2)
        and part.positions.layout.size == 1
        and part.node.policy == product.policy
    )


def _is_one_launch(product: Node, info: DeviceInfo) -> bool:
    """Whether one launch of a kernel that takes other operations computes a product."""
    problem = problem_of(product)
    if 0 in (problem.m, problem.k, *(each.shape[-1] for each in product.outputs)):
        return False
    chosen = quantized_lines.is_chosen(info, problem, len(product.outputs))
    return chosen and _takes_weights(product, problem)


def _takes_weights(product: Node, problem: QuantizedProduct) -> bool:
    """Whether the weights are in memory, of one form, and where the kernel can read them."""
    weights = weights_of(product.inputs[1:], len(product.outputs))
    kinds, offsets = set(), []
    for parts in weights:
        arrays = [None if x is None else concrete(x) for x in parts]
        codes = arrays[0]
        if codes is None or not isinstance(codes.storage, MetalStorage):
            return False
        form = form_of(problem.scheme, arrays)
        kinds.add(form.scale_type)
        offsets.append(form.offset)
    return len(kinds) == 1 and quantized_lines.takes(problem, offsets)


# ---- what computes the operand ----


def _before(graph: PlannedGraph, product: Node, info: DeviceInfo) -> Node | None:
    """The operation before a product that its kernel could compute."""
    x = product.inputs[0]
    result = result_of(x)
    if x is None or result is None or result[1] != 0 or not _is_whole(x, result[0]):
        return None
    before = result[0]
    if product.policy != before.policy or not _is_taken(before, product.outputs[0].dtype):
        return None
    if not isinstance(graph.home(before), Alone) or before in graph.targets:
        return None
    if len(graph.readers(before, 0)) != 1 or not graph.can_wait([before], product, [product]):
        return None
    return before if _is_one_launch(product, info) else None


def _is_whole(array: Array, node: Node) -> bool:
    """Whether an array is all of a node's result, in order."""
    layout, size = array.layout, math.prod(node.outputs[0].shape)
    return layout.is_contiguous and layout.offset == 0 and layout.size == size


def _is_taken(node: Node, dtype: Dtype) -> bool:
    """Whether the kernel of a product can compute an operation on arrays of its own type."""
    operands = [x for x in node.inputs if x is not None]
    if any(x.dtype is not dtype or x.storage.device != "metal" for x in operands):
        return False
    if node.op.name in NORMS:
        return len(operands) == 2 + (node.op.name == "add_rms_norm")  # with a weight
    shape = node.outputs[0].shape
    return node.op.name == GATE and all(x.layout.shape == shape for x in operands)


def _prologue(node: Node) -> Prologue:
    """What a product's kernel computes for it."""
    x, *others = node.arrays()
    if node.op.name == GATE:
        return Prologue(x, gated=others[0])
    added = others[0] if node.op.name == "add_rms_norm" else None
    return Prologue(x, added, others[-1], float(node.attributes["eps"]))
