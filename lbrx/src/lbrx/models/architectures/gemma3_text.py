"""Gemma 3: Gemma 2 with norms on heads; one layer in six sees far, with a RoPE of its own."""

from __future__ import annotations

from lbrx.models.architectures import gemma2
from lbrx.models.architectures.gemma2 import SHIFT, SandwichLayer, query_scale
from lbrx.models.config import RopeSettings
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights

PATTERN = 6  # layers from one that sees far to the next


class Network(gemma2.Network):
    def make_layer(self, weights: Weights, index: int) -> SandwichLayer:
        window = self.window(index)
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            head_norms=True,
            norm_shift=SHIFT,
            rope=self._near_rope() if window else self.config.rope,
            scale=query_scale(self.config),
            window=window,
        )
        return SandwichLayer(weights, self.config, attention)

    def is_near(self, index: int) -> bool:
        return (index + 1) % (self.config.count("sliding_window_pattern") or PATTERN) != 0

    def _near_rope(self) -> RopeSettings:
        """Without the scaling for long texts."""
        return RopeSettings(
            self.config.real("rope_local_base_freq", 10000.0), self.config.rope.dims
        )
