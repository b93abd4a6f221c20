"""Matrix products. The weights of quantized products are constants: only x has a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lbrx import quant
from lbrx.arrays.shape import Shape
from lbrx.errors import GradientError
from lbrx.gradients.rules.elementwise import slope_of
from lbrx.ops.quantized import stored_names, values_shape, weights_of
from lbrx.ops.vjp import differentiable
from lbrx.tensors.core import Tensor, call

DECODED = 1 << 22
"""Elements of a quantized weight that are decoded at a time."""


def _matmul(
    g: Tensor, x: Tensor, y: Tensor, bias: Tensor | None, activation: str | None
) -> Mapping[str, Tensor]:
    if activation is not None:
        # What the activation was applied to is computed again, so that only the operands are kept.
        g = g * slope_of(activation, call("matmul", x, y, bias))
    found = _product(g, x, y)
    return {**found, "bias": g} if bias is not None else found


def _product(g: Tensor, x: Tensor, y: Tensor) -> Mapping[str, Tensor]:
    rows, columns = x.ndim > 1, y.ndim > 1
    left = x if rows else x[None]
    right = y if columns else y[..., None]
    own = g if columns else g[..., None]
    own = own if rows else own[..., None, :]
    of_left, of_right = own @ right.mT, _weights(left, own, right)
    return {
        "x": of_left if rows else of_left[..., 0, :],
        "y": of_right if columns else of_right[..., 0],
    }


def _weights(x: Tensor, g: Tensor, y: Tensor) -> Tensor:
    """x.mT @ g, where one matrix y served all of a batch as one product over all of its rows."""
    if y.ndim > 2 or x.ndim == 2:
        return x.mT @ g
    return x.reshape(-1, x.shape[-1]).mT @ g.reshape(-1, g.shape[-1])


def _quantized_matmul(
    g: Tensor | tuple[Tensor, ...], codes: Sequence[Tensor], scheme: str, count: int
) -> Mapping[str, Tensor]:
    gradients = g if isinstance(g, tuple) else (g,)
    parts = [
        part
        for own, weight in zip(gradients, weights_of(codes, count), strict=True)
        for part in _times_decoded(own, weight, scheme)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return {"x": total}


def _times_decoded(g: Tensor, weight: Sequence[Tensor], scheme: str) -> list[Tensor]:
    """The products of columns of g with rows of the weight, decoded some rows at a time."""
    found = quant.find(scheme)
    assert len(weight) == len(stored_names(found))
    count, width = values_shape(found, weight[0].shape)
    step = max(DECODED // max(width, 1), 1)
    return [
        g[..., start : start + step]
        @ call(
            "decode_blocks",
            *(part[start : start + step] for part in weight),
            scheme=scheme,
            dtype=g.dtype,
        )
        for start in range(0, count, step)
    ]


# ---- experts ----


def _experts_of_rows(
    g: Tensor | tuple[Tensor, ...],
    indices: Tensor,
    codes: Sequence[Tensor],
    shapes: Sequence[Shape],
    scheme: str | None,
    count: int,
) -> Tensor:
    """The gradients of each use, multiplied by the experts that it was sent to. Of quantized stacks
    some experts are decoded at a time."""
    gradients = g if isinstance(g, tuple) else (g,)
    total: Tensor | None = None
    for own, parts in zip(gradients, weights_of(codes, count), strict=True):
        for part in _times_experts(own, indices, parts, scheme):
            total = part if total is None else total + part
    assert total is not None
    return total if len(shapes[0]) == 3 else total.sum(axis=1)


def _times_experts(
    g: Tensor, indices: Tensor, parts: Sequence[Tensor], scheme: str | None
) -> Iterator[Tensor]:
    if scheme is None:
        yield call("expert_matmul", g, indices, parts[0].mT)
        return
    experts, rows, width = values_shape(quant.find(scheme), parts[0].shape)
    step = max(DECODED // (rows * width), 1)
    chosen = call("clip", indices, 0, experts - 1)
    for start in range(0, experts, step):
        some = [part[start : start + step] for part in parts]
        stack = call("decode_blocks", *some, scheme=scheme, dtype=g.dtype)
        here = (chosen >= start) & (chosen < start + step)
        made = call("expert_matmul", g, chosen - start, stack.mT)
        yield call("where", here[..., None], made, 0)


def _expert_weights(
    g: Tensor | tuple[Tensor, ...],
    x: Tensor,
    indices: Tensor,
    shapes: Sequence[Shape],
    scheme: str | None,
    at: int,
) -> Tensor:
    """For each expert, the product of the gradients and rows of the uses that were sent to it."""
    if scheme is not None:
        raise GradientError("quantized experts are stored and have no gradient: use stop_gradient")
    own = g[at - 2] if isinstance(g, tuple) else g
    experts = shapes[at][0]
    chosen = call("clip", indices, 0, experts - 1)
    rows = (x[:, None] if x.ndim == 2 else x).expand(*indices.shape, x.shape[-1])
    rows = rows.reshape(-1, x.shape[-1])
    products = []
    for expert in range(experts):
        sent = call("where", (chosen == expert)[..., None], own, 0)
        products.append((sent.reshape(-1, own.shape[-1]).mT @ rows)[None])
    return call("concat", *products, axis=0)


differentiable("matmul", _matmul)
differentiable("expert_matmul", x=_experts_of_rows, codes=_expert_weights)
differentiable("quantized_matmul", _quantized_matmul)
