"""Vocabularies of the models of a merge: comparing them, and aligning their embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError
from lbrx.files.formats import plain
from lbrx.files.formats.checks import bad, parse_json
from lbrx.files.formats.recipe import ComputedTensor, Recipe
from lbrx.merging.config import ModelReference, TokenizerSettings, TokenRow
from lbrx.merging.config_fields import suggestion
from lbrx.merging.layers import embedding_name
from lbrx.merging.parent_models import ParentModel
from lbrx.merging.token_rows import NOWHERE, AlignedRows, packed

# Tokenizers that differ in more than this share of their tokens are different vocabularies, whose
# rows mean other things; fine-tunes rename a few reserved tokens.
_DIFFERENT = 0.05
# Files that describe the same vocabulary as tokenizer.json, and become wrong when it changes.
_STALE = ("tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json")
_SHOWN = 3
_MOST_TOKENS = 1 << 24


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model by text, with their ids, and its tokenizer.json where it has one."""

    tokens: Mapping[str, int]
    document: Mapping[str, Any] | None = None

    @property
    def added(self) -> dict[str, Mapping[str, Any]]:
        """The entries of `added_tokens` by text."""
        entries = (self.document or {}).get("added_tokens") or []
        return {str(entry.get("content")): entry for entry in entries}


@dataclass(frozen=True)
class Alignment:
    """The vocabulary of the merged model, and where each model's rows come from."""

    tokens: Mapping[str, int]
    size: int
    """The number of rows, with padding."""
    companions: Mapping[str, bytes]
    """The tokenizer's files."""
    source: str
    """One line about where the vocabulary comes from."""
    settings: TokenizerSettings
    known: Mapping[ModelReference, Vocabulary] = field(repr=False)

    @property
    def count(self) -> int:
        """The number of tokens."""
        return 1 + max(self.tokens.values(), default=-1)


def read_vocabulary(model: ParentModel) -> Vocabulary | None:
    """The vocabulary of a model; None if it has no tokenizer.

    Raises FormatError for a tokenizer that cannot be read.
    """
    content = model.companions.get("tokenizer.json")
    if content is None:
        path = model.files.tokenizer
        if path is None or path.suffix != ".model":
            return None
        from lbrx.files.formats.tokenizers import sentencepiece

        pieces = sentencepiece.read(path)
        return Vocabulary({piece.text: number for number, piece in enumerate(pieces)})
    path = Path(f"{model}/tokenizer.json")
    document = parse_json(path, content)
    match document:
        case {"model": {"vocab": dict(vocabulary)}}:
            tokens = dict(vocabulary)
        case {"model": {"vocab": list(scored)}} if all(map(_is_scored, scored)):
            tokens = {str(text): number for number, (text, _) in enumerate(scored)}
        case _:
            raise bad(path, "is not a tokenizer with a vocabulary", field="model")
    for entry in document.get("added_tokens") or []:
        match entry:
            case {"content": str(text), "id": int(number)}:
                tokens[text] = number
            case _:
                raise bad(path, "has an entry without content and id", field="added_tokens")
    if not all(type(number) is int and 0 <= number < _MOST_TOKENS for number in tokens.values()):
        raise bad(path, f"a token's id is not from 0 to {_MOST_TOKENS:,}", field="vocab")
    return Vocabulary(tokens, document)


def _is_scored(entry: object) -> bool:
    """Whether an entry of a Unigram vocabulary is a pair of text and score."""
    return isinstance(entry, list) and len(entry) == 2


def check_same(models: Sequence[ParentModel]) -> list[str]:
    """Notes about tokens in which the models differ.

    Raises FormatError if they have different vocabularies, by the sizes of their embeddings or by
    their tokenizers.
    """
    first, notes = models[0], []
    for other in models[1:]:
        mine, theirs = _rows(first), _rows(other)
        if mine != theirs:
            raise FormatError(
                f"the vocabularies differ: {first} has {mine} rows of embeddings and {other} "
                f"{theirs}: add tokenizer_source: union or base to align them"
            )
        changed = _changed_tokens(first, other)
        if changed:
            shown = ", ".join(map(repr, changed[:_SHOWN]))
            notes.append(
                f"{len(changed)} tokens of {other} differ from those of {first} ({shown} ...): "
                "add tokenizer_source: union to align them"
            )
    return notes


def _rows(model: ParentModel) -> int | None:
    name = embedding_name(model.recipes)
    shape = () if name is None else model.recipes[name].shape
    return shape[0] if len(shape) == 2 else None


