"""GLM 4 of 2024: Llama whose RoPE rotates neighbours in a part of each head; gate and up joined."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.architectures.phi3 import JoinedMLP
from lbrx.models.decoder import Decoder, Layer
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> Layer:
        mlp = JoinedMLP(weights.inside("mlp"), self.config)
        return PreNormLayer(weights, self.config, self.make_attention(weights, index), mlp)

    def make_attention(self, weights: Weights, index: int) -> Attention:
        return Attention(weights.inside("self_attn"), self.config, index, neighbours=True)
