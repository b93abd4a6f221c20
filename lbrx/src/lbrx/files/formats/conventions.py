"""How files say what is in a model: whose names tensors have, where settings are, how quantized
values are packed. A `FileFormat` follows one of these conventions.

What they call is imported when it is called: files are read by their format first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lbrx import quant
from lbrx.files.formats.descriptor import ModelFiles
from lbrx.files.formats.recipe import Recipe

Settings = Mapping[str, Any]
Rename = Callable[[Mapping[str, Recipe], Settings], dict[str, Recipe]]


def _named_quantization(files: ModelFiles) -> str | None:
    match files.config.get("quantization_config"):
        case {"quant_method": method}:
            return str(method)
    return None


def _checkpoint_tensors(files: ModelFiles) -> dict[str, Recipe]:
    from lbrx.files.formats import packings, quantized_checkpoints

    tensors = packings.packed_weights(files)
    quantized_checkpoints.check_tensors(files, tensors)
    return tensors


@dataclass(frozen=True)
class Conventions:
    """Answers about a model's files. Those that are not given are Hugging Face's."""

    describes_itself: bool = False
    """Whether the metadata of a file says what config.json and the tokenizer's files say."""
    mixtures: bool = False
    """Whether types of tensors are llama.cpp's: mixtures of them, with small tensors in F32."""
    packs_words: bool = False
    """Whether quantized values are words with scales beside them, as config.json says."""
    config: Callable[[ModelFiles], Settings] = lambda files: files.config
    """The config.json of a model, or what stands for it; empty if nothing does."""
    whole: Callable[[ModelFiles], Mapping[str, Recipe]] = lambda files: files.tensors
    """The tensors under their own names, those of several parts in one."""
    tensors: Callable[[ModelFiles], dict[str, Recipe]] = _checkpoint_tensors
    """The tensors under Hugging Face's names and in its layout."""
    rename: Rename | None = None
    """From Hugging Face's tensors, by its config.json, to these. None if they are the same."""
    quantization: Callable[[ModelFiles], str | None] = _named_quantization
    """The name of the quantization in the files."""


HUGGING_FACE = Conventions()


# ---- GGUF ----


def _gguf_config(files: ModelFiles) -> Settings:
    from lbrx.files.formats import architecture_tables
    from lbrx.files.formats.architecture_tables import hyperparameters

    if files.config:
        return files.config
    architecture = architecture_tables.of_gguf(files.metadata)
    return hyperparameters.to_config(architecture, files) if architecture else {}


def _gguf_tensors(files: ModelFiles) -> dict[str, Recipe]:
    from lbrx.files.formats import translate

    return translate.from_gguf(files)


def _gguf_names(tensors: Mapping[str, Recipe], config: Settings) -> dict[str, Recipe]:
    from lbrx.files.formats import translate

    return translate.to_gguf(tensors, config)


def _gguf_quantization(files: ModelFiles) -> str | None:
    number = files.metadata.get("general.file_type")
    return next((m.name for m in quant.MIXTURES.values() if m.file_type == number), None)


GGUF = Conventions(
    describes_itself=True,
    mixtures=True,
    config=_gguf_config,
    tensors=_gguf_tensors,
    rename=_gguf_names,
    quantization=_gguf_quantization,
)


# ---- MLX ----


def _mlx_whole(files: ModelFiles) -> Mapping[str, Recipe]:
    from lbrx.files.formats.containers import mlx

    return mlx.packed_weights(files)


def _mlx_tensors(files: ModelFiles) -> dict[str, Recipe]:
    from lbrx.files.formats import translate

    return translate.from_mlx(files)


def _mlx_names(tensors: Mapping[str, Recipe], config: Settings) -> dict[str, Recipe]:
    from lbrx.files.formats import translate

    return translate.to_mlx(tensors, config)


def _mlx_quantization(files: ModelFiles) -> str | None:
    match files.config.get("quantization"):
        case {"bits": bits, "group_size": group, **rest}:
            return f"MLX {rest.get('mode', 'affine')}, {bits} bits in groups of {group}"
    return _named_quantization(files)


MLX = Conventions(
    packs_words=True,
    whole=_mlx_whole,
    tensors=_mlx_tensors,
    rename=_mlx_names,
    quantization=_mlx_quantization,
)
