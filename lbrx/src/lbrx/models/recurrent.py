"""Recurrent layers: short convolutions, Mamba 2 and the gated delta net.

Their states are the cache's: the convolution's last inputs first, then the recurrence's matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lbrx.arrays import dtype as dt
from lbrx.arrays.shape import Shape
from lbrx.errors import FormatError
from lbrx.models.config import ModelConfig
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Linear, RMSNorm
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import concat

LEAST_SQUARES = 1e-6  # added to the sum of squares of a key or query of the delta net


class ShortConvolution:
    """A causal convolution of each channel with a few taps."""

    def __init__(self, weights: Weights, layer: int, channels: int, taps: int) -> None:
        self.layer = layer
        self.weight = weights.vector("weight", channels, 1, taps).reshape(channels, taps)
        self.bias = weights.vector("bias", channels) if "bias" in weights else None

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        operands = (x.astype(dt.float32), self.weight.astype(dt.float32), step.positions)
        bias = None if self.bias is None else self.bias.astype(dt.float32)
        return step.recur(self.layer, 0, "short_convolution", *operands, bias).astype(x.dtype)


class ConvolutionLayer:
    """output(c * convolution(b * x)), where one matrix gives b, c and x (LFM 2)."""

    def __init__(self, weights: Weights, config: ModelConfig, layer: int) -> None:
        hidden = config.hidden
        self.input = Linear(weights.inside("in_proj"), 3 * hidden, hidden)
        taps = config.integer("conv_L_cache", 3)
        self.convolution = ShortConvolution(weights.inside("conv"), layer, hidden, taps)
        self.output = Linear(weights.inside("out_proj"), hidden, hidden)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        b, c, inner = split(self.input(x), [x.shape[-1]] * 3)
        return self.output(c * self.convolution(b * inner, step))


@dataclass(frozen=True)
class MambaSizes:
    """The sizes of a Mamba 2 layer."""

    heads: int
    head_size: int
    groups: int
    state: int
    taps: int

    @property
    def inner(self) -> int:
        """Features of all heads."""
        return self.heads * self.head_size

    @property
    def convolved(self) -> int:
        """Channels of the convolution: the heads' values, and the groups' keys and queries."""
        return self.inner + 2 * self.groups * self.state

    @property
    def states(self) -> tuple[Shape, ...]:
        """The shapes of a layer's states."""
        return (
            (self.convolved, self.taps - 1),
            (self.heads, self.head_size, self.state),
        )


class Mamba2:
    """A selective state space: values enter states by keys, which decay, and queries read them.

    If there is a norm, of `norm_groups` groups of features, the gate is applied before it, or with
    `norm_first` after it. `factors` multiply the parts of the projection: gate, values, keys,
    queries and steps.
    """

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        layer: int,
        sizes: MambaSizes,
        *,
        norm_first: bool = False,
        norm_groups: int = 1,
        factors: Sequence[float] = (),
    ) -> None:
        self.layer, self.sizes, self.norm_first = layer, sizes, norm_first
        width = sizes.inner + sizes.convolved + sizes.heads
        self.input = Linear(weights.inside("in_proj"), width, config.hidden)
        self.convolution = ShortConvolution(
            weights.inside("conv1d"), layer, sizes.convolved, sizes.taps
        )
        heads = sizes.heads
        self.decay = -weights.vector("A_log", heads).astype(dt.float32).exp()
        self.step_bias = weights.vector("dt_bias", heads).astype(dt.float32)
        self.skip = weights.vector("D", heads).astype(dt.float32).reshape(heads, 1)
        self.norm = None
        if "norm.weight" in weights:
            self.norm = weights.vector("norm.weight", sizes.inner).astype(dt.float32)
            self.norm_size, self.eps = sizes.inner // norm_groups, config.norm_eps
        self.output = Linear(weights.inside("out_proj"), config.hidden, sizes.inner)
        self.limits = _limits(config)
        self.factors = list(factors)

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        sizes, (batch, tokens, _) = self.sizes, x.shape
        shared = sizes.groups * sizes.state
        parts = split(self.input(x), [sizes.inner, sizes.inner, shared, shared, sizes.heads])
        if self.factors:
            parts = [part * by for part, by in zip(parts, self.factors, strict=True)]
        gate, *convolved, steps = parts
        mixed = self.convolution(concat(convolved, axis=-1), step).silu().astype(dt.float32)
        values, keys, queries = split(mixed, [sizes.inner, shared, shared])
        values = values.reshape(batch, tokens, sizes.heads, sizes.head_size)
        grouped = (batch, tokens, sizes.groups, sizes.state)
        size = softplus(steps.astype(dt.float32) + self.step_bias)
        if self.limits is not None:
            size = size.clip(*self.limits)
        operands = (
            *(values, keys.reshape(grouped), queries.reshape(grouped)),
            *((size * self.decay).exp(), size, step.positions),
        )
        result = step.recur(self.layer, 1, "recurrence", *operands) + values * self.skip
        return self.output(self._gated(result.reshape(*x.shape[:2], -1), gate).astype(x.dtype))

    def _gated(self, result: Tensor, gate: Tensor) -> Tensor:
        opened = gate.astype(dt.float32).silu()
        if self.norm is None:
            return result * opened
        given = result if self.norm_first else result * opened
        groups = given.reshape(*given.shape[:2], -1, self.norm_size).rms_norm(eps=self.eps)
        normed = groups.reshape(given.shape) * self.norm
        return normed * opened if self.norm_first else normed


