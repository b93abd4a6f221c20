"""Qwen 2 MoE: Qwen 2 with experts, and an MLP beside them that sees every token."""

from __future__ import annotations

from lbrx.models.architectures import qwen2
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.architectures.qwen3_moe import make_experts
from lbrx.models.decoder import Decoder
from lbrx.models.experts import SharedExperts
from lbrx.models.layers import GatedMLP, Linear, read_gate
from lbrx.models.weights import Weights


class Network(qwen2.Network):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = self.make_attention(weights, index)
        return PreNormLayer(weights, self.config, attention, make_mlp(self, weights, index))


def make_mlp(
    network: Decoder, weights: Weights, index: int, *, normalize: bool = False
) -> GatedMLP | SharedExperts:
    """The experts of a layer with the MLP beside them, or an ordinary MLP."""
    config, inner = network.config, weights.inside("mlp")
    experts = make_experts(network, weights, index, normalize=normalize)
    if experts is None:
        return GatedMLP(inner, config, read_gate(config))
    size = config.integer("shared_expert_intermediate_size") or None
    shared = GatedMLP(inner.inside("shared_expert"), config, read_gate(config), size)
    gate = Linear(inner.inside("shared_expert_gate"), 1, config.hidden)
    return SharedExperts(experts, shared, gate)
