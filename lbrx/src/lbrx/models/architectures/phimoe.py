"""Phi-3.5-MoE: layer norms, and two experts, each weighted among those nearly as good."""

from __future__ import annotations

import math

from lbrx.arrays import dtype as dt
from lbrx.models.blocks import Block, LayerNorm
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.experts import Experts, Router, Routing, count_experts
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import concat, where


class SparseMixer(Router):
    """The best expert, weighted by the softmax of the logits that are nearly as large; then the
    best of the others, in the same way."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.linear(x).astype(dt.float32)
        first, best = logits.topk(1)
        others = where(self._is(best, self.count)[:, 0] > 0, -math.inf, logits)
        second, next_best = others.topk(1)
        shares = [
            self._share(allowed, logits, largest)
            for allowed, largest in ((logits, first), (others, second))
        ]
        return concat(shares, axis=-1), concat([best, next_best], axis=-1)

    def _share(self, allowed: Tensor, logits: Tensor, largest: Tensor) -> Tensor:
        """The softmax at the largest of the allowed logits."""
        far = (largest - logits) / logits.abs().maximum(largest) > 2 * self.routing.tolerance
        near = where(far, -math.inf, allowed)
        return 1 / (near - largest).exp().sum(axis=-1, keepdims=True)


class Network(Decoder):
    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        head = weights.inside("lm_head")
        self.head_bias = None
        if "bias" in head:
            self.head_bias = head.vector("bias", config.vocabulary).astype(dt.float32)

    def make_norm(self, weights: Weights) -> LayerNorm:
        return LayerNorm(weights, self.config.hidden, self.config.norm_eps)

    def make_layer(self, weights: Weights, index: int) -> Block:
        config, own = self.config, weights.inside("block_sparse_moe")
        attention = Attention(weights.inside("self_attn"), config, index, window=self.window(index))
        count = count_experts(config, "num_local_experts")
        routing = Routing(2, tolerance=config.number("router_jitter_noise", 0.01))
        names = ("w1", "w3", "w2")
        experts = Experts(own, config, count, routing=routing, names=names, chooser=SparseMixer)
        return Block(
            attention,
            experts,
            before_attention=self.make_norm(weights.inside("input_layernorm")),
            before_mlp=self.make_norm(weights.inside("post_attention_layernorm")),
        )

    def logits_of(self, normed: Tensor) -> Tensor:
        result = super().logits_of(normed)
        return result if self.head_bias is None else result + self.head_bias

    def has_window(self, index: int) -> bool:
        return True
