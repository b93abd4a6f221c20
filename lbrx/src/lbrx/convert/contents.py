"""A summary of a model's files, without reading tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.files.formats import ModelFiles, translate
from lbrx.files.formats.checks import read_json
from lbrx.files.formats.file_formats import conventions_of
from lbrx.files.formats.recipe import Recipe, nbytes_of

_SETTINGS = {
    "layers": "num_hidden_layers",
    "hidden size": "hidden_size",
    "feed-forward size": "intermediate_size",
    "heads": "num_attention_heads",
    "key and value heads": "num_key_value_heads",
    "experts": "num_local_experts",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}


_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_USED = "num_experts_per_tok"
# Tensors of one expert, or of all of them stacked; not of shared experts or of the router.
_OF_EXPERTS = re.compile(r"\.experts\.|\.switch_mlp\.|_exps\.")


@dataclass(frozen=True)
class EncodingCount:
    """The number and size of the tensors of one encoding."""

    encoding: str
    tensors: int
    values: int
    nbytes: int

    @property
    def bits_per_value(self) -> float:
        return 8 * self.nbytes / self.values if self.values else 0.0


@dataclass(frozen=True)
class LargestTensor:
    name: str
    encoding: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class TokenizerFacts:
    kind: str
    tokens: int | None
    chat_template: bool


@dataclass(frozen=True)
class Contents:
    path: str
    format: str
    files: int
    architecture: str | None
    settings: Mapping[str, int]
    parameters: int
    active_parameters: int
    """Those that one token uses: of a mixture of experts, not all."""
    nbytes: int
    kinds: tuple[EncodingCount, ...]
    """By encoding, the one with the most bytes first."""
    largest: LargestTensor | None
    quantization: str | None
    tokenizer: TokenizerFacts | None

    @property
    def bits_per_parameter(self) -> float:
        return 8 * self.nbytes / self.parameters if self.parameters else 0.0


def contents(files: ModelFiles) -> Contents:
    """Summarise a model."""
    conventions = conventions_of(files)
    tensors = conventions.whole(files)
    config = translate.config_of(files)
    settings = {title: config.get(key) for title, key in _SETTINGS.items()}
    return Contents(
        path=str(files.path),
        format=str(files.format),
        files=len(files.paths),
        architecture=_architecture(files, config),
        settings={title: n for title, n in settings.items() if isinstance(n, int) and n},
        parameters=sum(_parameters(tensors).values()),
        active_parameters=_active_parameters(files, config, _parameters(tensors)),
        nbytes=sum(map(nbytes_of, tensors.values())),
        kinds=_kinds(tensors),
        largest=_largest(tensors),
        quantization=conventions.quantization(files),
        tokenizer=_tokenizer(files),
    )


def _parameters(tensors: Mapping[str, Recipe]) -> dict[str, int]:
    floats = {n: r for n, r in tensors.items() if r.encoding.decoded.is_float}
    return {name: math.prod(recipe.shape) for name, recipe in floats.items()}


def _active_parameters(
    files: ModelFiles, config: Mapping[str, Any], parameters: Mapping[str, int]
) -> int:
    prefix = files.metadata.get("general.architecture")
    experts = [*map(config.get, _EXPERT_COUNTS), files.metadata.get(f"{prefix}.expert_count")]
    count = next((n for n in experts if type(n) is int and n > 0), 0)
    given = [config.get(_EXPERTS_USED), files.metadata.get(f"{prefix}.expert_used_count")]
    used = next((n for n in given if type(n) is int and 0 < n <= count), count)
    of_experts = sum(size for name, size in parameters.items() if _OF_EXPERTS.search(name))
    idle = of_experts * (count - used) // count if count else 0
    return sum(parameters.values()) - idle


def _largest(tensors: Mapping[str, Recipe]) -> LargestTensor | None:
    if not tensors:
        return None
    name, recipe = max(tensors.items(), key=lambda pair: nbytes_of(pair[1]))
    return LargestTensor(name, str(recipe.encoding), recipe.shape, nbytes_of(recipe))


def _architecture(files: ModelFiles, config: Mapping[str, Any]) -> str | None:
    name = config.get("model_type") or files.metadata.get("general.architecture")
    return name if isinstance(name, str) else None


def _kinds(tensors: Mapping[str, Recipe]) -> tuple[EncodingCount, ...]:
    groups: dict[str, list[Recipe]] = {}
    for recipe in tensors.values():
        groups.setdefault(str(recipe.encoding), []).append(recipe)
    kinds = [
        EncodingCount(
            name, len(group), sum(math.prod(r.shape) for r in group), sum(map(nbytes_of, group))
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.nbytes))


def _tokenizer(files: ModelFiles) -> TokenizerFacts | None:
    if files.tokenizer is not None:
        folder = files.tokenizer.parent
        template = "chat_template" in _json(folder / "tokenizer_config.json")
        has_template = template or (folder / "chat_template.jinja").is_file()
        return TokenizerFacts(files.tokenizer.name, _token_count(files), has_template)
    kind = files.metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str):
        return None
    tokens = files.metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, Sequence) and not isinstance(tokens, str) else None
    pre = files.metadata.get("tokenizer.ggml.pre")
    name = f"{kind} ({pre})" if isinstance(pre, str) else kind
    return TokenizerFacts(name, count, "tokenizer.chat_template" in files.metadata)


def _token_count(files: ModelFiles) -> int | None:
    assert files.tokenizer is not None
    if files.tokenizer.suffix != ".json":
        return None
    whole = _json(files.tokenizer)
    model = whole.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = whole.get("added_tokens")
    if not isinstance(vocabulary, (dict, list)):
        return None
    known = set(vocabulary) if isinstance(vocabulary, dict) else set()
    contents = (
        [t.get("content") for t in added if isinstance(t, dict)] if isinstance(added, list) else []
    )
    return len(vocabulary) + sum(isinstance(text, str) and text not in known for text in contents)


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
