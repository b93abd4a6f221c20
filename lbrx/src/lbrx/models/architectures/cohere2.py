"""Command R7B and A (Cohere 2): attention and MLP beside each other, RoPE only with a window."""

from __future__ import annotations

from lbrx.models.architectures import cohere
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights

FAR_LAYER_INTERVAL = 4  # layers from one without a window to the next


class Network(cohere.Network):
    def make_attention(self, weights: Weights, index: int) -> Attention:
        window = self.window(index)
        return Attention(
            weights, self.config, index, use_rope=window > 0, neighbours=True, window=window
        )

    def has_window(self, index: int) -> bool:
        interval = self.config.integer("sliding_window_pattern") or FAR_LAYER_INTERVAL
        return (index + 1) % interval != 0
