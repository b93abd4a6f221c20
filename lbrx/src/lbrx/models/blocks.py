"""More parts of transformer layers: layer norms, MLPs without a gate, layers by their norms."""

from __future__ import annotations

from collections.abc import Callable

from lbrx.errors import FormatError
from lbrx.files.formats.checks import brief
from lbrx.models.config import ModelConfig
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attending, Linear, Norm
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor

Feeding = Callable[[Tensor], Tensor]


class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias. The bias is used if the file has one."""

    def __init__(self, weights: Weights, size: int, eps: float) -> None:
        self.weight = weights.vector("weight", size)
        self.bias = weights.vector("bias", size) if "bias" in weights else None
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return x.layer_norm(self.weight, self.bias, eps=self.eps)

    def of_sum(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The norm of x + added, and the sum itself, in one kernel."""
        if added is None:
            return self(x), x
        normed, total = x.add_layer_norm(added, self.weight, self.bias, eps=self.eps)
        return normed, total


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x.gelu(),
    "gelu_new": lambda x: x.gelu(approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: x.gelu(approximate="tanh"),
    "relu": lambda x: x.relu(),
    "relu2": lambda x: x.relu() * x.relu(),
    "silu": lambda x: x.silu(),
}
"""Activations by the names that config.json has for them."""


def read_activation(config: ModelConfig, key: str = "hidden_act") -> Callable[[Tensor], Tensor]:
    """The activation that config.json names. Raises FormatError for one that lbrx lacks."""
    given = config.settings.get(key)
    found = ACTIVATIONS.get(str(given))
    if found is None:
        known = ", ".join(ACTIVATIONS)
        raise FormatError(f"config.json: {key}: {brief(given)} is unknown: lbrx has {known}")
    return found


class PlainMLP:
    """down(activation(up(x)))."""

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        names: tuple[str, str],
        key: str = "hidden_act",
    ) -> None:
        wide, hidden = config.intermediate, config.hidden
        self.up = Linear(weights.inside(names[0]), wide, hidden)
        self.down = Linear(weights.inside(names[1]), hidden, wide)
        self.activation = read_activation(config, key)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


def _normed(norm: Norm | None, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
    """The norm of a sum, or without a norm the sum, and the sum."""
    if norm is not None:
        return norm.of_sum(x, added)
    total = x if added is None else x + added
    return total, total


class Block:
    """h = x + scale * after_attention(attention(before_attention(x))), and the same with the MLP.
    Norms that are None are left out."""

    def __init__(
        self,
        attention: Attending,
        mlp: Feeding,
        *,
        before_attention: Norm | None = None,
        after_attention: Norm | None = None,
        before_mlp: Norm | None = None,
        after_mlp: Norm | None = None,
        scale: float = 1.0,
    ) -> None:
        self.attention, self.mlp = attention, mlp
        self.before_attention, self.after_attention = before_attention, after_attention
        self.before_mlp, self.after_mlp = before_mlp, after_mlp
        self.scale = scale

    def __call__(self, x: Tensor, added: Tensor | None, step: ForwardStep) -> tuple[Tensor, Tensor]:
        normed, x = _normed(self.before_attention, x, added)
        attended = self._finished(self.attention(normed, step), self.after_attention)
        normed, x = _normed(self.before_mlp, x, attended)
        return x, self._finished(self.mlp(normed), self.after_mlp)

    def _finished(self, part: Tensor, norm: Norm | None) -> Tensor:
        if norm is not None:
            part = norm(part)
        return part if self.scale == 1 else part * self.scale


class ParallelBlock:
    """x + attention(norm(x)) + mlp(norm(x)); the MLP may have a norm of its own."""

    def __init__(
        self, attention: Attending, mlp: Feeding, norm: Norm, mlp_norm: Norm | None = None
    ) -> None:
        self.attention, self.mlp, self.norm, self.mlp_norm = attention, mlp, norm, mlp_norm

    def __call__(self, x: Tensor, added: Tensor | None, step: ForwardStep) -> tuple[Tensor, Tensor]:
        normed, x = self.norm.of_sum(x, added)
        own = normed if self.mlp_norm is None else self.mlp_norm(x)
        return x, self.attention(normed, step) + self.mlp(own)
