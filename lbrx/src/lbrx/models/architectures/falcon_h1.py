"""Falcon-H1: attention and Mamba 2 beside each other in every layer, with many factors."""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.architectures.granitemoehybrid import sizes_of
from lbrx.models.blocks import Block
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attention, GatedMLP, read_gate
from lbrx.models.recurrent import Mamba2
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class ScaledKeys(Attention):
    """Attention whose keys are multiplied by a factor."""

    key_factor = 1.0

    def project(self, x: Tensor) -> list[Tensor]:
        queries, keys, values = super().project(x)
        return [queries, keys * self.key_factor, values]


class Both:
    """mamba(x) + attention(x), each times its factors."""

    def __init__(self, weights: Weights, config: ModelConfig, layer: int) -> None:
        number = config.number
        self.mamba = Mamba2(
            weights.inside("mamba"),
            config,
            layer,
            sizes_of(config),
            norm_first=config.settings.get("mamba_norm_before_gate", True) is not False,
            norm_groups=sizes_of(config).groups,
            factors=_factors(config, "ssm_multipliers", 5),
        )
        self.attention = ScaledKeys(weights.inside("self_attn"), config, layer)
        self.attention.key_factor = number("key_multiplier", 1.0)
        self.inner = number("attention_in_multiplier", 1.0)
        self.outer = number("attention_out_multiplier", 1.0)
        self.to_mamba = number("ssm_in_multiplier", 1.0)
        self.of_mamba = number("ssm_out_multiplier", 1.0)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        attended = self.attention(x * self.inner, step) * self.outer
        return self.mamba(x * self.to_mamba, step) * self.of_mamba + attended


def _factors(config: ModelConfig, key: str, count: int) -> list[float]:
    given = config.settings.get(key)
    return [float(each) for each in given] if isinstance(given, list) else [1.0] * count


class ScaledMLP(GatedMLP):
    """down(activation(gate(x) * a) * up(x)) * b."""

    factors = (1.0, 1.0)

    def __call__(self, x: Tensor) -> Tensor:
        first, last = self.factors
        return self.down(self.activation(self.gate(x) * first, self.up(x))) * last


class Network(Decoder):
    names = ("model", "embed_tokens", "layers", "final_layernorm")

    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        return replace(config, states=(sizes_of(config).states,) * config.layers)

    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens) * self.config.number("embedding_multiplier", 1.0)

    @property
    def output_factor(self) -> float:
        return self.config.number("lm_head_multiplier", 1.0)

    def make_layer(self, weights: Weights, index: int) -> Block:
        mlp = ScaledMLP(weights.inside("feed_forward"), self.config, read_gate(self.config))
        first, last = _factors(self.config, "mlp_multipliers", 2)
        mlp.factors = (first, last)
        return Block(
            Both(weights, self.config, index),
            mlp,
            before_attention=self.make_norm(weights.inside("input_layernorm")),
            before_mlp=self.make_norm(weights.inside("pre_ff_layernorm")),
        )
