"""Qwen3-Next: gated delta nets in three of four layers, gated attention in the others; experts."""

from __future__ import annotations

from lbrx.models.architectures.qwen2_moe import make_mlp
from lbrx.models.blocks import Block, Feeding
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attending, Attention, Linear
from lbrx.models.recurrent import DeltaSizes, GatedDeltaNet
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor

NORM_OFFSET = 1.0  # norms are stored minus one, but for those of the delta nets


class GatedAttention(Attention):
    """Attention whose result is multiplied by the sigmoid of a gate, which is projected with the
    queries: each head has both side by side."""

    def __init__(self, weights: Weights, config: ModelConfig, layer: int) -> None:
        super().__init__(weights, config, layer, head_norms=True, norm_offset=NORM_OFFSET)

    def make_projections(self, weights: Weights, config: ModelConfig, bias: bool) -> None:
        keys = self.kv_heads * self.size
        wide = 2 * self.heads * self.size
        self.query = Linear(weights.inside("q_proj"), wide, config.hidden, bias)
        self.key = Linear(weights.inside("k_proj"), keys, config.hidden, bias)
        self.value = Linear(weights.inside("v_proj"), keys, config.hidden, bias)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        both, keys, values = self.project(x)
        both = both.reshape(*x.shape[:2], self.heads, 2 * self.size)
        seen = self.attend([both[..., : self.size], keys, values], step)
        gate = both[..., self.size :].reshape(*seen.shape)
        return self.output(seen * gate.sigmoid())


def sizes_of(config: ModelConfig) -> DeltaSizes:
    """The sizes of gated delta nets."""
    return DeltaSizes(
        config.integer("linear_num_key_heads", 16),
        config.integer("linear_num_value_heads", 32),
        config.integer("linear_key_head_dim", 128),
        config.integer("linear_value_head_dim", 128),
        config.integer("linear_conv_kernel_dim", 4),
    )


class Network(Decoder):
    norm_offset = NORM_OFFSET

    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        interval = config.integer("full_attention_interval", 4) or 4
        kinds = [config.per_layer("layer_types", i) for i in range(config.layers)]
        attends = [
            (i + 1) % interval == 0 if kind is None else kind == "full_attention"
            for i, kind in enumerate(kinds)
        ]
        return config.with_states(sizes_of(config).states, attends)

    def make_layer(self, weights: Weights, index: int) -> Block:
        return Block(
            self._make_mixer(weights, index),
            self.make_mlp(weights, index),
            before_attention=self.make_norm(weights.inside("input_layernorm")),
            before_mlp=self.make_norm(weights.inside("post_attention_layernorm")),
        )

    def _make_mixer(self, weights: Weights, index: int) -> Attending:
        if self.config.states[index]:
            return self.make_recurrent(weights.inside("linear_attn"), index)
        return GatedAttention(weights.inside("self_attn"), self.config, index)

    def make_recurrent(self, weights: Weights, index: int) -> Attending:
        """The gated delta net of a layer."""
        return GatedDeltaNet(weights, self.config, index, sizes_of(self.config))

    def make_mlp(self, weights: Weights, index: int) -> Feeding:
        """The MLP of a layer."""
        return make_mlp(self, weights, index)
