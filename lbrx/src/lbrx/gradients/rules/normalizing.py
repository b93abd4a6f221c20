"""Softmax and norms. Means and deviations are computed again from x, which is kept anyway."""

from __future__ import annotations

from collections.abc import Mapping

from lbrx.ops.vjp import differentiable
from lbrx.tensors.core import Tensor


def _softmax(g: Tensor, output: Tensor, axis: int) -> Tensor:
    return output * (g - (g * output).sum(axis=axis, keepdims=True))


def _log_softmax(g: Tensor, output: Tensor, axis: int) -> Tensor:
    return g - output.exp() * g.sum(axis=axis, keepdims=True)


def _rms_norm(g: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> Mapping[str, Tensor]:
    scale = ((x * x).mean(axis=-1, keepdims=True) + eps).rsqrt()
    normal = x * scale
    inner = g if weight is None else g * weight
    own = scale * (inner - normal * (inner * normal).mean(axis=-1, keepdims=True))
    return {"x": own, "weight": g * normal}


def _layer_norm(g: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> Mapping[str, Tensor]:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = ((centred * centred).mean(axis=-1, keepdims=True) + eps).rsqrt()
    normal = centred * scale
    inner = g if weight is None else g * weight
    mean, along = (
        inner.mean(axis=-1, keepdims=True),
        (inner * normal).mean(axis=-1, keepdims=True),
    )
    return {"x": scale * (inner - mean - normal * along), "weight": g * normal, "bias": g}


def _of_sum(g: tuple[Tensor, Tensor], found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The gradients of the norm of a sum that is a result itself."""
    total = found["x"] + g[1]
    return {**found, "x": total, "residual": total}


def _add_rms_norm(
    g: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor], weight: Tensor | None, eps: float
) -> Mapping[str, Tensor]:
    return _of_sum(g, _rms_norm(g[0], output[1], weight, eps))


def _add_layer_norm(
    g: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor], weight: Tensor | None, eps: float
) -> Mapping[str, Tensor]:
    return _of_sum(g, _layer_norm(g[0], output[1], weight, eps))


differentiable("softmax", x=_softmax)
differentiable("log_softmax", x=_log_softmax)
differentiable("rms_norm", _rms_norm)
differentiable("layer_norm", _layer_norm)
differentiable("add_rms_norm", _add_rms_norm)
differentiable("add_layer_norm", _add_layer_norm)
