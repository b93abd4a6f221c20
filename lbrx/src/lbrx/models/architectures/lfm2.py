"""LFM 2: short convolutions in most layers, attention with norms on heads in the others."""

from __future__ import annotations

from lbrx.models.blocks import Block, Feeding
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attending, Attention, GatedMLP, RMSNorm, read_gate
from lbrx.models.recurrent import ConvolutionLayer
from lbrx.models.weights import Weights

NAMES = ("w1", "w3", "w2")


class Network(Decoder):
    names = ("model", "embed_tokens", "layers", "embedding_norm")

    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        state = (config.hidden, config.integer("conv_L_cache", 3) - 1)
        return config.with_states((state,), [cls._attends(config, i) for i in range(config.layers)])

    @staticmethod
    def _attends(config: ModelConfig, index: int) -> bool:
        listed = config.settings.get("full_attn_idxs")
        kind = config.per_layer("layer_types", index)
        if kind is None and isinstance(listed, list):
            return index in listed
        return bool(kind == "full_attention")

    def make_layer(self, weights: Weights, index: int) -> Block:
        return Block(
            self._make_operator(weights, index),
            self.make_mlp(weights, index),
            before_attention=self.make_norm(weights.inside("operator_norm")),
            before_mlp=self.make_norm(weights.inside("ffn_norm")),
        )

    def make_mlp(self, weights: Weights, index: int) -> Feeding:
        """The MLP of a layer."""
        size, gate = _inner_size(self.config), read_gate(self.config)
        return GatedMLP(weights.inside("feed_forward"), self.config, gate, size, NAMES)

    def _make_operator(self, weights: Weights, index: int) -> Attending:
        if self.config.states[index]:
            return ConvolutionLayer(weights.inside("conv"), self.config, index)
        own = weights.inside("self_attn")
        attention = Attention(own, self.config, index, output="out_proj")
        size, eps = self.config.head_size, self.config.norm_eps
        attention.query_norm = RMSNorm(own.inside("q_layernorm"), size, eps)
        attention.key_norm = RMSNorm(own.inside("k_layernorm"), size, eps)
        return attention


def _inner_size(config: ModelConfig) -> int:
    """The MLP's width: two thirds of the setting, rounded up, unless it says otherwise."""
    size = config.intermediate
    if not config.settings.get("block_auto_adjust_ff_dim", True):
        return size
    size = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    multiple = config.integer("block_multiple_of", 256)
    return -(-size // multiple) * multiple
