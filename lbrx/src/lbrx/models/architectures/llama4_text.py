"""Llama 4 (text): experts whose inputs are weighted, beside an MLP, in some or all layers; heads
are normalised after they turn, and do not turn in some layers.

Layers that turn attend within chunks of `attention_chunk_size` tokens. lbrx has no such mask: a
context is at most one chunk.
"""

from __future__ import annotations

from dataclasses import replace

from lbrx.arrays import dtype as dt
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.architectures.ministral3 import growth
from lbrx.models.blocks import Feeding
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.experts import Router, Routing, SharedExperts, count_experts, experts_used
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attention, GatedMLP, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.quantized import expert_linears


class NormedHeadsAttention(Attention):
    """Attention with norms without weights on rotated heads; queries that do not turn grow with
    their position."""

    def __init__(self, weights: Weights, config: ModelConfig, layer: int, *, turns: bool) -> None:
        super().__init__(weights, config, layer, use_rope=turns, neighbours=True)
        self.eps = config.norm_eps if config.settings.get("use_qk_norm", True) else 0.0
        tuned = config.settings.get("attn_temperature_tuning", True)
        self.beta = config.number("attn_scale", 0.1) if tuned and not turns else 0.0
        self.floor = config.number("floor_scale", 8192)

    def placed(self, queries: Tensor, keys: Tensor, step: ForwardStep) -> tuple[Tensor, Tensor]:
        queries, keys = super().placed(queries, keys, step)
        if self.rotary is not None and self.eps:
            return queries.rms_norm(eps=self.eps), keys.rms_norm(eps=self.eps)
        if not self.beta:
            return queries, keys
        grown = growth(step.positions + 1, self.floor, self.beta)
        return queries * grown.reshape(-1, 1, grown.shape[-1], 1).astype(queries.dtype), keys


class WeightedInputs:
    """Experts that see x times the sigmoid of their logit, and are added up."""

    def __init__(self, weights: Weights, config: ModelConfig) -> None:
        count = count_experts(config, "num_local_experts")
        routing = Routing(experts_used(config, count, 1), normalize=False, sigmoid=True)
        self.router = Router(weights.inside("router"), config, count, routing)
        inner, wide, hidden = weights.inside("experts"), config.intermediate, config.hidden
        self.gate_up = inner.stored_stack("gate_up_proj", count, 2 * wide, hidden)
        self.down = inner.stored_stack("down_proj", count, hidden, wide)
        self.width, self.activation = wide, read_gate(config)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        shares, chosen = self.router(rows)
        weighted = rows.unsqueeze(1) * shares.unsqueeze(-1).astype(rows.dtype)
        (both,) = expert_linears(weighted, chosen, [self.gate_up])
        inner = self.activation(both[..., : self.width], both[..., self.width :])
        (fed,) = expert_linears(inner, chosen, [self.down])
        return fed.astype(dt.float32).sum(axis=1).astype(x.dtype).reshape(*x.shape)


class Network(Decoder):
    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        chunk = config.integer("attention_chunk_size") or config.context
        return replace(config, context=min(config.context, chunk))

    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        listed = self.config.per_layer("no_rope_layers", index)
        every = self.config.integer("no_rope_layer_interval", 4) or 4
        turns = bool(listed) if listed is not None else (index + 1) % every != 0
        attention = NormedHeadsAttention(
            weights.inside("self_attn"), self.config, index, turns=turns
        )
        mlp = self._make_mlp(weights.inside("feed_forward"), index)
        return PreNormLayer(weights, self.config, attention, mlp)

    def _make_mlp(self, weights: Weights, index: int) -> Feeding:
        config = self.config
        listed = config.settings.get("moe_layers")
        step = config.integer("interleave_moe_layer_step", 1) or 1
        has_experts = index in listed if isinstance(listed, list) else (index + 1) % step == 0
        if not has_experts:
            size = config.integer("intermediate_size_mlp") or None
            return GatedMLP(weights, config, read_gate(config), size)
        shared = GatedMLP(weights.inside("shared_expert"), config, read_gate(config))
        return SharedExperts(WeightedInputs(weights, config), shared)
