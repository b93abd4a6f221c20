"""Operations that move into the kernel of a quantized product.

An RMS norm, also of a sum, and SwiGLU, which only the product reads, are computed as its kernel
reads its row. The sum is stored as well. SwiGLU of two products with the same row is computed by
their kernel as it writes them. Values are rounded as they would be in memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lbrx import env
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels import quantized_lines
from lbrx.kernels.quantized_lines import Prologue
from lbrx.kernels.quantized_matmul import QuantizedProduct
from lbrx.metal import DeviceInfo
from lbrx.quant import find
from lbrx.scheduler.fusion import KernelPlan
from lbrx.scheduler.graph import Node, Pending, node_of
from lbrx.storage import Array

PRODUCT = "quantized_matmul"
NORMS = ("rms_norm", "add_rms_norm")
GATE = "swiglu"
SUM = 1  # the second result of add_rms_norm


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
    result: list[KernelPlan] = []
    for kernel in kernels:
        inside = _gated(kernel, info)
        if inside is not None and _absorbs(result, inside, wanted, readers):
            views = {**kernel.views, inside: [sh.contiguous(inside.outputs[0].shape)]}
            kernel = replace(kernel, views=views, gated=inside)
        result.append(kernel)
    kernels, result = result, []
    for kernel in kernels:
        before = _before(kernel, info)
        if before is not None and _absorbs(result, before, wanted, readers):
            views = {**kernel.views, before: [sh.contiguous(before.outputs[0].shape)]}
            kernel = replace(kernel, views=views, prologue=before)
        result.append(kernel)
    return result


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


def _is_one_launch(product: Node, info: DeviceInfo) -> bool:
    """Whether one launch of a kernel that takes other operations computes a product."""
    x, spec = product.inputs[0], product.outputs[0]
    assert x is not None
    rows, columns = math.prod(spec.shape[:-1]), sum(each.shape[-1] for each in product.outputs)
    problem = QuantizedProduct(
        find(product.attributes["scheme"]), rows, columns, x.layout.shape[-1], spec.dtype
    )
    if 0 in (rows, problem.k, *(each.shape[-1] for each in product.outputs)):
        return False
    return quantized_lines.is_chosen(info, problem, len(product.outputs))


def _before(kernel: KernelPlan, info: DeviceInfo) -> Node | None:
    """The operation before a product that its kernel could compute."""
    product = kernel.gated or kernel.root
    if product.op.name != PRODUCT or len(kernel.views) != 1 + (kernel.gated is not None):
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
