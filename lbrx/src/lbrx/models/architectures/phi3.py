"""Phi 3 and 4: Llama with queries, keys and values in one matrix, gate and up in another."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention, Linear, LinearMap, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class JoinedAttention(Attention):
    """Attention whose three projections are one matrix."""

    def make_projections(self, weights: Weights, config: ModelConfig, bias: bool) -> None:
        width = (self.heads + 2 * self.kv_heads) * self.size
        self.joined: LinearMap = Linear(weights.inside("qkv_proj"), width, config.hidden, bias)

    def project(self, x: Tensor) -> list[Tensor]:
        heads = self.joined(x).reshape(*x.shape[:2], self.heads + 2 * self.kv_heads, self.size)
        keys, values = self.heads, self.heads + self.kv_heads
        return [heads[:, :, :keys], heads[:, :, keys:values], heads[:, :, values:]]


class JoinedMLP:
    """A gated MLP with the gate in the first half of one matrix's rows, `up` in the second."""

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    ) -> None:
        joined, down = names
        self.width = config.intermediate
        self.joined = Linear(weights.inside(joined), 2 * self.width, config.hidden)
        self.down = Linear(weights.inside(down), config.hidden, self.width)
        self.activation = read_gate(config)

    def __call__(self, x: Tensor) -> Tensor:
        both = self.joined(x)
        return self.down(self.activation(both[..., : self.width], both[..., self.width :]))


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = JoinedAttention(
            weights.inside("self_attn"), self.config, index, window=self.window(index)
        )
        mlp = JoinedMLP(weights.inside("mlp"), self.config)
        return PreNormLayer(weights, self.config, attention, mlp)

    def has_window(self, index: int) -> bool:
        return True
