"""The files and metadata that accompany weights: configuration and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbrx.files.formats.architecture_tables import hyperparameters
from lbrx.files.formats.checks import MAX_HEADER, bad
from lbrx.files.formats.descriptor import ModelFiles
from lbrx.files.formats.file_formats import conventions_of
from lbrx.files.formats.hub import name_of
from lbrx.files.formats.recipe import ComputedModel, Recipe
from lbrx.files.formats.translate import known_architecture, without_packing

COPIED = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("generation_config.json", "chat_template.jinja", "vocab.json", "merges.txt"),
    *("added_tokens.json", "preprocessor_config.json", "LICENSE"),
)
_GENERATION = ("bos_token_id", "eos_token_id", "pad_token_id")
# These describe the source's own packing and splitting, not the result's.
_OF_THE_FILE = ("general.file_type", "general.quantization_version", "general.alignment")
_EMBEDDING = "embed_tokens.weight"


def folder_files(files: ModelFiles, config: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a Hugging Face or MLX folder besides the weights, config.json first."""
    settings = without_packing(files, config)
    result = {"config.json": _json(settings)} if settings else {}
    if isinstance(files, ComputedModel):
        return {**result, **files.companions}
    if conventions_of(files).describes_itself:
        generation = {key: config[key] for key in _GENERATION if key in config}
        result["generation_config.json"] = _json(generation)
        from lbrx.files.formats.tokenizers.tokenizer_files import tokenizer_files

        return result | tokenizer_files(files.metadata)
    folder = files.path if files.path.is_dir() else files.path.parent
    has_folder = bool(files.config) or files.tokenizer is not None
    for name in COPIED if has_folder else ():
        if (folder / name).is_file():
            result[name] = _content(folder / name)
    return result


def gguf_metadata(files: ModelFiles, config: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a GGUF, except for its quantization."""
    if conventions_of(files).describes_itself:
        return {
            key: value
            for key, value in files.metadata.items()
            if key not in _OF_THE_FILE and not key.startswith("split.")
        }
    architecture = known_architecture(config)
    result = hyperparameters.to_gguf(architecture, config)
    name = str(config.get("_name_or_path") or "") or name_of(files.path)
    result["general.name"] = Path(name).name
    if files.tokenizer is not None:
        from lbrx.files.formats.tokenizers import vocabulary

        flat = hyperparameters.flat_config(architecture, config)
        tensors: Mapping[str, Recipe] = files.tensors
        if isinstance(files, ComputedModel):
            tensors = files.recipes
        rows = [t.shape[0] for n, t in tensors.items() if n.endswith(_EMBEDDING) and t.shape]
        size = max(rows, default=flat.get("vocab_size"))
        result |= vocabulary.to_gguf(files.tokenizer.parent, {**flat, "vocab_size": size})
    return result


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _content(path: Path) -> bytes:
    if path.stat().st_size > MAX_HEADER:
        raise bad(path, f"has more than {MAX_HEADER:,} bytes")
    return path.read_bytes()
