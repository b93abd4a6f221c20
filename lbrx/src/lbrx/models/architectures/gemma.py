"""Gemma 1: Llama with norms that multiply by 1 + weight, and scaled embeddings."""

from __future__ import annotations

from lbrx.models.architectures import gemma2
from lbrx.models.blocks import Block
from lbrx.models.config import ModelConfig
from lbrx.models.layers import Attention, Gate, GatedMLP, geglu_tanh, read_gate
from lbrx.models.weights import Weights


class Network(gemma2.Network):
    def make_layer(self, weights: Weights, index: int) -> Block:
        return Block(
            Attention(weights.inside("self_attn"), self.config, index),
            GatedMLP(weights.inside("mlp"), self.config, _gate(self.config)),
            before_attention=self.make_norm(weights.inside("input_layernorm")),
            before_mlp=self.make_norm(weights.inside("post_attention_layernorm")),
        )


def _gate(config: ModelConfig) -> Gate:
    """Files of the first release say gelu and mean its approximation."""
    if config.settings.get("hidden_activation"):
        return read_gate(config, "hidden_activation")
    is_first = config.settings.get("hidden_act") == "gelu"
    return geglu_tanh if is_first else read_gate(config, default="gelu_pytorch_tanh")
