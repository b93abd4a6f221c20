"""GPT-2: learned positions, layer norms, and matrices that are stored with inputs first."""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.architectures.phi3 import JoinedAttention
from lbrx.models.blocks import Block, LayerNorm, read_activation
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import apply_weight
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.quantized import embedding


class TransposedLinear:
    """x @ weight + bias."""

    def __init__(self, weights: Weights, outputs: int, inputs: int) -> None:
        self.weight = weights.matrix("weight", inputs, outputs).mT
        self.bias = weights.vector("bias", outputs)

    def __call__(self, x: Tensor) -> Tensor:
        return apply_weight(x, self.weight, self.bias)


class TransposedAttention(JoinedAttention):
    """Attention without RoPE, whose projections are joined and stored with inputs first."""

    def __init__(self, weights: Weights, config: ModelConfig, layer: int) -> None:
        super().__init__(weights, config, layer, use_rope=False, output="c_proj")

    def make_projections(self, weights: Weights, config: ModelConfig, bias: bool) -> None:
        self.joined = TransposedLinear(weights.inside("c_attn"), 3 * config.hidden, config.hidden)

    def make_output(self, weights: Weights, config: ModelConfig) -> TransposedLinear:
        return TransposedLinear(weights, config.hidden, config.hidden)


class TransposedMLP:
    """down(activation(up(x)))."""

    def __init__(self, weights: Weights, config: ModelConfig, wide: int) -> None:
        self.up = TransposedLinear(weights.inside("c_fc"), wide, config.hidden)
        self.down = TransposedLinear(weights.inside("c_proj"), config.hidden, wide)
        self.activation = read_activation(config)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Network(Decoder):
    names = ("transformer", "wte", "h", "ln_f")

    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        size = config.hidden // config.heads
        return replace(config, kv_heads=config.heads, head_size=size)

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        whole = weights.inside(self.names[0])
        self.places = whole.inside("wpe").matrix("weight", config.context, config.hidden)

    def make_norm(self, weights: Weights) -> LayerNorm:
        return LayerNorm(weights, self.config.hidden, self.config.norm_eps)

    def embed_at(self, tokens: Tensor, step: ForwardStep) -> Tensor:
        # Padding has positions below zero, of which any row will do.
        places = embedding(self.places, step.positions.maximum(0), self.dtype, beyond="zeros")
        return self.embed(tokens) + places

    def make_layer(self, weights: Weights, index: int) -> Block:
        wide = self.config.integer("n_inner") or 4 * self.config.hidden
        return Block(
            TransposedAttention(weights.inside("attn"), self.config, index),
            TransposedMLP(weights.inside("mlp"), self.config, wide),
            before_attention=self.make_norm(weights.inside("ln_1")),
            before_mlp=self.make_norm(weights.inside("ln_2")),
        )
