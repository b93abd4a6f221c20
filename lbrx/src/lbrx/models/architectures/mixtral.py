"""Mixtral: Mistral with experts."""

from __future__ import annotations

from lbrx.models.architectures import mistral
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.experts import Experts, count_experts
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(mistral.Network):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = Attention(
            weights.inside("self_attn"), self.config, index, window=self.window(index)
        )
        count = count_experts(self.config, "num_local_experts")
        inside = weights.inside("block_sparse_moe")
        experts = Experts(inside, self.config, count, names=("w1", "w3", "w2"))
        return PreNormLayer(weights, self.config, attention, experts)
