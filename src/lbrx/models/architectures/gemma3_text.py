"""Gemma 3: Gemma 2 with norms on heads; one layer in six sees far, with a RoPE of its own."""

from __future__ import annotations

import math
from dataclasses import replace

from lbrx.models.architectures.gemma2 import SHIFT, SandwichLayer, query_scale
from lbrx.models.config import Rope
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights
from lbrx.tensor.core import Tensor

PATTERN = 6  # layers from one that sees far to the next


class Model(Decoder):
    halves = False
    norm_shift = SHIFT

    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens) * math.sqrt(self.config.hidden)

    def make_layer(self, weights: Weights, index: int) -> SandwichLayer:
        far = self._sees_far(index)
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            head_norms=True,
            norm_shift=SHIFT,
            rope=self.config.rope if far else self._near_rope(),
            scale=query_scale(self.config),
            window=0 if far else int(self.config.settings.get("sliding_window") or 0),
        )
        return SandwichLayer(weights, self.config, attention)

    def _sees_far(self, index: int) -> bool:
        kinds = self.config.settings.get("layer_types")
        if isinstance(kinds, list) and len(kinds) > index:
            return bool(kinds[index] == "full_attention")
        pattern = int(self.config.settings.get("sliding_window_pattern") or PATTERN)
        return (index + 1) % pattern == 0

    def _near_rope(self) -> Rope:
        base = float(self.config.settings.get("rope_local_base_freq") or 10000.0)
        return replace(self.config.rope, base=base, scale=1.0, factors=None)
