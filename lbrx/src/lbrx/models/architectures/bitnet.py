"""BitNet b1.58: norms before the last matrix of attention and MLP, and squared ReLUs."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attention, GatedMLP, RMSNorm, apply_each, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class NormedAttention(Attention):
    """Attention with a norm before its last projection."""

    def __init__(self, weights: Weights, config: ModelConfig, layer: int) -> None:
        super().__init__(weights, config, layer)
        width = self.heads * self.size
        self.last_norm = RMSNorm(weights.inside("attn_sub_norm"), width, config.norm_eps)

    def attend(self, projected: list[Tensor], step: ForwardStep) -> Tensor:
        return self.last_norm(super().attend(projected, step))


class NormedMLP(GatedMLP):
    """A gated MLP with a norm before its last matrix."""

    def __init__(self, weights: Weights, config: ModelConfig) -> None:
        super().__init__(weights, config, read_gate(config, default="relu2"))
        self.norm = RMSNorm(weights.inside("ffn_sub_norm"), config.intermediate, config.norm_eps)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.norm(self.activation(*apply_each(x, self.gate, self.up))))


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = NormedAttention(weights.inside("self_attn"), self.config, index)
        mlp = NormedMLP(weights.inside("mlp"), self.config)
        return PreNormLayer(weights, self.config, attention, mlp)
