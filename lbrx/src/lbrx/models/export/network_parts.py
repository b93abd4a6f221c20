"""The weights of a network in the form that a program stores, and what cannot be exported.

Queries and keys are put into Hugging Face's order of features, in which RoPE rotates the two halves
of a head: a program's keys do not depend on the file that the model came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import LbrxError
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.architectures.phi3 import JoinedAttention, JoinedMLP
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention, GatedMLP, Linear, RMSNorm, geglu, geglu_tanh, swiglu
from lbrx.neural_engine.weight_forms import ProgramWeight, WeightForm, program_weight, values_of

WIDTH = 32
"""The last axis of a state must be a multiple of it for the Neural Engine."""
ACTIVATIONS = {swiglu: "silu", geglu: "gelu", geglu_tanh: "gelu_tanh"}


@dataclass(frozen=True)
class Projection:
    """A linear map as a 1x1 convolution."""

    weight: ProgramWeight
    bias: NDArray[np.float16] | None


@dataclass(frozen=True)
class LayerParts:
    """One layer's weights and settings."""

    attention_norm: NDArray[np.float16]
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    query_norm: NDArray[np.float16] | None
    key_norm: NDArray[np.float16] | None
    uses_rope: bool
    scale: float
    """Multiplies scores."""
    window: int
    """The number of tokens that attention sees; 0 for all."""
    mlp_norm: NDArray[np.float16]
    gate: Projection
    up: Projection
    down: Projection
    activation: str

    @property
    def nbytes(self) -> int:
        """Bytes of its matrices in a package."""
        maps = (self.query, self.key, self.value, self.output, self.gate, self.up, self.down)
        return sum(each.weight.nbytes for each in maps)


def check_exportable(network: Decoder) -> None:
    """Raise LbrxError with every part of a network that a program cannot express."""
    reasons = list(dict.fromkeys(_refusals(network)))
    if reasons:
        listed = "".join(f"\n  {reason}" for reason in reasons)
        raise LbrxError(
            f"{network.config.model_type} cannot be exported for the Neural Engine:{listed}\n"
            "export a model of the Llama family, or read prompts on the GPU"
        )


def _refusals(network: Decoder) -> Iterator[str]:
    config = network.config
    if network.weights.adapters is not None:
        yield "adapters beside the weights: give BASE+ADAPTER as the model"
    if config.head_size % WIDTH:
        yield (
            f"head size {config.head_size}: a state's width has to be a multiple of {WIDTH}, so "
            "the cache would leave the Neural Engine"
        )
    if not type(network).supports_float16:
        yield "values between layers exceed the range of fp16: the Neural Engine has no wider type"
    if type(network).embed is not Decoder.embed or type(network).embed_at is not Decoder.embed_at:
        yield "scaled embeddings, or embedded positions: only plain embeddings are translated"
    if network.output_factor != 1:
        yield "scaled logits: not translated"
    if config.number("final_logit_softcapping"):
        yield "capped logits: not translated"
    for layer in network.layers:
        yield from _layer_refusals(layer)


def _layer_refusals(layer: Any) -> Iterator[str]:
    if type(layer) is not PreNormLayer:
        yield f"layers of type {type(layer).__name__}: only layers with norms in front"
        return
    attention: Any = layer.attention
    if type(attention) not in (Attention, JoinedAttention):
        yield f"attention of type {type(attention).__name__}: not translated"
    elif attention.cap:
        yield "capped scores of attention: the operation has no cap"
    if not isinstance(layer.mlp, GatedMLP | JoinedMLP):
        yield f"{type(layer.mlp).__name__}: experts are chosen while it runs, shapes are static"


def half_split(heads: int, size: int, dims: int) -> NDArray[np.intp]:
    """Indices that bring heads of neighbouring pairs of features into two halves."""
    within = np.arange(size)
    within[:dims] = np.arange(dims).reshape(-1, 2).T.reshape(-1)
    return (np.arange(heads)[:, None] * size + within).reshape(-1)


class PartsReader:
    """Reads the layers of a network in one form."""

    def __init__(self, network: Decoder, form: WeightForm) -> None:
        self.network = network
        self.config: ModelConfig = network.config
        self.form = form

    def layer(self, index: int) -> LayerParts:
        layer: Any = self.network.layers[index]
        attention, config = layer.attention, self.config
        query, key, value = self._attention(attention)
        gate, up, down, activation = self._mlp(layer.mlp)
        return LayerParts(
            attention_norm=values_of(layer.attention_norm.weight),
            query=query,
            key=key,
            value=value,
            output=self._projection(attention.output),
            query_norm=self._head_norm(attention.query_norm, attention),
            key_norm=self._head_norm(attention.key_norm, attention),
            uses_rope=attention.rotary is not None,
            scale=config.head_size**-0.5 if attention.scale is None else attention.scale,
            window=attention.window,
            mlp_norm=values_of(layer.mlp_norm.weight),
            gate=gate,
            up=up,
            down=down,
            activation=activation,
        )

    def final_norm(self) -> NDArray[np.float16]:
        norm: Any = self.network.norm
        return values_of(norm.weight)

    def embedding(self) -> ProgramWeight:
        return program_weight(self.network.embedding, self.form)

    def head(self) -> ProgramWeight | None:
        """The output matrix; None where it is the embedding."""
        if self.network.head is self.network.embedding:
            return None
        return program_weight(self.network.head, self.form)

    def _projection(self, linear: Linear, rows: Any = slice(None)) -> Projection:
        weight = program_weight(linear.weight, self.form).take(rows)
        bias = None if linear.bias is None else values_of(linear.bias)[rows]
        return Projection(weight, bias)

    def _attention(self, attention: Attention) -> tuple[Projection, Projection, Projection]:
        config = self.config
        widths = (config.heads, config.kv_heads, config.kv_heads)
        if isinstance(attention, JoinedAttention):
            maps: tuple[Any, ...] = (attention.joined,) * 3
            starts = np.cumsum((0, *widths[:2])) * config.head_size
        else:
            maps = (attention.query, attention.key, attention.value)
            starts = np.zeros(3, np.intp)
        query, key, value = (
            self._projection(linear, start + self._order(heads, attention, rotated))
            for linear, start, heads, rotated in zip(
                maps, starts, widths, (True, True, False), strict=True
            )
        )
        return query, key, value

    def _order(self, heads: int, attention: Attention, rotated: bool) -> NDArray[np.intp]:
        size, rotary = self.config.head_size, attention.rotary
        if rotated and rotary is not None and rotary.interleaved:
            return half_split(heads, size, rotary.rope.dims)
        return np.arange(heads * size)

    def _head_norm(self, norm: RMSNorm | None, attention: Attention) -> NDArray[np.float16] | None:
        return None if norm is None else values_of(norm.weight)[self._order(1, attention, True)]

    def _mlp(self, mlp: Any) -> tuple[Projection, Projection, Projection, str]:
        if isinstance(mlp, JoinedMLP):
            gate = self._projection(mlp.joined, slice(0, mlp.width))
            up = self._projection(mlp.joined, slice(mlp.width, None))
        else:
            gate, up = self._projection(mlp.gate), self._projection(mlp.up)
        return gate, up, self._projection(mlp.down), ACTIVATIONS[mlp.activation]
