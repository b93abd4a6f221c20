"""Operations that move into the kernel of a quantized product.

An RMS norm, also of a sum, and SwiGLU, which only the product reads, are computed as its kernel
reads its row. The sum is stored as well. SwiGLU of two products with the same row is computed by
their kernel as it writes them, and so are RoPE and writes to a cache of a token's queries, keys and
values. Values are rounded as they would be in memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from lbrx import env
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels import quantized_lines
from lbrx.kernels.quantized_matmul import QuantizedProduct
from lbrx.kernels.quantized_row import Prologue
from lbrx.metal import DeviceInfo
from lbrx.quant import find
from lbrx.scheduler.fusion import KernelPlan
from lbrx.scheduler.graph import Node, Pending, node_of
from lbrx.scheduler.row_writes import RowsNode
from lbrx.storage import Array

PRODUCT = "quantized_matmul"
NORMS = ("rms_norm", "add_rms_norm")
GATE = "swiglu"
SUM = 1  # the second result of add_rms_norm

Finder = Callable[[KernelPlan, DeviceInfo], Node | None]
Taker = Callable[[KernelPlan, Node], KernelPlan]


def with_products(
    kernels: Sequence[KernelPlan], targets: Iterable[Node], info: DeviceInfo
) -> list[KernelPlan]:
    """The kernels, with norms and gates inside those of products."""
    if not env.fusion() or all(kernel.root.op.name != PRODUCT for kernel in kernels):
        return list(kernels)
    wanted = frozenset(targets)
    readers = Counter(
        identity
        for kernel in kernels
        for node in kernel.views
        for x in node.inputs
        if (identity := _result(x)) is not None
    )

    def joined(kernels: Sequence[KernelPlan], inner: Finder, take: Taker) -> list[KernelPlan]:
        """The kernels, each with the one of the node that `inner` finds inside it."""
        result: list[KernelPlan] = []
        for kernel in kernels:
            node = inner(kernel, info)
            if node is not None and _absorbs(result, node, wanted, readers):
                views = {**kernel.views, node: [sh.contiguous(node.outputs[0].shape)]}
                kernel = take(replace(kernel, views=views), node)
            result.append(kernel)
        return result

    kernels = joined(kernels, _after, lambda kernel, node: replace(kernel, gated=node))
    return joined(kernels, _before, lambda kernel, node: replace(kernel, prologue=node))


def _after(kernel: KernelPlan, info: DeviceInfo) -> Node | None:
    """The product whose results a kernel rotates, writes or gates."""
    return _turned(kernel, info) if kernel.writes else _gated(kernel, info)


def _absorbs(
    kernels: list[KernelPlan],
    node: Node,
    wanted: frozenset[Node],
    readers: Counter[tuple[Node, int]],
) -> bool:
    """Remove the kernel of a node that only the next kernel reads. False if others read it; the
    second result of a norm is stored by the next kernel, too."""
    count = 1 if node.op.name in NORMS else len(node.outputs)
    if node in wanted or any(readers[node, i] != 1 for i in range(count)):
        return False
    at = next((i for i, each in enumerate(kernels) if each.root is node), None)
    if at is None or len(kernels[at].views) != 1:
        return False
    if any(_reads(each, node) for each in kernels[at + 1 :]):
        return False
    del kernels[at]
    return True


def _result(array: Array | None) -> tuple[Node, int] | None:
    """The node that computes an array, and which of its results it is."""
    storage = None if array is None else array.storage
    if not isinstance(storage, Pending) or storage.node is None:
        return None
    return storage.node, storage.index


def _reads(kernel: KernelPlan, node: Node) -> bool:
    return any(x is not None and node_of(x) is node for each in kernel.views for x in each.inputs)


def _gated(kernel: KernelPlan, info: DeviceInfo) -> Node | None:
    """The product of two matrices of which a kernel computes the SwiGLU."""
    node = kernel.root
    if node.op.name != GATE or len(kernel.views) != 1:
        return None
    arrays = node.arrays()
    found = [_result(x) for x in arrays]
    product = found[0][0] if found[0] is not None else None
    if product is None or found != [(product, 0), (product, 1)] or product.op.name != PRODUCT:
        return None
    whole = all(_is_whole(x, product) and x.dtype is node.outputs[0].dtype for x in arrays)
    same = len(product.outputs) == 2 and product.outputs[0] == product.outputs[1]
    if not (whole and same and product.policy == node.policy):
        return None
    return product if _is_one_launch(product, info) else None


def _turned(kernel: KernelPlan, info: DeviceInfo) -> Node | None:
    """The product of whose results, for one token, a kernel rotates or writes all."""
    found = [_result(part.x) for part in kernel.writes]
    product = found[0][0] if found[0] is not None else None
    if product is None or product.op.name != PRODUCT:
        return None
    results = sorted(each[1] for each in found if each is not None and each[0] is product)
    if results != [*range(len(product.outputs))] or not _is_one_launch(product, info):
        return None
    features = {part.x.layout.shape[-1] for part in kernel.writes}
    sizes = [spec.shape[-1] for spec in product.outputs]
    taken = len(features) == 1 and all(_is_token(part, product) for part in kernel.writes)
    if not taken or not quantized_lines.turns_rows(_problem(product), sizes, *features):
        return None
    return product


def _is_token(part: RowsNode, product: Node) -> bool:
    """Whether a part has all heads of a token, in order, and rotates all features or none."""
    layout = part.x.layout
    found = _result(part.x)
    whole = layout.is_contiguous and layout.offset == 0
    return (
        whole
        and found is not None
        and layout.size == math.prod(product.outputs[found[1]].shape)
        and part.pairs in (0, layout.shape[-1] // 2)
        and part.positions.layout.size == 1
        and part.node.policy == product.policy
    )


def _problem(product: Node) -> QuantizedProduct:
    x, spec = product.inputs[0], product.outputs[0]
    assert x is not None
    rows, columns = math.prod(spec.shape[:-1]), sum(each.shape[-1] for each in product.outputs)
    scheme = find(product.attributes["scheme"])
    return QuantizedProduct(scheme, rows, columns, x.layout.shape[-1], spec.dtype)


def _is_one_launch(product: Node, info: DeviceInfo) -> bool:
    """Whether one launch of a kernel that takes other operations computes a product."""
    problem = _problem(product)
    if 0 in (problem.m, problem.k, *(each.shape[-1] for each in product.outputs)):
        return False
    return quantized_lines.is_chosen(info, problem, len(product.outputs))


def _before(kernel: KernelPlan, info: DeviceInfo) -> Node | None:
    """The operation before a product that its kernel could compute."""
    product = kernel.gated or kernel.root
    after = sum(len(part.nodes) for part in kernel.writes) or int(kernel.gated is not None)
    if product.op.name != PRODUCT or len(kernel.views) != 1 + after:
        return None
    x = product.inputs[0]
    found = _result(x)
    if x is None or found is None or found[1] != 0 or not _is_whole(x, found[0]):
        return None
    before = found[0]
    if product.policy != before.policy or not _is_taken(before, product.outputs[0].dtype):
        return None
    return before if _is_one_launch(product, info) else None


def _is_whole(array: Array, node: Node) -> bool:
    """Whether an array is all of a node's result, in order."""
    layout, size = array.layout, math.prod(node.outputs[0].shape)
    return layout.is_contiguous and layout.offset == 0 and layout.size == size


def _is_taken(node: Node, dtype: Dtype) -> bool:
    """Whether the kernel of a product can compute an operation on arrays of its own type."""
    given = [x for x in node.inputs if x is not None]
    if any(x.dtype is not dtype or x.storage.device != "metal" for x in given):
        return False
    if node.op.name in NORMS:
        return len(given) == 2 + (node.op.name == "add_rms_norm")  # with a weight
    shape = node.outputs[0].shape
    return node.op.name == GATE and all(x.layout.shape == shape for x in given)


def prologue_of(node: Node) -> Prologue:
    """What a product's kernel computes for it."""
    x, *others = node.arrays()
    if node.op.name == GATE:
        return Prologue(x, gated=others[0])
    added = others[0] if node.op.name == "add_rms_norm" else None
    return Prologue(x, added, others[-1], float(node.attributes["eps"]))
