"""Hunyuan 1 (dense): norms on heads after their rotation."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attention, RMSNorm
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class NormLastAttention(Attention):
    """Attention with norms on the rotated queries and keys of each head."""

    def make_projections(self, weights: Weights, config: ModelConfig, bias: bool) -> None:
        super().make_projections(weights, config, bias)
        self.last_norms = [
            RMSNorm(weights.inside(name), self.size, config.norm_eps)
            for name in ("query_layernorm", "key_layernorm")
        ]

    def placed(self, queries: Tensor, keys: Tensor, step: ForwardStep) -> tuple[Tensor, Tensor]:
        of_queries, of_keys = self.last_norms
        queries, keys = super().placed(queries, keys, step)
        return of_queries(queries), of_keys(keys)


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        return PreNormLayer(weights, self.config, self.make_attention(weights, index))

    def make_attention(self, weights: Weights, index: int) -> Attention:
        """The attention of a layer."""
        bias = bool(self.config.settings.get("attention_bias"))
        return NormLastAttention(weights.inside("self_attn"), self.config, index, bias=bias)
