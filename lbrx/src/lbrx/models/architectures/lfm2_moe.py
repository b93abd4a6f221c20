"""LFM 2 with experts, which sigmoid scores and a bias choose, after the first layers."""

from __future__ import annotations

from lbrx.models.architectures import lfm2
from lbrx.models.blocks import Feeding
from lbrx.models.experts import Experts, Routing, count_experts, experts_used
from lbrx.models.layers import GatedMLP, read_gate
from lbrx.models.weights import Weights


class Network(lfm2.Network):
    def make_mlp(self, weights: Weights, index: int) -> Feeding:
        config, own = self.config, weights.inside("feed_forward")
        if index < config.integer("num_dense_layers", 2):
            return GatedMLP(own, config, read_gate(config), names=lfm2.NAMES)
        count = count_experts(config, "num_experts")
        routing = Routing(
            experts_used(config, count),
            normalize=config.settings.get("norm_topk_prob", True) is not False,
            sigmoid=True,
            scale=config.number("routed_scaling_factor", 1.0),
        )
        size = config.integer("moe_intermediate_size")
        return Experts(own, config, count, routing=routing, size=size, names=lfm2.NAMES)