def _limits(config: ModelConfig) -> tuple[float, float] | None:
    """The least and the largest step; None without limits."""
    given = config.settings.get("time_step_limit")
    if not isinstance(given, list | tuple) or len(given) != 2:
        return None
    # transformers writes infinity as {"__float__": "Infinity"}.
    low, high = (each if isinstance(each, int | float) else math.inf for each in given)
    if low < 0 or high <= low:
        raise FormatError(f"config.json: time_step_limit: {low:g} to {high:g} is not a range")
    return None if low == 0 and high == math.inf else (float(low), float(high))


@dataclass(frozen=True)
class DeltaSizes:
    """The sizes of a gated delta net."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    taps: int

    @property
    def keys(self) -> int:
        """Features of the keys of all heads."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """Features of the values of all heads."""
        return self.value_heads * self.value_size

    @property
    def convolved(self) -> int:
        """Channels of the convolution."""
        return 2 * self.keys + self.values

    @property
    def states(self) -> tuple[Shape, ...]:
        """The shapes of a layer's states."""
        return (
            (self.convolved, self.taps - 1),
            (self.value_heads, self.value_size, self.key_size),
        )


class GatedDeltaNet:
    """Linear attention whose states forget what a key had before they learn its value."""

    def __init__(
        self, weights: Weights, config: ModelConfig, layer: int, sizes: DeltaSizes
    ) -> None:
        self.layer, self.sizes = layer, sizes
        self.make_projections(weights, config)
        self.convolution = ShortConvolution(
            weights.inside("conv1d"), layer, sizes.convolved, sizes.taps
        )
        heads = sizes.value_heads
        self.decay = -weights.vector("A_log", heads).astype(dt.float32).exp()
        self.step_bias = weights.vector("dt_bias", heads).astype(dt.float32)
        self.norm = RMSNorm(weights.inside("norm"), sizes.value_size, config.norm_eps)
        self.output = Linear(weights.inside("out_proj"), config.hidden, sizes.values)

    def make_projections(self, weights: Weights, config: ModelConfig) -> None:
        sizes, hidden = self.sizes, config.hidden
        wide = 2 * sizes.keys + 2 * sizes.values
        self.all_but_gates = Linear(weights.inside("in_proj_qkvz"), wide, hidden)
        self.gates = Linear(weights.inside("in_proj_ba"), 2 * sizes.value_heads, hidden)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is convolved; the output's gate (batch, tokens, heads, size); b and a. Each head of
        keys has its part of everything side by side."""
        sizes, leading = self.sizes, x.shape[:2]
        share = sizes.value_heads // sizes.key_heads
        inner = share * sizes.value_size
        mixed = self.all_but_gates(x).reshape(*leading, sizes.key_heads, -1)
        parts = split(mixed, [sizes.key_size, sizes.key_size, inner, inner])
        *convolved, z = (part.reshape(*leading, -1) for part in parts)
        b, a = split(self.gates(x).reshape(*leading, sizes.key_heads, -1), [share, share])
        z = z.reshape(*leading, sizes.value_heads, sizes.value_size)
        b, a = b.reshape(*leading, -1), a.reshape(*leading, -1)
        return concat(convolved, axis=-1), z, b, a

    def __call__(self, x: Tensor, step: ForwardStep) -> Tensor:
        sizes, leading = self.sizes, x.shape[:2]
        mixed, z, b, a = self.project(x)
        convolved = self.convolution(mixed, step).silu().astype(dt.float32)
        queries, keys, values = split(convolved, [sizes.keys, sizes.keys, sizes.values])
        by_head = (*leading, sizes.key_heads, sizes.key_size)
        queries, keys = unit(queries.reshape(by_head)), unit(keys.reshape(by_head))
        values = values.reshape(*leading, sizes.value_heads, sizes.value_size)
        decay = (softplus(a.astype(dt.float32) + self.step_bias) * self.decay).exp()
        operands = (
            *(values, keys, queries * sizes.key_size**-0.5),
            *(decay, b.astype(dt.float32).sigmoid(), step.positions),
        )
        read = step.recur(self.layer, 1, "recurrence", *operands, delta=True).astype(x.dtype)
        return self.output((self.norm(read) * z.silu()).reshape(*leading, sizes.values))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return x.maximum(0) + (1 + (-x.abs()).exp()).log()


def unit(x: Tensor) -> Tensor:
    """x over its length."""
    return x / ((x * x).sum(axis=-1, keepdims=True) + LEAST_SQUARES).sqrt()


def split(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Consecutive parts of the last axis."""
    parts, first = [], 0
    for size in sizes:
        parts.append(x[..., first : first + size])
        first += size
    return parts
