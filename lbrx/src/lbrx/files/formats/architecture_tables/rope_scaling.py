"""RoPE scaling: config.json has settings, GGUF stores some of it as a tensor of factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError
from lbrx.files.formats.checks import brief

_MAX_HEAD = 1 << 16
_ORIGINAL = "original_max_position_embeddings"
Factors = NDArray[np.float32]
# All Llama 3 models have these values; only the factor differs.
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    _ORIGINAL: 8192,
}


def scaling_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The scaling settings, which versions of transformers put at different places."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return scaling if isinstance(scaling, Mapping) else {}


def kind_of(scaling: Mapping[str, Any]) -> str:
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


Number = TypeVar("Number", int, float)


def number(settings: Mapping[str, Any], key: str, kind: type[Number]) -> Number:
    """A positive number from config.json, of a size that formulas can take. Raises FormatError for
    anything else."""
    value = settings.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1e-36 < value < 1e18:
        converted = kind(value)
        if converted > 0:
            return converted
    raise FormatError(f"config.json: {key}: {brief(value)} is not a positive number")


def has_heads(config: Mapping[str, Any]) -> bool:
    """Whether the settings tell the size of a head."""
    sizes = [config.get("hidden_size"), config.get("num_attention_heads")]
    return all(isinstance(size, int) and size > 0 for size in sizes)


def head_size(config: Mapping[str, Any]) -> int:
    if config.get("head_dim") is not None:
        size = number(config, "head_dim", int)
    else:
        size = number(config, "hidden_size", int) // number(config, "num_attention_heads", int)
    if not 0 < size <= _MAX_HEAD:
        raise FormatError(f"config.json: heads of size {size:,}, not of 1 to {_MAX_HEAD:,}")
    return size


def llama3_factors(config: Mapping[str, Any]) -> Factors:
    """The divisors of the frequencies: 1 for short waves, `factor` for long ones, blended
    between."""
    scaling = scaling_of(config)
    size = head_size(config)
    theta = number({"rope_theta": 10000.0, **config}, "rope_theta", float)
    wave = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    low, high = (number(scaling, f"{name}_freq_factor", float) for name in ("low", "high"))
    length = number(scaling, _ORIGINAL, float)
    factor = number(scaling, "factor", float)
    if low == high:
        raise FormatError(f"config.json: rope_scaling: low and high_freq_factor are both {low}")
    blend = ((length / wave - low) / (high - low)).clip(0, 1)
    # Frequencies are blended, so these are reciprocals.
    factors: Factors = (1 / ((1 - blend) / factor + blend)).astype(np.float32)
    return factors


def llama3_scaling(factors: NDArray[Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The Llama 3 settings that give these factors; None if there are none."""
    if not 0 < factors.size < 1 << 16 or not factors.max() > 0:
        return None
    scaling = {**_LLAMA3, "factor": float(factors.max())}
    guess = llama3_factors({**config, "rope_scaling": scaling})
    is_right = guess.shape == factors.shape and np.allclose(guess, factors, rtol=1e-4)
    return scaling if is_right else None


def fixed_scaling(factors: NDArray[Any]) -> dict[str, Any]:
    """The settings of arbitrary factors: longrope, with the same factors for every context."""
    values = factors.tolist()
    lists = {"short_factor": values, "long_factor": values}
    return {"rope_type": "longrope", **lists, "attention_factor": 1.0}


def long_factors(config: Mapping[str, Any]) -> dict[str, Factors]:
    """Phi 3's two lists, by the names of their tensors."""
    scaling = scaling_of(config)
    result = {}
    for name in ("long", "short"):
        key = f"{name}_factor"
        factors = scaling.get(key)
        if not isinstance(factors, list):
            raise FormatError(f"config.json: rope_scaling: {key} is not a list of numbers")
        checked = [number({key: factor}, key, float) for factor in factors]
        result[f"rope_factors_{name}.weight"] = np.asarray(checked, np.float32)
    return result


def original_context(config: Mapping[str, Any]) -> int:
    """The context length before scaling; Phi 3 has it outside of the scaling's settings."""
    longest = number(config, "max_position_embeddings", int)
    inner = scaling_of(config).get(_ORIGINAL)
    outer = config.get(_ORIGINAL)
    given = next((value for value in (outer, inner, longest) if value is not None), longest)
    return number({_ORIGINAL: given}, _ORIGINAL, int)


def attention_factor(config: Mapping[str, Any]) -> float:
    """Longrope's correction for longer contexts."""
    scaling = scaling_of(config)
    if scaling.get("attention_factor") is not None:
        return number(scaling, "attention_factor", float)
    original = original_context(config)
    ratio = number(config, "max_position_embeddings", int) / original
    scale = number({"factor": scaling.get("factor") or ratio}, "factor", float)
    return 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(max(original, 2)))
