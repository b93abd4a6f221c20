"""Command R (Cohere): attention and MLP beside each other, after one layer norm without bias."""

from __future__ import annotations

from lbrx.models.blocks import LayerNorm, ParallelBlock
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention, GatedMLP, apply_each, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class HeadNorm:
    """A layer norm of each head, with weights of its own for each."""

    def __init__(self, weights: Weights, heads: int, size: int, eps: float) -> None:
        self.weight = weights.vector("weight", heads, size)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return x.layer_norm(eps=self.eps) * self.weight


class HeadNormAttention(Attention):
    """Attention whose heads of queries and keys have norms of their own."""

    def make_projections(self, weights: Weights, config: ModelConfig, bias: bool) -> None:
        super().make_projections(weights, config, bias)
        heads = {"q_norm": self.heads, "k_norm": self.kv_heads}
        self.norms = [
            HeadNorm(weights.inside(name), count, self.size, config.norm_eps)
            for name, count in heads.items()
        ]

    def project(self, x: Tensor) -> list[Tensor]:
        every = apply_each(x, self.query, self.key, self.value)
        queries, keys, values = (part.reshape(*x.shape[:2], -1, self.size) for part in every)
        query_norm, key_norm = self.norms
        return [query_norm(queries), key_norm(keys), values]


class Network(Decoder):
    def make_norm(self, weights: Weights) -> LayerNorm:
        return LayerNorm(weights, self.config.hidden, self.config.norm_eps)

    @property
    def output_factor(self) -> float:
        return self.config.number("logit_scale", 0.0625)

    def make_layer(self, weights: Weights, index: int) -> ParallelBlock:
        return ParallelBlock(
            self.make_attention(weights.inside("self_attn"), index),
            GatedMLP(weights.inside("mlp"), self.config, read_gate(self.config)),
            self.make_norm(weights.inside("input_layernorm")),
        )

    def make_attention(self, weights: Weights, index: int) -> Attention:
        kind = HeadNormAttention if self.config.settings.get("use_qk_norm") else Attention
        return kind(weights, self.config, index, neighbours=True)