def _changed_tokens(first: ParentModel, other: ParentModel) -> list[str]:
    """Tokens of the other model that have another id in the first. Raises FormatError if they are
    so many that the two vocabularies have nothing to do with each other."""
    name = "tokenizer.json"
    if first.companions.get(name) == other.companions.get(name):
        return []
    mine, theirs = read_vocabulary(first), read_vocabulary(other)
    if mine is None or theirs is None:
        return []
    changed = [text for text, n in theirs.tokens.items() if mine.tokens.get(text) != n]
    if len(changed) > _DIFFERENT * len(theirs.tokens):
        raise FormatError(
            f"the vocabularies differ: {len(changed):,} of the {len(theirs.tokens):,} tokens of "
            f"{other} have other ids in {first}: add tokenizer_source: union or base to align them"
        )
    return changed


def align(
    settings: TokenizerSettings,
    models: Mapping[ModelReference, ParentModel],
    reference: ParentModel,
) -> Alignment:
    """The merged vocabulary that a configuration asks for. `models` are in the configuration's
    order, `reference` is the base model or the first.

    Raises FormatError if a tokenizer is missing or cannot be extended.
    """
    known = {name: _required(model, reference) for name, model in models.items()}
    donor = reference
    if isinstance(settings.source, ModelReference):
        donor = models[settings.source]
    chosen = known[donor.reference]
    limit = _rows(donor)
    tokens = {text: n for text, n in chosen.tokens.items() if limit is None or n < limit}
    extra: dict[str, Mapping[str, Any]] = {}
    if settings.source == "union":
        for name, vocabulary in known.items():
            extra |= _new_tokens(vocabulary, _rows(models[name]), tokens.keys() | extra.keys())
    extra |= {text: {} for text in settings.tokens if text not in tokens | extra}
    start = 1 + max(tokens.values(), default=-1)
    numbered = {text: start + i for i, text in enumerate(extra)}
    files = dict(donor.companions)
    if numbered:
        files = _extended(donor, chosen, files, {t: (n, extra[t]) for t, n in numbered.items()})
    merged = {**tokens, **numbered}
    count = 1 + max(merged.values(), default=-1)
    step = settings.pad_to_multiple_of or 1
    source = f"{settings.source} ({donor})" if settings.source in ("union", "base") else str(donor)
    _check_token_rows(settings, models, known)
    return Alignment(merged, -(-count // step) * step, files, source, settings, known)


def _required(model: ParentModel, reference: ParentModel) -> Vocabulary:
    """A model's vocabulary; one without a tokenizer has the reference's, if the size is right."""
    found = read_vocabulary(model)
    if found is None and _rows(model) == _rows(reference):
        found = read_vocabulary(reference)
    if found is None:
        raise FormatError(
            f"{model} has no tokenizer, so its vocabulary cannot be aligned: put its "
            "tokenizer.json beside it"
        )
    return found


def _new_tokens(
    vocabulary: Vocabulary, rows: int | None, known: set[str]
) -> dict[str, Mapping[str, Any]]:
    """Tokens that are not known, in the order of their ids, with their entries in added_tokens.
    Tokens beyond the embedding are left out."""
    added = vocabulary.added
    found = sorted((n, text) for text, n in vocabulary.tokens.items() if text not in known)
    return {text: added.get(text, {}) for n, text in found if rows is None or n < rows}


def _extended(
    donor: ParentModel,
    vocabulary: Vocabulary,
    files: Mapping[str, bytes],
    new: Mapping[str, tuple[int, Mapping[str, Any]]],
) -> dict[str, bytes]:
    """Tokenizer files with new tokens."""
    if vocabulary.document is None:
        raise FormatError(
            f"{donor} has a tokenizer.model, to which tokens cannot be added: convert it to "
            "tokenizer.json, or use tokenizer_source: base"
        )
    usual = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    entries = [{**usual, **given, "id": n, "content": text} for text, (n, given) in new.items()]
    before = list(vocabulary.document.get("added_tokens") or [])
    document = {**vocabulary.document, "added_tokens": [*before, *entries]}
    text = json.dumps(document, ensure_ascii=False, indent=1)
    kept = {name: content for name, content in files.items() if name not in _STALE}
    return {**kept, "tokenizer.json": text.encode()}


def _check_token_rows(
    settings: TokenizerSettings,
    models: Mapping[ModelReference, ParentModel],
    known: Mapping[ModelReference, Vocabulary],
) -> None:
    """Raises FormatError if a token's row comes from a token that its model does not have."""
    for text, setting in settings.tokens.items():
        row = setting.source
        if row is None or row.model is None:
            continue
        if row.model not in models:
            problem = f"{row.model} does not take part in the merge: list it under models"
            raise FormatError(f"token {text!r}: {problem}")
        wanted = text if row.token is None else row.token
        rows = _rows(models[row.model])
        if row.token_id is not None:
            if rows is not None and row.token_id >= rows:
                raise FormatError(f"token {text!r}: {row.model} has {rows} rows: give a lower id")
        elif wanted not in known[row.model].tokens:
            near = suggestion(wanted, list(known[row.model].tokens)[:20_000])
            near = near if "mean" in near else ": give another token"
            raise FormatError(f"token {text!r}: {row.model} has no token {wanted!r}{near}")


def aligned_embeddings(
    alignment: Alignment, models: Sequence[ParentModel], recipes: Sequence[Recipe], base: int | None
) -> list[Recipe]:
    """The embeddings of a tensor's models for the merged vocabulary. `base` is the base model's
    number, if it is among them. An embedding that has the rows already is taken as it is."""
    for model, recipe in zip(models, recipes, strict=True):
        if len(recipe.shape) != 2:
            raise FormatError(f"{model}: {recipe.name} is {recipe.shape}, not rows of tokens")
    places = [
        _places(alignment, model, recipe) for model, recipe in zip(models, recipes, strict=True)
    ]
    forced = {n for t, n in alignment.tokens.items() if _is_forced(alignment.settings, t)}
    elsewhere = _rows_elsewhere(alignment, models, places, forced, base)
    result: list[Recipe] = []
    for number, recipe in enumerate(recipes):
        rows = [NOWHERE if n in forced else row for n, row in enumerate(places[number])]
        in_place = rows == list(range(recipe.shape[0]))
        if in_place and alignment.size == recipe.shape[0]:
            result.append(recipe)
            continue
        others = [
            triple for n, row in enumerate(rows) if row < 0 for triple in elsewhere.get(n, ())
        ]
        function = AlignedRows(number, packed(rows), packed(others), alignment.size)
        shape = (alignment.size, *recipe.shape[1:])
        result.append(
            ComputedTensor(recipe.name, tuple(recipes), plain(dt.float32), shape, function)
        )
    return result


def _is_forced(settings: TokenizerSettings, token: str) -> bool:
    return token in settings.tokens and settings.tokens[token].force


def _places(alignment: Alignment, model: ParentModel, recipe: Recipe) -> list[int]:
    """For each token of the merged vocabulary its row in a model, or `NOWHERE`."""
    own, rows = alignment.known[model.reference].tokens, recipe.shape[0]
    places = [NOWHERE] * alignment.count
    for text, number in alignment.tokens.items():
        row = own.get(text, NOWHERE)
        places[number] = row if row < rows else NOWHERE
    return places


def _rows_elsewhere(
    alignment: Alignment,
    models: Sequence[ParentModel],
    places: Sequence[Sequence[int]],
    forced: set[int],
    base: int | None,
) -> dict[int, list[tuple[int, int, int]]]:
    """For tokens that a model lacks or is not to use: triples of token, source and row."""
    result: dict[int, list[tuple[int, int, int]]] = {}
    for text, number in alignment.tokens.items():
        holders = [k for k, rows in enumerate(places) if rows[number] >= 0]
        if len(holders) == len(models) and number not in forced:
            continue
        setting = alignment.settings.tokens.get(text)
        if setting is not None and setting.source is not None:
            chosen = _chosen_row(alignment, text, setting.source, models)
        elif base is not None and base in holders:
            chosen = [(base, places[base][number])]
        else:
            chosen = [(k, places[k][number]) for k in holders]
        result[number] = [(number, model, row) for model, row in chosen]
    return result


def _chosen_row(
    alignment: Alignment, text: str, row: TokenRow, models: Sequence[ParentModel]
) -> list[tuple[int, int]]:
    if row.model is None:
        return []
    number = next((k for k, model in enumerate(models) if model.reference == row.model), None)
    if number is None:
        problem = f"{row.model} is not a source of the slice with the embedding: add it there"
        raise FormatError(f"token {text!r}: {problem}")
    known = alignment.known[row.model].tokens
    return [(number, known[row.token or text] if row.token_id is None else row.token_id)]


def aligned_summary(alignment: Alignment) -> str:
    """One line about the merged vocabulary."""
    parts = []
    for reference, vocabulary in alignment.known.items():
        shared = sum(text in vocabulary.tokens for text in alignment.tokens)
        parts.append(f"{reference} has {shared:,} of them")
    padding = alignment.size - alignment.count
    padded = f", {padding} rows of padding" if padding else ""
    return f"{alignment.count:,} tokens from {alignment.source}{padded}; {', '.join(parts)}"
