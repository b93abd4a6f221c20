"""DeepSeek V3 and R1, Kimi K2: latent attention, and experts by sigmoid scores in groups."""

from __future__ import annotations

from lbrx.models import latent_attention
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.experts import grouped_experts
from lbrx.models.latent_attention import LatentAttention
from lbrx.models.weights import Weights


class Network(Decoder):
    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        return latent_attention.adapted(config)

    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        neighbours = self.config.settings.get("rope_interleave", True) is not False
        own = weights.inside("self_attn")
        attention = LatentAttention(own, self.config, index, neighbours=neighbours)
        mlp = grouped_experts(self.config, weights.inside("mlp"), index)
        return PreNormLayer(weights, self.config, attention, mlp)
