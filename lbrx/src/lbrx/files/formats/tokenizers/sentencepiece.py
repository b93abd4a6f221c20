"""SentencePiece's BPE: its model file, and the conversion between scores and merges."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lbrx.files.formats.checks import MAX_HEADER, bad
from lbrx.files.formats.containers.protobuf import BYTES, VARINT, ProtobufMessage, signed

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_PIECES, _TRAINING, _NORMALIZER = 1, 2, 3
LONGEST = 512
"""Characters of the longest piece: SentencePiece trains no longer ones."""


@dataclass(frozen=True)
class VocabularyPiece:
    """A token of tokenizer.model; `kind` has GGUF's numbers."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Rules:
    """The settings of a tokenizer.model: ids of special tokens (below 0 for none) and a flag."""

    unknown: int = 0
    first: int = 1
    last: int = 2
    adds_space: bool = True
    """Whether a space is added before a text."""


def is_byte(text: str) -> bool:
    return _BYTE.fullmatch(text) is not None


def read(path: Path) -> list[VocabularyPiece]:
    """The tokens of a tokenizer.model."""
    model = _message(path)
    return [
        _piece(model.inner(start, end))
        for number, wire, start, end in model
        if number == _PIECES and wire == BYTES
    ]


def read_rules(path: Path) -> Rules:
    """The settings of a tokenizer.model."""
    model = _message(path)
    found: dict[str, int] = {}
    names = {
        (_TRAINING, 40): "unknown",
        (_TRAINING, 41): "first",
        (_TRAINING, 42): "last",
        (_NORMALIZER, 3): "adds_space",
    }
    for part, wire, start, end in model:
        if part in (_TRAINING, _NORMALIZER) and wire == BYTES:
            for number, kind, value, _ in model.inner(start, end):
                if (part, number) in names and kind == VARINT:
                    found[names[part, number]] = signed(value)
    adds_space = bool(found.pop("adds_space", True))
    return Rules(**found, adds_space=adds_space)


def _message(path: Path) -> ProtobufMessage:
    size = path.stat().st_size
    if not 0 < size <= MAX_HEADER:
        raise bad(path, f"has {size:,} bytes, not 1 to {MAX_HEADER:,}")
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return ProtobufMessage(path, data)


def _piece(message: ProtobufMessage) -> VocabularyPiece:
    text, score, kind = "", 0.0, 1
    for number, wire, start, end in message:
        match number, wire:
            case 1, 2:
                text = message.text(start, end)
            case 2, 5:
                (score,) = struct.unpack("<f", message.data[start:end])
            case 3, 0:
                kind = start
    if not 1 <= kind <= 6:
        raise bad(message.path, f"{kind} is not a type of piece", field=f"piece {text[:40]!r}")
    return VocabularyPiece(text, score, kind)


def scores_of(merges: Iterable[tuple[str, str]]) -> dict[str, float]:
    """The score of each token: minus the rank of the first merge that makes it."""
    result: dict[str, float] = {}
    for rank, (left, right) in enumerate(merges):
        result.setdefault(left + right, -float(rank))
    return result


def merges_of(tokens: Collection[str], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, by falling score, then by falling length of the
    first."""
    pairs = [
        (a, b)
        for text in sorted(scores, key=scores.__getitem__, reverse=True)
        for i in range(len(text) - 1 if len(text) <= LONGEST else 0, 0, -1)
        if (a := text[:i]) in tokens and (b := text[i:]) in tokens
    ]
    if len(set(scores.values())) < len(scores):
        pairs.sort(key=lambda pair: (-scores[pair[0] + pair[1]], -len(pair[0]), -len(pair[1])))
    return pairs
