"""Exports a language model as a package for the Neural Engine, and keeps such packages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from lbrx import env
from lbrx.errors import LbrxError
from lbrx.files.formats.writing import parse_size
from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.export.network_parts import PartsReader, check_exportable
from lbrx.models.export.network_program import (
    ATTENTIONS,
    CACHES,
    USUAL_STYLE,
    NetworkParts,
    ProgramStyle,
    language_function,
)
from lbrx.models.export.program_parts import (
    PartsWriter,
    SplitProgram,
    replace_folder,
    write_parts,
)
from lbrx.neural_engine.mil_package import check_path, write_package
from lbrx.neural_engine.weight_forms import WeightForm, parse_form

DEFAULT_CHUNK = 128
"""Tokens: fewer take the Neural Engine about as long, since it waits for weights."""
SMALLEST_CHUNK = 16
DEFAULT_CONTEXT = 1024
"""Tokens: each chunk computes attention over the whole context, so a longer one costs time."""
MAX_CONTEXT = 16384  # the longest axis on every Neural Engine from M1 on
FORMAT = 1
"""Incremented when a program changes, so that kept packages are written again."""

FEATURES = {
    "tokens": "Token ids, (1, chunk) for prefill and (1, 1) for decode.",
    "position": "The place of the first token in the text. For prefill a multiple of the chunk.",
    "keys": "Keys of the text's tokens: (layers, key-value heads, context, head size).",
    "values": "Values of the text's tokens, in the same layout.",
    "hidden": "Normalised hidden states of the chunk's tokens: (1, channels, 1, chunk).",
    "logits": "Logits of the next token: (1, vocabulary).",
    "token": "The most likely next token, (1).",
}
PART_FEATURES = {
    **{name: FEATURES[name] for name in ("tokens", "position", "logits", "token")},
    "keys": "Keys of the text's tokens: (layers of the part, key-value heads, context, head size).",
    "values": "Values of the text's tokens, in the same layout.",
    "cosines": "Of the tokens' angles, (1, 1, head size, chunk).",
    "sines": "In the same layout, those of the first half of a head's features negated.",
    "rows": "1 for the chunk of the cache that is written, else 0: (1, 1, context / chunk, 1).",
    "mask": "Added to scores, (1, 1, heads of a group times chunk, context).",
}


@dataclass(frozen=True)
class ExportSettings:
    """The sizes of a program and the form of its weights.

    `context` is rounded up to a multiple of `chunk`.
    """

    context: int = DEFAULT_CONTEXT
    chunk: int = DEFAULT_CHUNK
    form: WeightForm = WeightForm.F16
    style: ProgramStyle = USUAL_STYLE
    part_bytes: int = 0
    """The most bytes of weights in a package of a folder; 0 for one package."""

    def __post_init__(self) -> None:
        for name, known in (("cache", CACHES), ("attention", ATTENTIONS)):
            if (way := getattr(self.style, name)) not in known:
                raise LbrxError(f"{name}={way!r}: give {' or '.join(known)}")
        for name, low, high in (
            ("chunk", SMALLEST_CHUNK, MAX_CONTEXT),
            ("context", SMALLEST_CHUNK, MAX_CONTEXT),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise LbrxError(f"{name}={value}: give a number of tokens from {low} to {high:,}")
        chunk = min(self.chunk, self.context)
        object.__setattr__(self, "chunk", chunk)
        object.__setattr__(self, "context", -(-self.context // chunk) * chunk)


def settings_of(
    config: ModelConfig,
    context: int | None,
    chunk: int | None,
    quantize: str,
    style: ProgramStyle | None = None,
    part_size: int | str | None = None,
) -> ExportSettings:
    """Settings from arguments; a context of None is what the model was trained for, at most
    DEFAULT_CONTEXT. Raises LbrxError for a bad one."""
    form = parse_form(quantize)
    longest = min(DEFAULT_CONTEXT, config.context) if context is None else context
    tokens = DEFAULT_CHUNK if chunk is None else chunk
    part_bytes = 0 if part_size is None else parse_size(part_size)
    return ExportSettings(longest, tokens, form, style or USUAL_STYLE, part_bytes)


def check_output(path: Path, in_parts: bool) -> None:
    """Raise LbrxError for a path that does not name what would be written."""
    if not in_parts:
        check_path(path)
    elif path.suffix == ".mlpackage":
        raise LbrxError(f"{path} is the path of one package: give the name of a folder for parts")


def export_network(
    network: Decoder, path: Path, settings: ExportSettings, functions: Iterable[str] = ()
) -> None:
    """Write a network as an `.mlpackage`, or as a folder of parts, with the functions `prefill` and
    `decode`, or those named.

    Raises LbrxError for a network that a program cannot express, with all reasons.
    """
    check_output(path, bool(settings.part_bytes))
    check_exportable(network)
    if settings.context > network.config.context:
        raise LbrxError(
            f"context={settings.context:,}: the model was trained for "
            f"{network.config.context:,} tokens: give at most that many"
        )
    reader, config = PartsReader(network, settings.form), network.config
    every = {"prefill": settings.chunk, "decode": 1}
    sizes = {name: tokens for name, tokens in every.items() if name in (tuple(functions) or every)}
    metadata = {
        "lbrx.context": str(settings.context),
        "lbrx.chunk": str(settings.chunk),
        "lbrx.weights": settings.form.value,
        "lbrx.end_tokens": json.dumps(sorted(config.end_tokens)),
    }
    if settings.part_bytes:
        windows = tuple(sorted({layer.attention.window for layer in network.layers}))  # type: ignore[attr-defined]
        program = SplitProgram(config, settings.context, settings.style, windows)

        def write(folder: Path) -> None:
            writer = PartsWriter(folder, sizes, PART_FEATURES, metadata)
            write_parts(reader, program, settings.part_bytes, writer)

        replace_folder(path, write)
        return
    parts = NetworkParts.read(reader)
    made = {
        name: language_function(parts, settings.context, tokens, settings.style)
        for name, tokens in sizes.items()
    }
    summary = f"{config.model_type}, {config.layers} layers, written by lbrx"
    write_package(path, made, summary=summary, features=FEATURES, metadata=metadata)


def package_path(network: Decoder, settings: ExportSettings) -> Path:
    """Where the program that reads a network's prompts is kept, in the folder LBRX_CACHE."""
    facts = json.dumps({"format": FORMAT, **asdict(settings)}, sort_keys=True)
    rope = repr(network.config.rope)
    key = f"{network.weights.fingerprint()} {facts} {rope}".encode()
    ending = "" if settings.part_bytes else ".mlpackage"
    name = f"{network.config.model_type}-{hashlib.sha256(key).hexdigest()[:24]}{ending}"
    return env.cache_dir() / "neural-engine" / name
