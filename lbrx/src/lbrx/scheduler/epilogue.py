"""Operations that move into a matrix product's kernel: a bias for each column and an activation.

The kernel finishes its sums before they are rounded. Sums of float32 and of integers have the bits
of a separate product; float16 and bfloat16 ones do not, so they are finished by kernels of their
own, except within `excess_precision`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lbrx.kernels.arrays import accumulator
from lbrx.ops.linear import ACTIVATIONS
from lbrx.scheduler.graph import Node, node_of
from lbrx.shape import contiguous
from lbrx.storage import Array


@dataclass(frozen=True)
class FinishedProduct:
    """A product and the operations that follow it, as one call of `matmul`."""

    matmul: Node
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any]


def product_of(nodes: Sequence[Node]) -> FinishedProduct | None:
    """The product that the nodes of a kernel, given in order, finish.

    None if they compute anything else.
    """
    chain = list(nodes)
    activation = _activation(chain[-1])
    if activation is not None:
        chain.pop()
    if len(chain) > 1 or (not chain and activation is None):
        return None
    last = chain[0] if chain else nodes[-1]
    bias = None
    if chain:
        matmul, bias = _biased(last)
    else:
        (array,) = last.arrays()
        matmul = _plain_product(array, last)
    if matmul is None or matmul.policy != nodes[-1].policy:
        return None
    dtype = matmul.outputs[0].dtype
    if accumulator(dtype) is not dtype and not matmul.policy.excess_precision:
        return None
    x, y = matmul.inputs[:2]
    return FinishedProduct(matmul, (x, y, bias), {"activation": activation})


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
