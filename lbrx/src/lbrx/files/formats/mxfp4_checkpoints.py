"""Checkpoints of experts in MXFP4, as Hugging Face's gpt-oss has them.

`NAME_blocks` are bytes of two codes, the first in the low half: (..., rows, blocks, 16), and
`NAME_scales` are exponents: (..., rows, blocks). These are MLX's mxfp4 arrays in another shape, so
they are used as they are stored, under `NAME.weight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lbrx.arrays import dtype as dt
from lbrx.files.formats.checks import bad
from lbrx.files.formats.descriptor import ModelFiles, TensorInfo, plain
from lbrx.files.formats.recipe import MlxWeight, Recipe

BLOCK = 32  # values
_BLOCKS, _SCALES = "_blocks", "_scales"


def packed_weights(files: ModelFiles) -> dict[str, Recipe]:
    """The tensors, with each pair of blocks and scales as one packed weight."""
    result: dict[str, Recipe] = {}
    for name, info in files.tensors.items():
        stem = name.removesuffix(_BLOCKS)
        if name.endswith(_BLOCKS):
            result[f"{stem}.weight"] = _weight(files, stem, info)
        elif not (name.endswith(_SCALES) and name.removesuffix(_SCALES) + _BLOCKS in files.tensors):
            result[name] = info
    return result


def _weight(files: ModelFiles, stem: str, blocks: TensorInfo) -> MlxWeight:
    scales = files.tensors.get(stem + _SCALES)
    if scales is None:
        raise bad(files.path, f"has no scales, {stem + _SCALES}", tensor=blocks.name)
    for info, shape in ((blocks, (*scales.shape, BLOCK // 2)), (scales, scales.shape)):
        if info.encoding.dtype is not dt.uint8 or info.shape != shape or info.strides is not None:
            problem = f"is {info.encoding} of shape {info.shape}, and MXFP4 needs bytes of {shape}"
            raise bad(files.path, problem, tensor=info.name)
    *rows, count = scales.shape
    words = replace(blocks, encoding=plain(dt.uint32), shape=(*rows, count * BLOCK // 8))
    return MlxWeight(f"{stem}.weight", words, scales, None, "mxfp4", 4, BLOCK)


def is_mxfp4(config: Mapping[str, object]) -> bool:
    """Whether a config.json says that experts are stored so."""
    settings = config.get("quantization_config")
    return isinstance(settings, Mapping) and settings.get("quant_method") == "mxfp4"
