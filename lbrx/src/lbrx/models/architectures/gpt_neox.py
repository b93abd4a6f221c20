"""GPT-NeoX and Pythia: layer norms, attention and MLP beside each other, a part of heads turns."""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.blocks import Block, LayerNorm, ParallelBlock, PlainMLP
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention, Linear
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class InterleavedAttention(Attention):
    """Attention with one matrix that has queries, keys and values of each head side by side."""

    def __init__(self, weights: Weights, config: ModelConfig, layer: int) -> None:
        super().__init__(weights, config, layer, output="dense")

    def make_projections(self, weights: Weights, config: ModelConfig, bias: bool) -> None:
        rows = 3 * self.heads * self.size
        self.joined = Linear(weights.inside("query_key_value"), rows, config.hidden)

    def project(self, x: Tensor) -> list[Tensor]:
        heads = self.joined(x).reshape(*x.shape[:2], self.heads, 3 * self.size)
        return [heads[..., i * self.size : (i + 1) * self.size] for i in range(3)]


class Network(Decoder):
    names = ("gpt_neox", "embed_in", "layers", "final_layer_norm")
    head_name = "embed_out"

    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        return replace(config, kv_heads=config.heads)

    def make_norm(self, weights: Weights) -> LayerNorm:
        return LayerNorm(weights, self.config.hidden, self.config.norm_eps)

    def make_layer(self, weights: Weights, index: int) -> Block | ParallelBlock:
        attention = InterleavedAttention(weights.inside("attention"), self.config, index)
        mlp = PlainMLP(weights.inside("mlp"), self.config, ("dense_h_to_4h", "dense_4h_to_h"))
        norm = self.make_norm(weights.inside("input_layernorm"))
        mlp_norm = self.make_norm(weights.inside("post_attention_layernorm"))
        if self.config.settings.get("use_parallel_residual", True):
            return ParallelBlock(attention, mlp, norm, mlp_norm)
        return Block(attention, mlp, before_attention=norm, before_mlp=mlp_norm)
