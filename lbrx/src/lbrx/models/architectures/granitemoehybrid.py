"""Granite 4: Mamba 2 in most layers and attention in others, with Granite's factors; experts beside
an MLP that sees every token."""

from __future__ import annotations

from dataclasses import replace

from lbrx.errors import FormatError
from lbrx.models.architectures import granite
from lbrx.models.architectures.phi3 import JoinedMLP
from lbrx.models.blocks import Block, Feeding
from lbrx.models.config import ModelConfig
from lbrx.models.layers import Attending, Attention
from lbrx.models.recurrent import Mamba2, MambaSizes
from lbrx.models.weights import Weights

NAMES = ("input_linear", "output_linear")


def sizes_of(config: ModelConfig) -> MambaSizes:
    """The sizes of Mamba layers, under the keys of hybrid models."""
    inner = config.integer("mamba_d_ssm") or config.integer("mamba_expand", 2) * config.hidden
    heads = config.integer("mamba_n_heads", 128)
    return MambaSizes(
        heads,
        inner // heads,
        config.integer("mamba_n_groups", 1),
        config.integer("mamba_d_state", 256),
        config.integer("mamba_d_conv", 4),
    )


class Network(granite.Network):
    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        kinds = [config.per_layer("layer_types", i) for i in range(config.layers)]
        attends = [kind in ("full_attention", "attention") for kind in kinds]
        return config.with_states(sizes_of(config).states, attends)

    def make_layer(self, weights: Weights, index: int) -> Block:
        return Block(
            self._make_mixer(weights, index),
            self.make_mlp(weights),
            before_attention=self.make_norm(weights.inside("input_layernorm")),
            before_mlp=self.make_norm(weights.inside("post_attention_layernorm")),
            scale=self.config.number("residual_multiplier", 1.0),
        )

    def _make_mixer(self, weights: Weights, index: int) -> Attending:
        config = self.config
        if config.states[index]:
            return Mamba2(weights.inside("mamba"), config, index, sizes_of(config))
        return Attention(
            weights.inside("self_attn"),
            config,
            index,
            use_rope=config.settings.get("position_embedding_type") == "rope",
            scale=config.number("attention_multiplier", 1.0),
        )

    def make_mlp(self, weights: Weights) -> Feeding:
        if self.config.integer("num_local_experts"):
            raise FormatError(
                "config.json: num_local_experts: lbrx runs Granite 4 without experts only"
            )
        size = self.config.integer("shared_intermediate_size", 1024)
        own = weights.inside("shared_mlp")
        return JoinedMLP(own, replace(self.config, intermediate=size), NAMES)
