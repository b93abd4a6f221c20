"""What a model's forward pass needs to know, from config.json or a GGUF's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lbrx.errors import FormatError
from lbrx.formats import architectures, hyperparameters
from lbrx.formats import rope as rope_settings
from lbrx.formats.checks import brief
from lbrx.formats.rope import number
from lbrx.tensor.model import Model

_MAX_SIZE = 1 << 24  # of any axis: a corrupt number fails here, not in an allocation


@dataclass(frozen=True)
class Rope:
    """How positions turn the features of a head."""

    base: float
    dims: int
    """How many features turn, from the first on."""
    scale: float = 1.0
    """What positions are multiplied by."""
    factors: tuple[float, ...] | None = None
    """What each pair's speed is divided by."""
    amplitude: float = 1.0
    """What the turned features are multiplied by."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer."""

    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    """The most tokens that the model was made for."""
    norm_eps: float
    tied: bool
    """Whether the output layer is the embedding."""
    rope: Rope
    end_tokens: frozenset[int]
    """Which end a text."""
    settings: Mapping[str, Any] = field(repr=False, compare=False)
    """config.json, for what a single architecture has."""

    def cache_bytes(self, tokens: int, itemsize: int) -> int:
        """Of the keys and values of so many tokens."""
        return 2 * self.layers * self.kv_heads * self.head_size * tokens * itemsize


def read_config(model: Model) -> ModelConfig:
    """The configuration of a model on disk. Raises FormatError for what makes no sense."""
    given = model.config
    if not given:
        raise FormatError(f"{model.path} has no config.json: it is no model that can be run")
    known = architectures.of_config(given)
    flat = hyperparameters.flat_config(known, given) if known else dict(given)
    heads = _size(flat, "num_attention_heads")
    kv_heads = _size(flat, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise FormatError(f"config.json: {heads} heads do not divide among {kv_heads} of keys")
    vocabulary = _size(flat, "vocab_size")
    return ModelConfig(
        model_type=known.model_type if known else str(given.get("model_type")),
        layers=_size(flat, "num_hidden_layers"),
        hidden=_size(flat, "hidden_size"),
        intermediate=_size(flat, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=rope_settings.head_size(flat),
        vocabulary=vocabulary,
        context=_size(flat, "max_position_embeddings", 2048),
        norm_eps=number({"rms_norm_eps": 1e-6, **flat}, "rms_norm_eps", float),
        tied=_is_tied(model, flat),
        rope=read_rope(flat),
        end_tokens=_end_tokens(flat, model.generation_config, vocabulary),
        settings=flat,
    )


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 0 < value <= _MAX_SIZE:
        raise FormatError(f"config.json: {key}: {brief(value)} is no size")
    return value


def _is_tied(model: Model, config: Mapping[str, Any]) -> bool:
    """What the tensors say goes: many a config.json leaves it out."""
    if "lm_head.weight" in model or "output.weight" in model:
        return False
    return bool(config.get("tie_word_embeddings", True))


def _end_tokens(
    config: Mapping[str, Any], generation: Mapping[str, Any], vocabulary: int
) -> frozenset[int]:
    found: list[Any] = []
    for source in (config, generation):
        value = source.get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    return frozenset(x for x in found if type(x) is int and 0 <= x < vocabulary)


def read_rope(config: Mapping[str, Any], base_key: str = "rope_theta") -> Rope:
    """The rotary settings, with their scaling for long contexts."""
    base = number({base_key: 10000.0, **config}, base_key, float)
    share = float(config.get("partial_rotary_factor") or 1.0)
    dims = int(rope_settings.head_size(config) * share) // 2 * 2
    scaling = rope_settings.scaling_of(config)
    match rope_settings.kind_of(scaling):
        case "default" | "none":
            return Rope(base, dims)
        case "linear":
            return Rope(base, dims, scale=1 / number(scaling, "factor", float))
        case "llama3":
            return Rope(base, dims, factors=tuple(rope_settings.llama3_factors(config).tolist()))
        case "yarn":
            return _yarn(base, dims, config)
        case "longrope" | "su":
            return _longrope(base, dims, config)
        case kind:
            raise FormatError(
                f"config.json: rope_scaling: {brief(kind)} is unknown: "
                "lbrx has linear, llama3, yarn and longrope"
            )


def _yarn(base: float, dims: int, config: Mapping[str, Any]) -> Rope:
    """Fast pairs as they are, slow ones slowed down, a ramp between."""
    scaling = rope_settings.scaling_of(config)
    factor = number(scaling, "factor", float)
    longest = {"original_max_position_embeddings": config.get("max_position_embeddings")}
    original = number({**longest, **scaling}, "original_max_position_embeddings", float)
    turns = {"beta_fast": 32.0, "beta_slow": 1.0, **scaling}

    def pair(rotations: float) -> float:
        """The pair that turns so often within the original context."""
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair(number(turns, "beta_fast", float))), 0)
    high = min(math.ceil(pair(number(turns, "beta_slow", float))), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
    factors = 1 / (1 - ramp + ramp / factor)
    amplitude = scaling.get("attention_factor") or 0.1 * math.log(max(factor, 1.0)) + 1
    return Rope(base, dims, factors=tuple(factors.tolist()), amplitude=float(amplitude))


def _longrope(base: float, dims: int, config: Mapping[str, Any]) -> Rope:
    """Phi 3's factors: those for long texts, where the model was made for them."""
    lists = rope_settings.long_factors(config)
    longest = number(config, "max_position_embeddings", int)
    key = "original_max_position_embeddings"
    is_long = longest > number({key: longest, **config}, key, int)
    factors = lists[f"rope_factors_{'long' if is_long else 'short'}.weight"].tolist()
    if len(factors) != dims // 2:
        raise FormatError(f"config.json: rope_scaling: {len(factors)} factors for {dims} features")
    return Rope(
        base, dims, factors=tuple(factors), amplitude=rope_settings.attention_factor(config)
    )
