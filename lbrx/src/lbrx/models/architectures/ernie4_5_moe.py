"""ERNIE 4.5 with experts in some layers, chosen with a bias, beside an MLP for every token."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.blocks import Feeding
from lbrx.models.decoder import Decoder
from lbrx.models.experts import Experts, SharedExperts, count_experts
from lbrx.models.layers import Attention, GatedMLP, read_gate
from lbrx.models.weights import Weights


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = Attention(weights.inside("self_attn"), self.config, index, neighbours=True)
        return PreNormLayer(weights, self.config, attention, self._make_mlp(weights, index))

    def _make_mlp(self, weights: Weights, index: int) -> Feeding:
        config, own = self.config, weights.inside("mlp")
        if not self._has_experts(index):
            return GatedMLP(own, config, read_gate(config))
        size = config.integer("moe_intermediate_size")
        experts = Experts(own, config, count_experts(config, "moe_num_experts"), size=size)
        shared = config.integer("moe_num_shared_experts", 2)
        if not shared:
            return experts
        beside = GatedMLP(own.inside("shared_experts"), config, read_gate(config), shared * size)
        return SharedExperts(experts, beside)

    def _has_experts(self, index: int) -> bool:
        config = self.config
        last = config.settings.get("moe_layer_end_index", -1)
        end = config.layers - 1 if not isinstance(last, int) or last < 0 else last
        every = config.integer("moe_layer_interval", 1) or 1
        first = config.integer("moe_layer_start_index", 1)
        return (index + 1) % every == 0 and first <= index <= end
