"""RoPE scaling: in config.json it is settings, in GGUF some of it is a tensor of factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Factors = NDArray[np.float32]
# Every Llama 3 has these; only the factor differs.
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def scaling_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The scaling settings, wherever a version of Hugging Face's library put them."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return scaling if isinstance(scaling, Mapping) else {}


def kind_of(scaling: Mapping[str, Any]) -> str:
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def head_size(config: Mapping[str, Any]) -> int:
    given = config.get("head_dim")
    return int(given or config["hidden_size"] // config["num_attention_heads"])


def llama3_factors(config: Mapping[str, Any]) -> Factors:
    """What frequencies are divided by: 1 for short waves, `factor` for long, a blend between."""
    scaling = scaling_of(config)
    size = head_size(config)
    theta = float(config.get("rope_theta") or scaling.get("rope_theta") or 10000.0)
    wave = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    low, high = (float(scaling[f"{name}_freq_factor"]) for name in ("low", "high"))
    length = float(scaling["original_max_position_embeddings"])
    factor = float(scaling["factor"])
    blend = ((length / wave - low) / (high - low)).clip(0, 1)
    # A blend of frequencies, so of reciprocals.
    factors: Factors = (1 / ((1 - blend) / factor + blend)).astype(np.float32)
    return factors


def llama3_scaling(factors: NDArray[Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings that give these factors, or None if Llama 3's do not."""
    scaling = {**_LLAMA3, "factor": float(factors.max())}
    guess = llama3_factors({**config, "rope_scaling": scaling})
    is_right = guess.shape == factors.shape and np.allclose(guess, factors, rtol=1e-4)
    return scaling if is_right else None


def long_factors(config: Mapping[str, Any]) -> dict[str, Factors]:
    """Phi 3's two lists, by the names of their tensors."""
    scaling = scaling_of(config)
    return {
        f"rope_factors_{name}.weight": np.asarray(scaling[f"{name}_factor"], np.float32)
        for name in ("long", "short")
        if f"{name}_factor" in scaling
    }


def attention_factor(config: Mapping[str, Any]) -> float:
    """Phi 3's correction for longer contexts."""
    longest = config["max_position_embeddings"]
    original = config.get("original_max_position_embeddings", longest)
    scale = longest / original
    return 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))
