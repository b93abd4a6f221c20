"""The parts of transformer layers: linear maps, norms, RoPE, attention, gated MLPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError
from lbrx.files.formats.checks import brief
from lbrx.models.config import ModelConfig, RopeSettings
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.tensors.quantized import linear, linears

LinearMap = Callable[[Tensor], Tensor]
Update = Callable[[Tensor, Tensor], Tensor]
"""From x and its product with a weight to the product with the adapted weight."""


class Linear:
    """x @ weight.T + bias. The bias is used if the file has one, and required with `bias=True`.
    Adapters change the products with the matrix."""

    def __init__(self, weights: Weights, outputs: int, inputs: int, bias: bool = False) -> None:
        self.weight = weights.matrix("weight", outputs, inputs)
        self.bias = weights.vector("bias", outputs) if bias or "bias" in weights else None
        self.name = weights.prefix.removesuffix(".")
        self.paired = weights.has_pairs
        """Whether its rows are in the pairs of `Weights`."""
        self.head_size = weights.head_size
        self.update: Update | None = weights.update(self.weight)
        """What adapters make of its products, also one that is being trained."""

    def __call__(self, x: Tensor) -> Tensor:
        if self.update is None:
            return apply_weight(x, self.weight, self.bias)
        return self.finished(x, apply_weight(x, self.weight))

    def finished(self, x: Tensor, product: Tensor) -> Tensor:
        """The result for x, from its product with the weight."""
        if self.update is not None:
            product = self.update(x, product)
        return product if self.bias is None else product + self.bias


def apply_each(x: Tensor, *maps: Linear) -> list[Tensor]:
    """Several linear maps of the same x. Quantized weights share one packed copy of x."""
    if any(each.weight.metadata.quantization is None for each in maps):
        return [each(x) for each in maps]
    products = linears(x, [each.weight for each in maps])
    return [each.finished(x, product) for product, each in zip(products, maps, strict=True)]


def apply_weight(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` with the result in the dtype of x; unquantized weights multiply in their own."""
    if weight.metadata.quantization is None and weight.dtype is not x.dtype:
        product = linear(x.astype(weight.dtype), weight).astype(x.dtype)
        return product if bias is None else product + bias
    return linear(x, weight, bias)


