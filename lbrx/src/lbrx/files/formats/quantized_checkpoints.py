"""Recognises checkpoints that other libraries have quantized in ways that lbrx does not read.

Their weights are codes or unscaled values. Taken as plain weights they give wrong results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.formats.checks import bad, brief, shown
from lbrx.files.formats.descriptor import ModelFiles
from lbrx.files.formats.file_formats import conventions_of
from lbrx.files.formats.packings import is_read, method_of

_REMEDY = (
    "use the checkpoint from which it was quantized, or a GGUF or MLX version of the model, or "
    "dequantize it with the library that made it"
)
# The last parts of the names of tensors that belong to quantized weights.
_TENSORS = {
    "bitsandbytes": r"SCB|weight_format|(nested_)?(absmax|quant_map)|quant_state\.bitsandbytes\w+",
    "GPTQ or AWQ": r"qweight|qzeros|g_idx",
    "HQQ": r"W_q",
    "compressed-tensors": r"weight_(packed|shape|zero_point|g_idx|global_scale)|input_global_scale",
    "fp8 or int8 with scales": r"(weight|activation)_scales?(_inv)?",
    "MXFP4": r"\w+_proj_(blocks|scales)",
    "AQLM": r"codebooks",
    "QuIP#": r"Qidxs",
    "EXL2": r"q_(scale_max|invperm)",
    "EXL3": r"trellis",
    "quanto": r"weight\._(data|scale|shift)",
    "ONNX": r"weight_quantized",
}
_KINDS = {kind: re.compile(rf"(?:.*\.)?(?:{names})") for kind, names in _TENSORS.items()}


def check_readable(files: ModelFiles) -> None:
    """Raise FormatError for a quantization that config.json names and lbrx does not read.

    GGUF's blocks, MLX's `quantization` and the packings of `packings/` are read.
    """
    conventions = conventions_of(files)
    if conventions.describes_itself:
        return
    check_mlx_settings(files)
    if conventions.packs_words and files.config.get("quantization"):
        check_tensors(files, files.tensors)
    elif not is_read(files.config):
        _check_config(files)


def check_mlx_settings(files: ModelFiles) -> None:
    """Raise FormatError if config.json's `quantization` is not what MLX writes there."""
    settings = files.config.get("quantization")
    is_read = isinstance(settings, Mapping) and {"group_size", "bits"} <= settings.keys()
    if settings and not is_read:
        problem = f"{brief(settings)} is not MLX's: it has to be an object with group_size and bits"
        raise bad(files.path, problem, field="config.json quantization")


def _check_config(files: ModelFiles) -> None:
    inner = files.config.get("text_config")
    parts = (files.config, inner if isinstance(inner, Mapping) else {})
    for key in ("quantization_config", "compression_config"):
        for part in parts:
            if part.get(key):
                raise _unread(files, _method(part[key]), f"config.json {key}", key)


def _method(settings: Any) -> str:
    named = method_of(settings) if isinstance(settings, Mapping) else settings
    return brief(named) if named else "an unnamed method"


def check_tensors(files: ModelFiles, names: Iterable[str]) -> None:
    """Raise FormatError if one of these tensors belongs to quantized weights that lbrx does not
    read: scales and the like."""
    for name in names:
        for kind, pattern in _KINDS.items():
            if pattern.fullmatch(name):
                raise _unread(files, kind, f"tensor {shown(name)}")
        stem, _, last = name.rpartition(".")
        weight = files.tensors.get(f"{stem}.weight")
        if last == "input_scale" and weight is not None:
            raise _unread(files, "fp8 with scales", f"tensor {shown(name)}")
        is_packed = weight is not None and not weight.encoding.decoded.is_float
        if last == "scales" and is_packed and not conventions_of(files).packs_words:
            problem = (
                "belongs to quantized weights: open MLX's folder with its config.json, which "
                f"says how they are packed, or {_REMEDY}"
            )
            raise bad(files.path, problem, tensor=name)


def _unread(files: ModelFiles, method: str, where: str, key: str = "") -> FormatError:
    plain = f". If its weights are plain, remove {key} from config.json" if key else ""
    return bad(
        files.path,
        f"the model is quantized ({method}), which lbrx does not read: {_REMEDY}{plain}",
        field=where,
    )
