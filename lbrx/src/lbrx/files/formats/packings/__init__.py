"""Weights that other libraries packed in Hugging Face's checkpoints, as recipes.

A module for each way; `packed_weights` finds them all. What lbrx has no kernels for is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lbrx.files.formats.checks import bad
from lbrx.files.formats.descriptor import ModelFiles
from lbrx.files.formats.packings import (
    bitsandbytes,
    compressed_tensors,
    float8,
    gptq,
    integer8,
    mxfp4,
    nvfp4,
)
from lbrx.files.formats.packings.neighbours import Neighbours, Packing, settings_of
from lbrx.files.formats.recipe import Recipe

_PACKINGS: tuple[Packing, ...] = (
    *mxfp4.PACKINGS,
    *gptq.PACKINGS,
    *compressed_tensors.PACKINGS,
    *nvfp4.PACKINGS,
    *float8.PACKINGS,
    *integer8.PACKINGS,
    *bitsandbytes.PACKINGS,
)
_METHODS = {
    *("awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt"),
    "mxfp4",
}
# Scales of quantized KV caches, which lbrx's caches do not use.
_OF_CACHE = re.compile(r".*\.([qkv]_scale|kv_scale|[kv]_proj\.output_scale)")


def packed_weights(files: ModelFiles) -> dict[str, Recipe]:
    """The tensors of a checkpoint, where those that are packed are one weight each. Tensors beside
    them, such as scales, are then not there under their own names."""
    weights: dict[str, Recipe] = {}
    used: set[str] = set()
    for name in files.tensors:
        for packing in _PACKINGS:
            if not name.endswith(packing.suffix):
                continue
            near = Neighbours(files, name, name.removesuffix(packing.suffix))
            if (weight := packing.read(near)) is not None:
                if weight.name in weights:
                    raise bad(files.path, "is packed in two ways", tensor=weight.name)
                weights[weight.name] = weight
                used |= near.used
                break
    if is_read(files.config):
        if not weights:
            method = method_of(settings_of(files.config))
            what = f"config.json names the quantization {method!r}, which no tensor has"
            raise bad(files.path, f"{what}: remove it from the config of plain weights")
        used |= {name for name in files.tensors if _OF_CACHE.fullmatch(name)}
    rest = {name: info for name, info in files.tensors.items() if name not in used}
    return {**rest, **weights}


def is_read(config: Mapping[str, Any]) -> bool:
    """Whether config.json names a quantization whose weights are read here."""
    return method_of(settings_of(config)) in _METHODS


def method_of(settings: Mapping[str, Any]) -> str | None:
    """The name of a method of quantization."""
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"
    method = settings.get("quant_method")
    return method if isinstance(method, str) else None