class Norm(Protocol):
    """Normalises the last axis."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def of_sum(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The norm of x + added, and the sum itself."""
        ...


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * (weight + offset). The offset of Gemma's norms is 1."""

    def __init__(self, weights: Weights, size: int, eps: float, offset: float = 0) -> None:
        weight = weights.vector("weight", size)
        self.weight = weight + offset if offset else weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return x.rms_norm(self.weight, eps=self.eps)

    def of_sum(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The norm of x + added, and the sum itself, in one kernel."""
        if added is None:
            return self(x), x
        normed, total = x.add_rms_norm(added, self.weight, eps=self.eps)
        return normed, total


class Rotary:
    """Rotary position embedding (RoPE) of queries and keys."""

    def __init__(
        self, rope: RopeSettings, weights: Weights, head_size: int, *, neighbours: bool = False
    ) -> None:
        """`neighbours` says that an architecture rotates neighbouring features together."""
        self.rope = rope
        self.interleaved = neighbours or weights.interleaved
        self.factors = None
        if rope.factors is not None:
            self.factors = tensor(np.asarray(rope.factors, np.float32), device=weights.device)
        self.amplitudes = None
        if rope.amplitude != 1:
            values = np.where(np.arange(head_size) < rope.dims, rope.amplitude, 1)
            self.amplitudes = tensor(values, dtype=weights.dtype, device=weights.device)

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x is (batch, heads, tokens, features), positions are (batch, tokens)."""
        rotated = x.rope(
            positions.unsqueeze(1),
            self.factors,
            dims=self.rope.dims,
            base=self.rope.base,
            scale=self.rope.scale,
            interleaved=self.interleaved,
        )
        return rotated if self.amplitudes is None else rotated * self.amplitudes


class Attention:
    """Causal multi-head attention over the KV cache.

    `head_norms` normalises queries and keys per head, with `norm_offset` as in `RMSNorm`;
    `use_rope=False` leaves out positions, `neighbours` is for `Rotary`; `scale` multiplies scores
    (by default the inverse root of the head size); `window` limits how far a token looks back;
    `cap` bounds scores softly; `output` names the last projection.
    """

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        layer: int,
        *,
        bias: bool = False,
        head_norms: bool = False,
        norm_offset: float = 0,
        rope: RopeSettings | None = None,
        use_rope: bool = True,
        neighbours: bool = False,
        scale: float | None = None,
        window: int = 0,
        cap: float = 0,
        output: str = "o_proj",
    ) -> None:
        self.layer = layer
        self.heads, self.kv_heads, self.size = config.heads, config.kv_heads, config.head_size
        self.make_projections(weights, config, bias)
        self.output = self.make_output(weights.inside(output), config)
        self.query_norm = self.key_norm = None
        if head_norms:
            self.query_norm, self.key_norm = (
                RMSNorm(weights.inside(name), self.size, config.norm_eps, norm_offset)
                for name in ("q_norm", "k_norm")
            )
        self.rotary = None
        if use_rope:
            self.rotary = Rotary(rope or config.rope, weights, self.size, neighbours=neighbours)
        self.scale = scale
        self.window = window
        self.cap = cap
        self.sinks = weights.vector("sinks", self.heads) if "sinks" in weights else None

    def make_projections(self, weights: Weights, config: ModelConfig, bias: bool) -> None:
        queries, keys = self.heads * self.size, self.kv_heads * self.size
        self.query = Linear(weights.inside("q_proj"), queries, config.hidden, bias)
        self.key = Linear(weights.inside("k_proj"), keys, config.hidden, bias)
        self.value = Linear(weights.inside("v_proj"), keys, config.hidden, bias)

    def make_output(self, weights: Weights, config: ModelConfig) -> LinearMap:
        """The map from all heads back to hidden states."""
        return Linear(weights, config.hidden, self.heads * self.size)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        return self.output(self.attend(self.project(x), step))

    def attend(self, projected: list[Tensor], step: ForwardStep) -> Tensor:
        """What the heads see, side by side, from what `project` gives."""
        queries, keys, values = projected
        queries, keys = self.placed(queries, keys, step)
        values = values.transpose(1, 2)
        options = {"window": self.window, "scale": self.scale, "cap": self.cap}
        attended = step.attend(self.layer, queries, keys, values, self.sinks, **options)
        batch, _, tokens, _ = attended.shape
        return attended.transpose(1, 2).reshape(batch, tokens, self.heads * self.size)

    def placed(self, queries: Tensor, keys: Tensor, step: ForwardStep) -> tuple[Tensor, Tensor]:
        """Queries and keys with their norms and positions: (batch, heads, tokens, size)."""
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        return self.turned(queries.transpose(1, 2), step), self.turned(keys.transpose(1, 2), step)

    def turned(self, heads: Tensor, step: ForwardStep) -> Tensor:
        """Queries or keys, rotated by their positions where the layer does so."""
        return heads if self.rotary is None else self.rotary(heads, step.positions)

    def project(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values: (batch, tokens, heads, size)."""
        every = apply_each(x, self.query, self.key, self.value)
        return [part.reshape(*x.shape[:2], -1, self.size) for part in every]


Attending = Callable[[Tensor, ForwardStep], Tensor]
Gate = Callable[[Tensor, Tensor], Tensor]


def swiglu(gate: Tensor, x: Tensor) -> Tensor:
    return gate.swiglu(x)


def geglu(gate: Tensor, x: Tensor) -> Tensor:
    return gate.geglu(x)


def squared_relu(gate: Tensor, x: Tensor) -> Tensor:
    opened = gate.relu()
    return opened * opened * x


def geglu_tanh(gate: Tensor, x: Tensor) -> Tensor:
    return gate.geglu(x, approximate="tanh")


GATES: dict[str, Gate] = {
    "silu": swiglu,
    "swish": swiglu,
    "gelu": geglu,
    "gelu_new": geglu_tanh,
    "gelu_pytorch_tanh": geglu_tanh,
    "relu2": squared_relu,
}
"""Gated activations by the names that config.json has for them."""


def read_gate(config: ModelConfig, key: str = "hidden_act", default: str = "silu") -> Gate:
    """The activation that config.json names. Raises FormatError for one that lbrx lacks."""
    given = config.settings.get(key) or default
    gate = GATES.get(str(given))
    if gate is None:
        raise FormatError(
            f"config.json: {key}: {brief(given)} is unknown: lbrx has {', '.join(GATES)}"
        )
    return gate


class GatedMLP:
    """down(activation(gate(x)) * up(x)). `size` is the number of inner features, by default that of
    config.json; `names` are those of gate, up and down."""

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        gate: Gate,
        size: int | None = None,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        wide, hidden = size or config.intermediate, config.hidden
        gate_name, up_name, down_name = names
        self.gate = Linear(weights.inside(gate_name), wide, hidden)
        self.up = Linear(weights.inside(up_name), wide, hidden)
        self.down = Linear(weights.inside(down_name), hidden, wide)
        self.activation = gate

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(*apply_each(x, self.gate, self.up)))


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), in float32: values stay within ±cap."""
    return (x.astype(dt.float32) / cap).tanh() * cap
