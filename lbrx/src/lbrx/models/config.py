"""The hyperparameters of a model, from config.json or a GGUF's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lbrx.arrays.shape import Shape
from lbrx.errors import FormatError
from lbrx.files.formats import architecture_tables
from lbrx.files.formats.architecture_tables import hyperparameters
from lbrx.files.formats.architecture_tables import rope_scaling as rope_settings
from lbrx.files.formats.architecture_tables.rope_scaling import number
from lbrx.files.formats.checks import brief
from lbrx.files.stored.stored_model import StoredModel

HEADS = ("lm_head.weight", "language_model.lm_head.weight", "output.weight", "embed_out.weight")
_MAX_SIZE = 1 << 24  # of any axis: a corrupt value fails here rather than in an allocation


@dataclass(frozen=True)
class RopeSettings:
    """Rotary position embedding: how a head's features are rotated by their position."""

    base: float
    dims: int
    """The number of features that are rotated, from the first on."""
    scale: float = 1.0
    """Multiplies positions."""
    factors: tuple[float, ...] | None = None
    """Divide the frequencies, one for each pair of features."""
    amplitude: float = 1.0
    """Multiplies the rotated features."""
    original: int = 0
    """The longest context that `factors` are for; 0 for any."""
    long_factors: tuple[float, ...] | None = None
    """The factors for longer contexts."""

    def for_context(self, tokens: int) -> RopeSettings:
        """These settings with the factors for a context of so many tokens."""
        if self.long_factors is None or tokens <= self.original:
            return self
        return replace(self, factors=self.long_factors)


@dataclass(frozen=True)
class ModelConfig:
    """The hyperparameters of a decoder-only transformer."""

    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    """The maximum number of tokens that the model was trained for."""
    norm_eps: float
    tied: bool
    """Whether the output matrix is the embedding matrix."""
    rope: RopeSettings
    end_tokens: frozenset[int]
    """Token ids that end generation."""
    settings: Mapping[str, Any] = field(repr=False, compare=False)
    """config.json, for settings that only some architectures have."""
    states: tuple[tuple[Shape, ...], ...] = ()
    """For each layer the shapes of what it keeps of a text beside keys and values; empty where no
    layer is recurrent."""
    attending: tuple[int, ...] | None = None
    """The layers that have keys and values; None for all."""

    def integer(self, key: str, default: int = 0) -> int:
        """A setting that is a positive integer or 0."""
        return 0 if self.settings.get(key) == 0 else _size(self.settings, key, default)

    def number(self, key: str, default: float = 0.0) -> float:
        """A setting that is a positive number; the default if it is missing, null or 0."""
        return number(self.settings, key, float) if self.settings.get(key) else default

    def per_layer(self, key: str, index: int) -> Any:
        """The entry for one layer of a setting that is a list; None without such a list."""
        values = self.settings.get(key)
        return values[index] if isinstance(values, list) and index < len(values) else None

    def with_states(self, states: tuple[Shape, ...], attends: Sequence[bool]) -> ModelConfig:
        """These settings with such states for the layers that do not attend."""
        attending = tuple(i for i, own in enumerate(attends) if own)
        return replace(
            self, attending=attending, states=tuple(() if own else states for own in attends)
        )

    @property
    def attending_layers(self) -> Sequence[int]:
        """The layers that have keys and values, in order."""
        return range(self.layers) if self.attending is None else self.attending

    @property
    def state_bytes(self) -> int:
        """The bytes of a text's states."""
        return sum(4 * math.prod(shape) for shapes in self.states for shape in shapes)

    def cache_bytes(self, tokens: int, itemsize: float) -> int:
        """The bytes of the keys and values of so many tokens."""
        values = 2 * len(self.attending_layers) * self.kv_heads * self.head_size * tokens
        return int(values * itemsize)


def model_type_of(model: StoredModel) -> str:
    """The `model_type` of a stored model. Raises FormatError if its files name none."""
    given = model.config
    known = architecture_tables.of_config(given)
    classes = given.get("architectures")
    inner = given.get("text_config")
    named = (
        inner.get("model_type") if isinstance(inner, Mapping) else None,
        given.get("model_type"),
        model.metadata.get("general.architecture"),
        classes[0] if isinstance(classes, list) and classes else None,
    )
    found = known.model_type if known else next(filter(None, named), None)
    if found is None:
        folder = model.path if model.path.is_dir() else model.path.parent
        if (folder / "adapter_config.json").is_file():
            raise FormatError(
                f"{model.path} is an adapter: give BASE+{model.path}, with the model that it was "
                "made for"
            )
        raise FormatError(
            f"{model.path} has no config.json that names a model_type: give a language model, "
            "with its config.json"
        )
    return str(found)


