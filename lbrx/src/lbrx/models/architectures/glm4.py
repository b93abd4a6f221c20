"""GLM 4 of 2025: GLM with norms after each part too."""

from __future__ import annotations

from lbrx.models.architectures import glm
from lbrx.models.architectures.phi3 import JoinedMLP
from lbrx.models.blocks import Block
from lbrx.models.weights import Weights


class Network(glm.Network):
    def make_layer(self, weights: Weights, index: int) -> Block:
        return Block(
            self.make_attention(weights, index),
            JoinedMLP(weights.inside("mlp"), self.config),
            before_attention=self.make_norm(weights.inside("input_layernorm")),
            after_attention=self.make_norm(weights.inside("post_self_attn_layernorm")),
            before_mlp=self.make_norm(weights.inside("post_attention_layernorm")),
            after_mlp=self.make_norm(weights.inside("post_mlp_layernorm")),
        )
