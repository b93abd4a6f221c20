"""An architecture: Llama whose embeddings are multiplied by a setting of config.json."""

from __future__ import annotations

from lbrx.extension.models import Attention, Decoder, PreNormLayer, Weights
from lbrx.extension.tensors import Tensor


class Network(Decoder):
    """A decoder made of lbrx's layers."""

    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        """One layer of the decoder."""
        attention = Attention(weights.inside("self_attn"), self.config, index, bias=False)
        return PreNormLayer(weights, self.config, attention)

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings of tokens."""
        factor: float = self.config.settings.get("embedding_factor", 1.0)
        return super().embed(tokens) * factor
