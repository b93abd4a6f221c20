"""Exports a language model as a package for the Neural Engine, and keeps such packages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from lbrx import env
from lbrx.errors import LbrxError
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


@dataclass(frozen=True)
class ExportSettings:
    """The sizes of a program and the form of its weights.

    `context` is rounded up to a multiple of `chunk`.
    """

    context: int = DEFAULT_CONTEXT
    chunk: int = DEFAULT_CHUNK
    form: WeightForm = WeightForm.F16
    style: ProgramStyle = USUAL_STYLE

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
) -> ExportSettings:
    """Settings from arguments; a context of None is what the model was trained for, at most
    DEFAULT_CONTEXT. Raises LbrxError for a bad one."""
    form = parse_form(quantize)
    longest = min(DEFAULT_CONTEXT, config.context) if context is None else context
    tokens = DEFAULT_CHUNK if chunk is None else chunk
    return ExportSettings(longest, tokens, form, style or USUAL_STYLE)


def export_network(
    network: Decoder, path: Path, settings: ExportSettings, functions: Iterable[str] = ()
) -> None:
    """Write a network as an `.mlpackage` with the functions `prefill` and `decode`, or those named.

    Raises LbrxError for a network that a program cannot express, with all reasons.
    """
    check_path(path)
    check_exportable(network)
    if settings.context > network.config.context:
        raise LbrxError(
            f"context={settings.context:,}: the model was trained for "
            f"{network.config.context:,} tokens: give at most that many"
        )
    parts = NetworkParts.read(PartsReader(network, settings.form))
    sizes = {"prefill": settings.chunk, "decode": 1}
    made = {
        name: language_function(parts, settings.context, tokens, settings.style)
        for name, tokens in sizes.items()
        if name in (tuple(functions) or sizes)
    }
    config = network.config
    write_package(
        path,
        made,
        summary=f"{config.model_type}, {config.layers} layers, written by lbrx",
        features=FEATURES,
        metadata={
            "lbrx.context": str(settings.context),
            "lbrx.chunk": str(settings.chunk),
            "lbrx.weights": settings.form.value,
            "lbrx.end_tokens": json.dumps(sorted(config.end_tokens)),
        },
    )


def package_path(network: Decoder, settings: ExportSettings) -> Path:
    """Where the program that reads a network's prompts is kept, in the folder LBRX_CACHE."""
    facts = json.dumps({"format": FORMAT, **asdict(settings)}, sort_keys=True)
    rope = repr(network.config.rope)
    key = f"{network.weights.fingerprint()} {facts} {rope}".encode()
    name = f"{network.config.model_type}-{hashlib.sha256(key).hexdigest()[:24]}.mlpackage"
    return env.cache_dir() / "neural-engine" / name