def read_config(model: StoredModel) -> ModelConfig:
    """The hyperparameters of a stored model. Raises FormatError if they are missing or invalid."""
    given = model.config
    if not given:
        raise FormatError(
            f"{model.path} has no config.json: give a language model, with its config.json"
        )
    known = architecture_tables.of_config(given)
    flat = hyperparameters.flat_config(known, given)
    heads = _size(flat, "num_attention_heads")
    kv_heads = _size(flat, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise FormatError(
            f"config.json: num_attention_heads: {heads} is not a multiple of "
            f"num_key_value_heads: {kv_heads}"
        )
    hidden, vocabulary = _size(flat, "hidden_size"), _size(flat, "vocab_size")
    return ModelConfig(
        model_type=known.model_type if known else str(given.get("model_type")),
        layers=_size(flat, "num_hidden_layers"),
        hidden=hidden,
        intermediate=_size(flat, "intermediate_size", 4 * hidden),
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
        raise FormatError(
            f"config.json: {key}: {brief(value)} is not a size: it has to be an integer from 1 to "
            f"{_MAX_SIZE:,}"
        )
    return value


def _is_tied(model: StoredModel, config: Mapping[str, Any]) -> bool:
    """Decided by the tensors: many config.json files leave tie_word_embeddings out."""
    if any(name in model for name in HEADS):
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


def read_rope(config: Mapping[str, Any]) -> RopeSettings:
    """The RoPE settings, with their scaling for long contexts."""
    base = number({"rope_theta": 10000.0, **config}, "rope_theta", float)
    partial = "partial_rotary_factor"
    share = number({partial: config.get(partial) or 1.0}, partial, float)
    dims = int(rope_settings.head_size(config) * min(share, 1.0)) // 2 * 2
    scaling = rope_settings.scaling_of(config)
    match rope_settings.kind_of(scaling):
        case "default" | "none":
            return RopeSettings(base, dims)
        case "dynamic" | "ntk_alpha" if scaling.get("alpha"):  # Hunyuan's, for any length
            stretched = base * number(scaling, "alpha", float) ** (dims / (dims - 2))
            return RopeSettings(stretched, dims)
        case "linear":
            return RopeSettings(base, dims, scale=1 / number(scaling, "factor", float))
        case "llama3":
            return RopeSettings(
                base, dims, factors=tuple(rope_settings.llama3_factors(config).tolist())
            )
        case "yarn":
            return _yarn(base, dims, config)
        case "longrope" | "su":
            return _longrope(base, dims, config)
        case kind:
            raise FormatError(
                f"config.json: rope_scaling: {brief(kind)} is unknown: "
                "lbrx has linear, llama3, yarn and longrope"
            )


def _yarn(base: float, dims: int, config: Mapping[str, Any]) -> RopeSettings:
    """YaRN: high frequencies unchanged, low ones divided by the factor, a ramp between."""
    if base <= 1:
        raise FormatError(f"config.json: rope_theta: {base:g} is not larger than 1, as yarn needs")
    scaling = rope_settings.scaling_of(config)
    factor = number(scaling, "factor", float)
    original = rope_settings.original_context(config)
    bounds = {"beta_fast": 32.0, "beta_slow": 1.0}
    bounds |= {key: scaling[key] for key in bounds if scaling.get(key) is not None}

    def pair(rotations: float) -> float:
        """The pair that makes so many rotations within the original context."""
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    first = pair(number(bounds, "beta_fast", float))
    last = pair(number(bounds, "beta_slow", float))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)
    factors = 1 / (1 - ramp + ramp / factor)
    return RopeSettings(
        base, dims, factors=tuple(factors.tolist()), amplitude=_yarn_amplitude(scaling, factor)
    )


def _yarn_amplitude(scaling: Mapping[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return number(scaling, "attention_factor", float)

    def grown(share: float) -> float:
        return 0.1 * share * math.log(max(factor, 1.0)) + 1

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return grown(number(scaling, "mscale", float)) / grown(
            number(scaling, "mscale_all_dim", float)
        )
    return grown(1.0)


def _longrope(base: float, dims: int, config: Mapping[str, Any]) -> RopeSettings:
    """Phi 3's two lists of factors: for contexts up to the original length, and for longer."""
    lists = rope_settings.long_factors(config)
    short, long = (lists[f"rope_factors_{name}.weight"].tolist() for name in ("short", "long"))
    for factors in (short, long):
        if len(factors) != dims // 2:
            raise FormatError(
                f"config.json: rope_scaling: {len(factors)} factors for {dims} rotated features: "
                f"there have to be {dims // 2}"
            )
    return RopeSettings(
        base,
        dims,
        factors=tuple(short),
        amplitude=rope_settings.attention_factor(config),
        original=rope_settings.original_context(config),
        long_factors=tuple(long),
    )
