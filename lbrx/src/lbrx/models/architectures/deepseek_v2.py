"""DeepSeek V2: latent attention, and experts by softmax scores in groups."""

from __future__ import annotations

from lbrx.models.architectures import deepseek_v3
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.experts import grouped_experts
from lbrx.models.latent_attention import LatentAttention
from lbrx.models.weights import Weights


class Network(deepseek_v3.Network):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = LatentAttention(weights.inside("self_attn"), self.config, index)
        mlp = grouped_experts(self.config, weights.inside("mlp"), index, softmax=True)
        return PreNormLayer(weights, self.config, attention, mlp)
