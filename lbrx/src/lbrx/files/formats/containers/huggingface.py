"""Folders of the Hugging Face hub: weights, perhaps in shards, and JSON files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.formats import file_formats
from lbrx.files.formats.checks import bad, is_file_name, read_json, shown
from lbrx.files.formats.descriptor import ModelFiles, TensorInfo

Reader = Callable[[Path], ModelFiles]

_INDEX = "*.index.json"
# In this order, then the patterns of every format. The first that a folder has is the weights.
_WEIGHTS = (
    *("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"),
    *("pytorch_model.bin.index.json", _INDEX, "*.safetensors"),
)
_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


def read_folder(folder: Path, read_file: Reader, patterns: Sequence[str]) -> ModelFiles:
    """Describe the model in a folder; `patterns` are the names that weights of any format have."""
    files = _weights(folder, read_file, dict.fromkeys([*_WEIGHTS, *patterns]))
    config = _optional_json(folder / "config.json") or files.config
    return replace(_described(files, folder, config), path=folder)


def with_neighbours(files: ModelFiles) -> ModelFiles:
    """A file of weights, or an index, with the configuration and tokenizer beside it. A config.json
    that is not a model's does not belong to it."""
    folder = files.path.parent
    try:
        config = _optional_json(folder / "config.json")
    except (FormatError, OSError):
        return files
    if not {"model_type", "architectures"} & config.keys():
        return files
    return _described(files, folder, config)


def _described(files: ModelFiles, folder: Path, config: Mapping[str, Any]) -> ModelFiles:
    return replace(
        files,
        format=_flavour(files, config),
        config=config,
        generation_config=_optional_json(folder / "generation_config.json"),
        tokenizer=next((folder / n for n in _TOKENIZERS if (folder / n).is_file()), None),
    )


def _flavour(files: ModelFiles, config: Mapping[str, Any]) -> str:
    formats = file_formats.FORMATS.whole().values()
    return next((each.name for each in formats if each.claims(files, config)), files.format)


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _weights(folder: Path, read_file: Reader, patterns: Iterable[str]) -> ModelFiles:
    for pattern in patterns:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if not found:
            continue
        if found[0].name.endswith(".index.json"):
            return read_index(found[0], read_file)
        return _joined(folder, found, read_file)
    raise bad(folder, "has no weights: none of " + ", ".join(p for p in patterns if p != _INDEX))


def _check_shards(folder: Path, paths: list[Path]) -> None:
    """Raises FormatError if a file named like model-00001-of-00003 is missing."""
    names = {path.name for path in paths}
    numbered = filter(None, map(_SHARD_NAME.fullmatch, names))
    for stem, count, suffix in {found.group(1, 3, 4) for found in numbered}:
        wanted = (f"{stem}-{n:0{len(count)}}-of-{count}{suffix}" for n in range(1, int(count) + 1))
        if missing := next((name for name in wanted if name not in names), None):
            raise bad(folder, f"has shards of {count}, but {missing} is missing")


def _joined(folder: Path, paths: list[Path], read_file: Reader) -> ModelFiles:
    """Several files without an index as one model; no tensor may be in two of them."""
    _check_shards(folder, paths)
    first = read_file(paths[0])
    tensors = dict(first.tensors)
    for path in paths[1:]:
        part = read_file(path)
        if file_formats.conventions_of(part).describes_itself:
            if part.tensors == first.tensors:  # another file of the same split model
                continue
            raise bad(folder, f"{paths[0].name} and {path.name} are two models: open one of them")
        if twice := tensors.keys() & part.tensors.keys():
            raise bad(
                folder, f"is in two files, one is {path.name}: open one file", tensor=min(twice)
            )
        tensors |= part.tensors
    return replace(first, tensors=tensors)


def read_index(path: Path, read_file: Reader) -> ModelFiles:
    """Describe the model of an index, which names the file of each tensor."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise bad(path, "is not an object from tensor names to file names", field="weight_map")
    shards: dict[str, ModelFiles] = {}
    tensors: dict[str, TensorInfo] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str):
            problem = f"{shown(str(file))} is not the name of a file in this folder"
            raise bad(path, problem, tensor=name, field="weight_map")
        if file not in shards:
            shards[file] = read_file(_sibling(path, name, file))
        if name not in shards[file].tensors:
            raise bad(path, f"is not in {file}", tensor=name, field="weight_map")
        tensors[name] = shards[file].tensors[name]
    first = next(iter(shards.values()))
    return replace(first, path=path, tensors=tensors)


def _sibling(path: Path, tensor: str, file: str) -> Path:
    """A file in the folder of the index. Raises FormatError for paths to other folders."""
    if not is_file_name(file):
        problem = f"{shown(str(file))} is not the name of a file in this folder"
        raise bad(path, problem, tensor=tensor, field="weight_map")
    found = path.with_name(file)
    if not found.is_file():
        raise bad(path, f"the file {shown(file)} is missing", tensor=tensor, field="weight_map")
    return found
