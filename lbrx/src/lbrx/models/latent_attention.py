"""Attention over latents: what a token leaves in the cache is one short vector for all heads."""

from __future__ import annotations

import math
from dataclasses import replace

from lbrx.models.config import ModelConfig, read_rope
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Linear, RMSNorm, Rotary
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import concat
from lbrx.tensors.quantized import dequantize

LATENT_EPS = 1e-6  # of the norms of latents, whatever config.json says of others


def adapted(config: ModelConfig) -> ModelConfig:
    """The hyperparameters with the cache's one row for all heads: a latent, and the rotated part
    that all keys share."""
    rotated = config.integer("qk_rope_head_dim", 64)
    rope = read_rope({**config.settings, "head_dim": rotated, "partial_rotary_factor": 1.0})
    size = config.integer("kv_lora_rank", 512) + rotated
    return replace(config, kv_heads=1, head_size=size, rope=rope)


class LatentAttention:
    """Attention whose keys and values are linear maps of latents.

    The map to keys is applied to queries instead, and the map to values to the weighted sum of
    latents, so that attention reads the latents alone, as keys and as values of one head.
    """

    def __init__(
        self, weights: Weights, config: ModelConfig, layer: int, *, neighbours: bool = True
    ) -> None:
        self.layer, self.heads = layer, config.heads
        self.rank = config.integer("kv_lora_rank", 512)
        self.plain = config.integer("qk_nope_head_dim", 128)
        self.rotated = config.integer("qk_rope_head_dim", 64)
        self.value_size = config.integer("v_head_dim", 128)
        self.scale = (self.plain + self.rotated) ** -0.5 * _yarn_scale(config)
        self._make_queries(weights, config)
        self.latents = Linear(
            weights.inside("kv_a_proj_with_mqa"), self.rank + self.rotated, config.hidden
        )
        self.latent_norm = RMSNorm(weights.inside("kv_a_layernorm"), self.rank, LATENT_EPS)
        self._make_maps(weights)
        self.rotary = Rotary(config.rope, weights, self.rotated, neighbours=neighbours)
        inner = self.heads * self.value_size
        self.output = Linear(weights.inside("o_proj"), config.hidden, inner)

    def _make_queries(self, weights: Weights, config: ModelConfig) -> None:
        width, rank = self.heads * (self.plain + self.rotated), config.integer("q_lora_rank")
        self.query_latents = None
        if not rank:
            self.query = Linear(weights.inside("q_proj"), width, config.hidden)
            return
        self.query_latents = Linear(weights.inside("q_a_proj"), rank, config.hidden)
        self.query_norm = RMSNorm(weights.inside("q_a_layernorm"), rank, LATENT_EPS)
        self.query = Linear(weights.inside("q_b_proj"), width, rank)

    def _make_maps(self, weights: Weights) -> None:
        rows = self.plain + self.value_size
        stored = weights.inside("kv_b_proj").matrix("weight", self.heads * rows, self.rank)
        maps = dequantize(stored, weights.dtype).reshape(self.heads, rows, self.rank)
        self.to_keys = maps[:, : self.plain].contiguous()
        self.to_values = maps[:, self.plain :].mT.contiguous()

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        batch, tokens, _ = x.shape
        own = x if self.query_latents is None else self.query_norm(self.query_latents(x))
        queries = self.query(own).reshape(batch, tokens, self.heads, -1).transpose(1, 2)
        turned = self.rotary(queries[..., self.plain :], step.positions)
        queries = concat([queries[..., : self.plain] @ self.to_keys, turned], axis=-1)
        both = self.latents(x).unsqueeze(1)
        latents = self.latent_norm(both[..., : self.rank])
        rows = concat([latents, self.rotary(both[..., self.rank :], step.positions)], axis=-1)
        seen = step.attend_rows(self.layer, queries, rows, self.rank, scale=self.scale)
        values = (seen @ self.to_values).transpose(1, 2)
        return self.output(values.reshape(batch, tokens, self.heads * self.value_size))


def _yarn_scale(config: ModelConfig) -> float:
    """What YaRN multiplies scores by, beside the factor of rotated features."""
    scaling = config.settings.get("rope_scaling") or config.settings.get("rope_parameters") or {}
    factor, share = scaling.get("factor"), scaling.get("mscale_all_dim")
    if not isinstance(factor, int | float) or not isinstance(share, int | float) or factor <= 1:
        return 1.0
    return float((0.1 * share * math.log(factor) + 1) ** 2)
