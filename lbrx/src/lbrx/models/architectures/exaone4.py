"""EXAONE 4: norms after each part and on heads, RoPE only with a window where there are windows."""

from __future__ import annotations

from lbrx.models.blocks import Block
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention, GatedMLP, read_gate
from lbrx.models.weights import Weights

FAR_LAYER_INTERVAL = 4  # layers from one without a window to the next


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> Block:
        window = self.window(index)
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            head_norms=True,
            use_rope=window > 0 or not self.config.integer("sliding_window"),
            window=window,
        )
        return Block(
            attention,
            GatedMLP(weights.inside("mlp"), self.config, read_gate(self.config)),
            after_attention=self.make_norm(weights.inside("post_attention_layernorm")),
            after_mlp=self.make_norm(weights.inside("post_feedforward_layernorm")),
        )

    def has_window(self, index: int) -> bool:
        interval = self.config.integer("sliding_window_pattern") or FAR_LAYER_INTERVAL
        return self.config.integer("sliding_window") > 0 and (index + 1) % interval != 0
