"""Qwen 3 MoE: Qwen 3 with experts in all layers or in some of them."""

from __future__ import annotations

from lbrx.models.architectures import qwen3
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.experts import Experts, count_experts
from lbrx.models.weights import Weights


class Network(qwen3.Network):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = self.make_attention(weights, index)
        return PreNormLayer(weights, self.config, attention, make_experts(self, weights, index))


def make_experts(
    network: Decoder, weights: Weights, index: int, *, normalize: bool = False
) -> Experts | None:
    """The experts of a layer; None for a layer with an ordinary MLP. The weights of a token's
    experts add up to 1 with `normalize`, or where config.json says so."""
    config = network.config
    dense = config.settings.get("mlp_only_layers")
    every = config.integer("decoder_sparse_step", 1) or 1
    if (isinstance(dense, list) and index in dense) or (index + 1) % every:
        return None
    return Experts(
        weights.inside("mlp"),
        config,
        count_experts(config, "num_experts"),
        normalize=normalize or bool(config.settings.get("norm_topk_prob")),
        size=config.integer("moe_intermediate_size") or None,
    )
