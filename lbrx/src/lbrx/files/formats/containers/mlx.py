"""MLX's quantized models: safetensors with the scales and biases of each weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.files.formats.checks import bad, brief
from lbrx.files.formats.descriptor import ModelFiles, TensorInfo
from lbrx.files.formats.quantized_checkpoints import check_mlx_settings
from lbrx.files.formats.recipe import PackedWeight, Recipe

_WORD = 32
_SETTINGS = "config.json quantization"
_MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")


def packed_weights(files: ModelFiles) -> dict[str, Recipe]:
    """All tensors, where packed words with their scales and biases are one weight."""
    check_mlx_settings(files)
    settings = files.config.get("quantization") or {}
    tensors = files.tensors
    scales = {name: _scales(tensors, name, info) for name, info in tensors.items()}
    beside = {f"{_stem(name)}.{kind}" for name, of in scales.items() if of for kind in _BESIDE}
    return {
        name: info if (of := scales[name]) is None else _packed(files, info, of, settings)
        for name, info in tensors.items()
        if name not in beside
    }


_BESIDE = ("scales", "biases")


def _stem(name: str) -> str:
    """The module of a weight, under which its scales are and config.json has its settings."""
    return name.removesuffix(".weight")


def _scales(tensors: Mapping[str, TensorInfo], name: str, info: TensorInfo) -> TensorInfo | None:
    """The scales beside a tensor, if it is words."""
    return tensors.get(f"{_stem(name)}.scales") if info.encoding.dtype is dt.uint32 else None


def _packed(
    files: ModelFiles,
    weight: TensorInfo,
    scales: TensorInfo,
    settings: Mapping[str, Any],
) -> PackedWeight:
    stem = _stem(weight.name)
    own = settings.get(stem)
    chosen = {**settings, **own} if isinstance(own, dict) else settings
    mode = chosen.get("mode", "affine")
    bits, group = chosen.get("bits"), chosen.get("group_size")
    name = f"mlx:{bits}:{group}" if mode == "affine" else f"mlx:{mode}"
    scheme = quant.SCHEMES.get(name)
    numbers = type(bits) is int and type(group) is int and mode in _MODES
    if scheme is None or not numbers or (scheme.bits, scheme.elements) != (bits, group):
        problem = (
            f"bits {brief(bits)}, group_size {brief(group)}, mode {brief(mode)} are not supported"
        )
        raise bad(files.path, problem, tensor=weight.name, field=_SETTINGS)
    biases = files.tensors.get(f"{stem}.biases")
    words = scheme.elements * scheme.bits // _WORD  # of a group
    if not scales.shape or weight.shape != (*scales.shape[:-1], scales.shape[-1] * words):
        problem = (
            f"shape {weight.shape} with scales of {scales.shape} is not {bits} bits in groups "
            f"of {group}"
        )
        raise bad(files.path, problem, tensor=weight.name, field="shape")
    if (mode == "affine") != (biases is not None) or (biases and biases.shape != scales.shape):
        problem = f"scales and biases do not fit each other in mode {mode}"
        raise bad(files.path, problem, tensor=weight.name, field="biases")
    return PackedWeight(weight.name, name, weight, scales, biases)


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
