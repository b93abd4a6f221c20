"""What all architectures share: embedding, a stack of layers, a final norm, output logits."""

from __future__ import annotations

from typing import Protocol

from lbrx.arrays import dtype as dt
from lbrx.models.config import ModelConfig
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Norm, RMSNorm, apply_weight, softcap
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.quantized import embedding


class Layer(Protocol):
    """One layer: maps (x, added) to another such pair. The hidden states are the sum x + added,
    which the next norm computes in its own kernel; `added` is None for the embedding."""

    def __call__(
        self, x: Tensor, added: Tensor | None, step: ForwardStep
    ) -> tuple[Tensor, Tensor]: ...


class Decoder:
    """A decoder-only transformer. The module of an architecture has a subclass `Network`, which
    defines at least `make_layer`."""

    supports_float16 = True
    """Whether the values between layers fit the range of float16."""
    norm_offset = 0.0
    """What is added to the stored weights of norms."""
    names = ("model", "embed_tokens", "layers", "norm")
    """The names of the whole, the embedding, the layers and the last norm."""
    head_name = "lm_head"

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights.dtype
        self.device = weights.device
        whole, embedding, layers, norm = self.names
        inner = weights.inside(whole)
        shape = (config.vocabulary, config.hidden)
        self.embedding = inner.inside(embedding).matrix("weight", *shape)
        self.layers = [
            self.make_layer(inner.inside(layers).inside(i), i) for i in range(config.layers)
        ]
        self.norm = self.make_norm(inner.inside(norm))
        self.head = self.embedding
        if not config.tied:
            self.head = weights.inside(self.head_name).matrix("weight", *shape)

    @classmethod
    def adapted(cls, config: ModelConfig) -> ModelConfig:
        """The hyperparameters as this architecture uses them: what its cache holds."""
        return config

    def make_norm(self, weights: Weights) -> Norm:
        """A norm of hidden states."""
        return RMSNorm(weights, self.config.hidden, self.config.norm_eps, self.norm_offset)

    @property
    def output_factor(self) -> float:
        """What logits are multiplied by."""
        return 1.0

    def make_layer(self, weights: Weights, index: int) -> Layer:
        """The layer of this index, with the weights below `model.layers.<index>`."""
        raise NotImplementedError

    def window(self, index: int) -> int:
        """The number of tokens that a layer's attention sees; 0 for all."""
        kind = self.config.per_layer("layer_types", index)
        has_window = self.has_window(index) if kind is None else kind == "sliding_attention"
        return self.config.integer("sliding_window") if has_window else 0

    def has_window(self, index: int) -> bool:
        """Whether a layer's attention has a window, if config.json has no `layer_types`."""
        return False

    def embed(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) to (batch, tokens, hidden)."""
        # The caller has checked the tokens: a check here would split a step into two command lists.
        return embedding(self.embedding, tokens, self.dtype, beyond="zeros")

    def embed_at(self, tokens: Tensor, step: ForwardStep) -> Tensor:
        """What enters the first layer, for architectures that embed positions too."""
        return self.embed(tokens)

    def hidden_states(self, tokens: Tensor, step: ForwardStep) -> tuple[Tensor, Tensor | None]:
        """The output of the last layer, as two terms of a sum."""
        x, added = self.embed_at(tokens, step), None
        for layer in self.layers:
            x, added = layer(x, added, step)
        return x, added

    def logits(self, tokens: Tensor, step: ForwardStep, *, every: bool = False) -> Tensor:
        """The logits of the next token in float32: (batch, vocabulary) after the last token, or
        with `every` (batch, tokens, vocabulary) after each one."""
        x, added = self.hidden_states(tokens, step)
        if not every:
            x, added = x[:, -1], None if added is None else added[:, -1]
        normed, _ = self.norm.of_sum(x, added)
        return self.logits_of(normed)

    def logits_of(self, normed: Tensor) -> Tensor:
        """The logits of normalised hidden states, in float32."""
        result = apply_weight(normed, self.head).astype(dt.float32)
        if self.output_factor != 1:
            result = result * self.output_factor
        cap = self.config.number("final_logit_softcapping")
        return softcap(result, cap) if cap else result
