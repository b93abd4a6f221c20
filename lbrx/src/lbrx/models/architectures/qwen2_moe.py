"""Qwen 2 MoE: Qwen 2 with experts, and an MLP beside them that sees every token."""

from __future__ import annotations

from lbrx.models.architectures import qwen2
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.architectures.qwen3_moe import make_experts
from lbrx.models.experts import Experts
from lbrx.models.layers import GatedMLP, Linear, read_gate
from lbrx.models.weights import Weights
from lbrx.tensor.core import Tensor


class SharedExperts:
    """experts(x) + sigmoid(gate(x)) * shared(x)."""

    def __init__(self, experts: Experts, shared: GatedMLP, gate: Linear) -> None:
        self.experts = experts
        self.shared = shared
        self.gate = gate

    def __call__(self, x: Tensor) -> Tensor:
        return self.experts(x) + self.shared(x) * self.gate(x).sigmoid()


class Network(qwen2.Network):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = self.make_attention(weights, index)
        experts = make_experts(self, weights, index)
        if experts is None:
            return PreNormLayer(weights, self.config, attention)
        inner = weights.inside("mlp")
        size = self.config.integer("shared_expert_intermediate_size") or None
        shared = GatedMLP(inner.inside("shared_expert"), self.config, read_gate(self.config), size)
        gate = Linear(inner.inside("shared_expert_gate"), 1, self.config.hidden)
        return PreNormLayer(weights, self.config, attention, SharedExperts(experts, shared, gate))
