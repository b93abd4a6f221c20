"""Operations that move into the kernel of a quantized product which alone reads their result.

An RMS norm, also of a sum, and SwiGLU are computed as the product's kernel reads its row. The sum
is stored as well. The row is rounded as it would be in memory.
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
SUM = 1  # the second result of add_rms_norm


def with_prologues(
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
        before = _before(kernel, info)
        if before is None or before in wanted or readers[before, 0] != 1:
            result.append(kernel)
            continue
        at = next((i for i, each in enumerate(result) if each.root is before), None)
        if (
            at is None
            or len(result[at].views) != 1
            or any(_reads(each, before) for each in result[at + 1 :])
        ):
            result.append(kernel)
            continue
        del result[at]
        views = {**kernel.views, before: [sh.contiguous(before.outputs[0].shape)]}
        result.append(replace(kernel, views=views, prologue=before))
    return result


def _result(array: Array | None) -> tuple[Node, int] | None:
    """The node that computes an array, and which of its results it is."""
    storage = None if array is None else array.storage
    if not isinstance(storage, Pending) or storage.node is None:
        return None
    return storage.node, storage.index


def _reads(kernel: KernelPlan, node: Node) -> bool:
    return any(x is not None and node_of(x) is node for each in kernel.views for x in each.inputs)


def _before(kernel: KernelPlan, info: DeviceInfo) -> Node | None:
    """The operation before a product that its kernel could compute."""
    product = kernel.root
    if product.op.name != PRODUCT or len(kernel.views) != 1:
        return None
    x = product.inputs[0]
    found = _result(x)
    if x is None or found is None or found[1] != 0 or not _is_whole(x, found[0]):
        return None
    before, spec = found[0], product.outputs[0]
    rows, columns = math.prod(spec.shape[:-1]), sum(each.shape[-1] for each in product.outputs)
    problem = QuantizedProduct(
        find(product.attributes["scheme"]), rows, columns, x.layout.shape[-1], spec.dtype
    )
    able = (
        product.policy == before.policy
        and _is_taken(before, spec.dtype)
        and 0 not in (rows, columns, problem.k)
    )
    if not able or not quantized_lines.is_chosen(info, problem, len(product.outputs)):
        return None
    return before


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
    return node.op.name == "swiglu" and all(x.layout.shape == shape for x in given)


def prologue_of(node: Node) -> Prologue:
    """What a product's kernel computes for it."""
    x, *others = node.arrays()
    if node.op.name == "swiglu":
        return Prologue(x, gated=others[0])
    added = others[0] if node.op.name == "add_rms_norm" else None
    return Prologue(x, added, others[-1], float(node.attributes["eps"]))
