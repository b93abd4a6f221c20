"""Attention, transformer layers and positional encodings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import DtypeLike
from lbrx.gradients.custom import checkpoint as checkpointed
from lbrx.nn.activations import relu
from lbrx.nn.layers import Dropout, Linear
from lbrx.nn.module import Module
from lbrx.nn.normalization import LayerNorm
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import arange
from lbrx.tensors.data_types import finfo


class MultiHeadAttention(Module):
    """Scaled dot-product attention of projected queries, keys and values, in several heads."""

    def __init__(
        self,
        dims: int,
        num_heads: int,
        query_input_dims: int | None = None,
        key_input_dims: int | None = None,
        value_input_dims: int | None = None,
        value_dims: int | None = None,
        value_output_dims: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if dims % num_heads:
            raise ValueError(f"{dims} features do not divide into {num_heads} heads")
        queries = query_input_dims or dims
        keys = key_input_dims or dims
        values = value_dims or dims
        self._num_heads = num_heads
        self.query_proj = Linear(queries, dims, bias=bias)
        self.key_proj = Linear(keys, dims, bias=bias)
        self.value_proj = Linear(value_input_dims or keys, values, bias=bias)
        self.out_proj = Linear(values, value_output_dims or dims, bias=bias)

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        own, others, shown = (
            self._heads(layer(x))
            for layer, x in (
                (self.query_proj, queries),
                (self.key_proj, keys),
                (self.value_proj, values),
            )
        )
        made = call("attention", own, others, shown, mask).swapaxes(-2, -3)
        return self.out_proj(made.reshape(*queries.shape[:-1], -1))

    def _heads(self, x: Tensor) -> Tensor:
        *batch, length, dims = x.shape
        parts = x.reshape(*batch, length, self._num_heads, dims // self._num_heads)
        return parts.swapaxes(-2, -3)

    @staticmethod
    def create_additive_causal_mask(n: int, dtype: DtypeLike = dt.float32) -> Tensor:
        """A mask (n, n) that hides later keys: it is added to the scores."""
        places = arange(n)
        hidden: Any = places.reshape(-1, 1) < places
        return call("where", hidden, finfo(dtype).min, 0.0).astype(dtype)


class TransformerEncoderLayer(Module):
    """Self-attention and a feed-forward network, each with a norm before (or after) and a sum."""

    def __init__(
        self,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = relu,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        inner = mlp_dims or dims * 4
        self.attention = MultiHeadAttention(dims, num_heads)
        self.ln1 = LayerNorm(dims)
        self.ln2 = LayerNorm(dims)
        self.linear1 = Linear(dims, inner)
        self.linear2 = Linear(inner, dims)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self._activation = activation
        self._norm_first = norm_first

    def _mlp(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear2(self.dropout2(self._activation(self.linear1(x))))
        return made

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self._norm_first:
            y = self.ln1(x)
            x = x + self.dropout1(self.attention(y, y, y, mask))
            return x + self._mlp(self.ln2(x))
        x = self.ln1(x + self.dropout1(self.attention(x, x, x, mask)))
        made: Tensor = self.ln2(x + self._mlp(x))
        return made


class TransformerEncoder(Module):
    """Encoder layers and a norm. checkpoint=True computes each layer again for its gradient."""

    def __init__(
        self,
        num_layers: int,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = relu,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.layers = [
            TransformerEncoderLayer(dims, num_heads, mlp_dims, dropout, activation, norm_first)
            for _ in range(num_layers)
        ]
        self.ln = LayerNorm(dims)
        self._checkpoint = checkpoint

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = (checkpointed(layer.__call__) if self._checkpoint else layer)(x, mask)
        made: Tensor = self.ln(x)
        return made


class TransformerDecoderLayer(Module):
    """An encoder layer with attention to another sequence between its two parts."""

    def __init__(
        self,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = relu,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        inner = mlp_dims or dims * 4
        self.self_attention = MultiHeadAttention(dims, num_heads)
        self.cross_attention = MultiHeadAttention(dims, num_heads)
        self.ln1 = LayerNorm(dims)
        self.ln2 = LayerNorm(dims)
        self.ln3 = LayerNorm(dims)
        self.linear1 = Linear(dims, inner)
        self.linear2 = Linear(inner, dims)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)
        self._activation = activation
        self._norm_first = norm_first

    def _mlp(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear2(self.dropout3(self._activation(self.linear1(x))))
        return made

    def __call__(
        self,
        x: Tensor,
        memory: Tensor,
        x_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        if self._norm_first:
            y = self.ln1(x)
            x = x + self.dropout1(self.self_attention(y, y, y, x_mask))
            y = self.ln2(x)
            x = x + self.dropout2(self.cross_attention(y, memory, memory, memory_mask))
            return x + self._mlp(self.ln3(x))
        x = self.ln1(x + self.dropout1(self.self_attention(x, x, x, x_mask)))
        x = self.ln2(x + self.dropout2(self.cross_attention(x, memory, memory, memory_mask)))
        made: Tensor = self.ln3(x + self._mlp(x))
        return made


class TransformerDecoder(Module):
    """Decoder layers and a norm. checkpoint=True computes each layer again for its gradient."""

    def __init__(
        self,
        num_layers: int,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = relu,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.layers = [
            TransformerDecoderLayer(dims, num_heads, mlp_dims, dropout, activation, norm_first)
            for _ in range(num_layers)
        ]
        self.ln = LayerNorm(dims)
        self._checkpoint = checkpoint

    def __call__(
        self,
        x: Tensor,
        memory: Tensor,
        x_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        for layer in self.layers:
            run = checkpointed(layer.__call__) if self._checkpoint else layer
            x = run(x, memory, x_mask, memory_mask)
        made: Tensor = self.ln(x)
        return made


class Transformer(Module):
    """An encoder and a decoder that attends to its results."""

    def __init__(
        self,
        dims: int = 512,
        num_heads: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = relu,
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        rest = (dims, num_heads, mlp_dims, dropout, activation, norm_first, checkpoint)
        self.encoder = custom_encoder or TransformerEncoder(num_encoder_layers, *rest)
        self.decoder = custom_decoder or TransformerDecoder(num_decoder_layers, *rest)

    def __call__(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        memory = self.encoder(src, src_mask)
        made: Tensor = self.decoder(tgt, memory, tgt_mask, memory_mask)
        return made


# ---- positions ----


class RoPE(Module):
    """Rotary positions of x (..., length, dims): see `Tensor.rope`. traditional=True rotates
    neighbouring features, otherwise those of the two halves."""

    def __init__(
        self, dims: int, traditional: bool = False, base: float = 10000.0, scale: float = 1.0
    ) -> None:
        super().__init__()
        self._dims = dims
        self._traditional = traditional
        self._base = base
        self._scale = scale

    def _extra_repr(self) -> str:
        return f"{self._dims}, traditional={self._traditional}"

    def __call__(self, x: Tensor, offset: int = 0) -> Tensor:
        positions = arange(offset, offset + x.shape[-2], device=x.device)
        rule: dict[str, Any] = {"dims": self._dims, "base": self._base, "scale": self._scale}
        return call("rope", x, positions, interleaved=self._traditional, **rule)


class SinusoidalPositionalEncoding(Module):
    """Sines and cosines of positions at frequencies from max_freq down to min_freq."""

    def __init__(
        self,
        dims: int,
        min_freq: float = 0.0001,
        max_freq: float = 1,
        scale: float | None = None,
        cos_first: bool = False,
        full_turns: bool = False,
    ) -> None:
        super().__init__()
        halves = dims // 2
        one = 1 - arange(halves) / max(halves - 1, 1)
        low, high = math.log(min_freq), math.log(max_freq)
        speeds = (one * (high - low) + low).exp()
        self._speeds = speeds * (2 * math.pi) if full_turns else speeds
        self._scale = math.sqrt(2 / dims) if scale is None else scale
        self._cos_first = cos_first

    def __call__(self, x: Tensor) -> Tensor:
        angles = x[..., None] * self._speeds
        parts = [angles.cos(), angles.sin()] if self._cos_first else [angles.sin(), angles.cos()]
        return call("concat", *parts, axis=angles.ndim - 1) * self._scale


class ALiBi(Module):
    """Adds to attention scores (batch, heads, queries, keys) a penalty that grows with distance."""

    def __call__(
        self, attention_scores: Tensor, offset: int = 0, mask: Tensor | None = None
    ) -> Tensor:
        heads, queries, keys = attention_scores.shape[-3:]
        device = attention_scores.device
        own = arange(offset, offset + queries, device=device).reshape(-1, 1)
        distance = -(own - arange(keys, device=device)).abs()
        slopes = (arange(1, heads + 1, device=device) * (-8 / heads)).exp2().reshape(-1, 1, 1)
        added = distance * slopes
        scores = attention_scores + added.astype(attention_scores.dtype)
        return scores if mask is None else scores + mask
