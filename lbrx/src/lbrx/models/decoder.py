"""The frame that all architectures share: embedding, layers, norm, output."""

from __future__ import annotations

from typing import Protocol

from lbrx import dtype as dt
from lbrx.models.config import ModelConfig
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import RMSNorm, capped, multiplied
from lbrx.models.weights import Weights
from lbrx.tensor.core import Tensor
from lbrx.tensor.quantized import embedding


class Layer(Protocol):
    """One layer. The sum of both results is what the layer gives: the next norm adds them up."""

    def __call__(
        self, x: Tensor, added: Tensor | None, step: ForwardStep
    ) -> tuple[Tensor, Tensor]: ...


class Decoder:
    """A decoder-only transformer. An architecture's module has a subclass called `Model`."""

    halves = True
    """Whether half precision holds the values between layers."""
    norm_shift = 0.0
    """What the norms' weights lack."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights.dtype
        self.device = weights.device
        inner = weights.inside("model")
        shape = (config.vocabulary, config.hidden)
        self.embedding = inner.inside("embed_tokens").matrix("weight", *shape)
        self.layers = [
            self.make_layer(inner.inside("layers").inside(i), i) for i in range(config.layers)
        ]
        self.norm = RMSNorm(inner.inside("norm"), config.hidden, config.norm_eps, self.norm_shift)
        self.head = self.embedding
        if not config.tied:
            self.head = weights.inside("lm_head").matrix("weight", *shape)

    def make_layer(self, weights: Weights, index: int) -> Layer:
        raise NotImplementedError

    def window(self, index: int) -> int:
        """How many tokens a layer looks back at; 0 for all."""
        kind = self.config.listed("layer_types", index)
        near = self.is_near(index) if kind is None else kind == "sliding_attention"
        return self.config.count("sliding_window") if near else 0

    def is_near(self, index: int) -> bool:
        """Whether a layer has a window, where config.json has no list of that."""
        return False

    def embed(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) to (batch, tokens, hidden)."""
        # Tokens are checked by whoever gives them: then a step is a single list of kernels.
        return embedding(self.embedding, tokens, self.dtype, beyond="zeros")

    def hidden(self, tokens: Tensor, step: ForwardStep) -> tuple[Tensor, Tensor | None]:
        """What the layers make of tokens: two parts of a sum."""
        x, added = self.embed(tokens), None
        for layer in self.layers:
            x, added = layer(x, added, step)
        return x, added

    def logits(self, tokens: Tensor, step: ForwardStep, *, every: bool = False) -> Tensor:
        """How likely each token of the vocabulary comes next: (batch, vocabulary) after the last
        token, or (batch, tokens, vocabulary) after every one; float32."""
        x, added = self.hidden(tokens, step)
        if not every:
            x, added = x[:, -1], None if added is None else added[:, -1]
        normed, _ = self.norm.of_sum(x, added)
        result = multiplied(normed, self.head).astype(dt.float32)
        cap = self.config.real("final_logit_softcapping")
        return capped(result, cap) if cap else result
