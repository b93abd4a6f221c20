"""Hunyuan 1 (MoE): experts in all layers, beside an MLP that sees every token."""

from __future__ import annotations

from lbrx.errors import FormatError
from lbrx.files.formats.checks import brief
from lbrx.models.architectures import hunyuan_v1_dense
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.experts import Experts, SharedExperts, count_experts
from lbrx.models.layers import GatedMLP, read_gate
from lbrx.models.weights import Weights


class Network(hunyuan_v1_dense.Network):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        config, own = self.config, weights.inside("mlp")
        for key in ("num_experts", "moe_topk"):
            if isinstance(config.settings.get(key), list):
                problem = f"{brief(config.settings[key])} differs by layer, which lbrx does not run"
                raise FormatError(f"config.json: {key}: {problem}")
        experts = Experts(own, config, count_experts(config, "num_experts"), router="gate.wg")
        mlp = SharedExperts(experts, GatedMLP(own.inside("shared_mlp"), config, read_gate(config)))
        return PreNormLayer(weights, config, self.make_attention(weights, index), mlp)
