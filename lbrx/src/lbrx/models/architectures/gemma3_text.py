"""Gemma 3 (text): Gemma 2 with norms on heads; one layer in six has no window and scaled RoPE."""

from __future__ import annotations

from lbrx.models.architectures import gemma2
from lbrx.models.architectures.gemma2 import NORM_OFFSET, SandwichLayer, query_scale
from lbrx.models.config import RopeSettings
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights

GLOBAL_LAYER_INTERVAL = 6  # layers from one without a window to the next


class Network(gemma2.Network):
    def make_layer(self, weights: Weights, index: int) -> SandwichLayer:
        window = self.window(index)
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            head_norms=True,
            norm_offset=NORM_OFFSET,
            rope=self._local_rope() if window else self.config.rope,
            scale=query_scale(self.config),
            window=window,
        )
        return SandwichLayer(weights, self.config, attention)

    def has_window(self, index: int) -> bool:
        interval = self.config.integer("sliding_window_pattern") or GLOBAL_LAYER_INTERVAL
        return (index + 1) % interval != 0

    def _local_rope(self) -> RopeSettings:
        """The RoPE of layers with a window: its own base, and no scaling for long texts."""
        return RopeSettings(
            self.config.number("rope_local_base_freq", 10000.0), self.config.rope.dims
        )
