"""MLX's quantized models: safetensors whose weights have scales and biases beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lbrx import quant
from lbrx.formats.checks import bad, brief
from lbrx.formats.descriptor import ModelFiles, TensorInfo
from lbrx.formats.recipe import MlxWeight, Recipe

_BITS = (2, 3, 4, 5, 6, 8)
_GROUPS = (16, 32, 64, 128)
_WORD = 32
_MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")


def packed_weights(files: ModelFiles) -> dict[str, Recipe]:
    """All tensors, with those that belong to one weight made one."""
    settings = files.config.get("quantization") or {}
    tensors = files.tensors
    result: dict[str, Recipe] = {}
    for name, info in tensors.items():
        stem, _, kind = name.rpartition(".")
        if kind in ("scales", "biases") and f"{stem}.weight" in tensors:
            continue
        scales = tensors.get(f"{stem}.scales") if kind == "weight" else None
        result[name] = info if scales is None else _packed(files, stem, info, scales, settings)
    return result


def _packed(
    files: ModelFiles,
    stem: str,
    weight: TensorInfo,
    scales: TensorInfo,
    settings: Mapping[str, Any],
) -> MlxWeight:
    own = settings.get(stem)
    chosen = {**settings, **own} if isinstance(own, dict) else settings
    mode = chosen.get("mode", "affine")
    bits, group = chosen.get("bits"), chosen.get("group_size")
    if bits not in _BITS or group not in _GROUPS or mode not in _MODES:
        problem = f"bits {brief(bits)}, group_size {brief(group)}, mode {brief(mode)} are not MLX's"
        raise bad(files.path, problem, tensor=weight.name, field="config.json quantization")
    biases = files.tensors.get(f"{stem}.biases")
    recipe = MlxWeight(weight.name, weight, scales, biases, mode, bits, group)
    if not scales.shape or weight.shape != (*scales.shape[:-1], recipe.shape[-1] * bits // _WORD):
        problem = (
            f"shape {weight.shape} with scales of {scales.shape} is not {bits} bits in groups "
            f"of {group}"
        )
        raise bad(files.path, problem, tensor=weight.name, field="shape")
    if (mode == "affine") != (biases is not None) or (biases and biases.shape != scales.shape):
        problem = f"scales and biases do not fit each other in mode {mode}"
        raise bad(files.path, problem, tensor=weight.name, field="biases")
    return recipe


def quantization_config(schemes: Mapping[str, str]) -> dict[str, Any]:
    """config.json's `quantization` for modules and their schemes: the most frequent one for all,
    the others by name."""
    counts = Counter(schemes.values())
    (usual, _), *_ = counts.most_common(1)
    own = {path: _settings(scheme) for path, scheme in schemes.items() if scheme != usual}
    return {**_settings(usual), **own}


def _settings(scheme: str) -> dict[str, Any]:
    found = quant.find(scheme)
    last = scheme.split(":")[1]
    mode = last if last in _MODES else "affine"
    return {"group_size": found.group_size, "bits": found.bits, "mode": mode}
