"""gpt-oss: windows in every other layer, sinks, and experts with biases and a clamped gate."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.experts import Router, Routing, count_experts, experts_used, weighted_sum
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.quantized import embedding, expert_linears


class ClampedExperts:
    """Experts whose gate and up are neighbouring rows of one matrix, with biases:
    (up + 1) * gate * sigmoid(alpha * gate), with both within a limit."""

    def __init__(self, weights: Weights, config: ModelConfig) -> None:
        self.count = count_experts(config, "num_local_experts")
        routing = Routing(experts_used(config, self.count))
        self.router = Router(weights.inside("router"), config, self.count, routing)
        inner, wide, hidden = weights.inside("experts"), config.intermediate, config.hidden
        self.gate_up = inner.stored_stack("gate_up_proj", self.count, 2 * wide, hidden)
        self.down = inner.stored_stack("down_proj", self.count, hidden, wide)
        self.gate_up_bias = inner.vector("gate_up_proj_bias", self.count, 2 * wide)
        self.down_bias = inner.vector("down_proj_bias", self.count, hidden)
        self.limit = config.number("swiglu_limit", 7.0)
        self.alpha = config.number("swiglu_alpha", 1.702)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        shares, chosen = self.router(rows)
        both = self._product(rows, chosen, self.gate_up, self.gate_up_bias)
        gate = both[..., ::2].minimum(self.limit)
        up = both[..., 1::2].clip(-self.limit, self.limit)
        inner = (up + 1) * gate * (gate * self.alpha).sigmoid()
        fed = self._product(inner, chosen, self.down, self.down_bias)
        return weighted_sum(fed, shares).reshape(*x.shape)

    def _product(self, x: Tensor, chosen: Tensor, stack: Tensor, bias: Tensor) -> Tensor:
        (product,) = expert_linears(x, chosen, [stack])
        return product + embedding(bias, chosen, product.dtype, beyond="zeros")


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        own = weights.inside("self_attn")
        attention = Attention(own, self.config, index, window=self.window(index))
        experts = ClampedExperts(weights.inside("mlp"), self.config)
        return PreNormLayer(weights, self.config, attention, experts)

    def has_window(self, index: int) -> bool:
        return index % 2 == 0
