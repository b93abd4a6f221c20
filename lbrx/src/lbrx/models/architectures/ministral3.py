"""Ministral 3, the text part of Mistral 3: queries grow with the logarithm of their position."""

from __future__ import annotations

from collections.abc import Mapping

from lbrx.arrays import dtype as dt
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class GrowingAttention(Attention):
    """Attention whose queries are multiplied by 1 + beta log(1 + floor(position / original))."""

    def __init__(
        self, weights: Weights, config: ModelConfig, layer: int, *, window: int = 0
    ) -> None:
        super().__init__(weights, config, layer, window=window)
        given = config.settings.get("rope_parameters")
        scaling = given if isinstance(given, Mapping) else {}
        self.beta = float(scaling.get("llama_4_scaling_beta") or 0)
        self.original = float(scaling.get("original_max_position_embeddings") or config.context)

    def placed(self, queries: Tensor, keys: Tensor, step: ForwardStep) -> tuple[Tensor, Tensor]:
        queries, keys = super().placed(queries, keys, step)
        if not self.beta:
            return queries, keys
        grown = growth(step.positions, self.original, self.beta)
        return queries * grown.reshape(-1, 1, grown.shape[-1], 1).astype(queries.dtype), keys


def growth(positions: Tensor, original: float, beta: float) -> Tensor:
    """1 + beta log(1 + floor(position / original)), in float32. Padding is below position 0."""
    passed = (positions.astype(dt.float32).maximum(0) / original).floor()
    return 1 + beta * (1 + passed).log()


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        window = self.window(index)
        attention = GrowingAttention(weights.inside("self_attn"), self.config, index, window=window)
        return PreNormLayer(weights, self.config, attention)

    def has_window(self, index: int) -> bool:
        return True
