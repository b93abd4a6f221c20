"""lbrx generate: complete a text, or talk to a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from lbrx.cli import INTERRUPTED
from lbrx.errors import LbrxError
from lbrx.memory.process import peak_memory
from lbrx.models import LanguageModel, Stream, load
from lbrx.models.generation import Timing
from lbrx.models.language_model import read_options
from lbrx.models.sampling import Sampling

SAMPLING = {
    "temperature": (float, "0 for the most likely token each time (the default)"),
    "top_k": (int, "choose among so many of the most likely tokens"),
    "top_p": (float, "choose among the tokens that have this probability together"),
    "min_p": (float, "drop tokens less likely than this share of the most likely"),
    "repetition_penalty": (float, "above 1: make tokens of the text so far less likely"),
    "seed": (int, "the same seed chooses the same tokens"),
}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, and what it may use."""
    parser.add_argument("model", help="a file, a folder, or the name of a packaged model: smollm2")
    parser.add_argument("--context", type=int, help="the most tokens of a text")
    parser.add_argument("--cache-type", default="f16", help="of the KV cache: f16, bf16, f32, q8_0")


def load_model(options: argparse.Namespace) -> LanguageModel:
    """The model, after what it will use is said."""
    return load(
        options.model,
        context=options.context,
        cache_dtype=options.cache_type,
        planned=lambda memory: print(memory, file=sys.stderr, flush=True),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-p", "--prompt", help="the text to complete; '-' reads it from stdin")
    parser.add_argument("--chat", action="store_true", help="answer the prompt, by the template")
    parser.add_argument("--system", help="with --chat: what the model is told first")
    parser.add_argument("-n", "--max-tokens", type=int, default=256, help="at most (256)")
    parser.add_argument("--stop", action="append", default=[], help="end before this text")
    parser.add_argument("--ignore-end", action="store_true", help="go on after the model's end")
    for name, (kind, text) in SAMPLING.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    parser.add_argument("--prompt-cache", metavar="FILE", help="restore and save what was read")


def run(options: argparse.Namespace) -> int:
    if options.prompt is None and not options.chat:
        raise LbrxError("there is no prompt: give -p TEXT, or --chat for a conversation")
    if options.system is not None and not options.chat:
        raise LbrxError("--system is a message of a conversation: give --chat, too")
    read_options(_wanted(options))  # which are refused before a model is loaded
    model = load_model(options)
    saved = Path(options.prompt_cache) if options.prompt_cache else None
    if saved is not None and saved.exists():
        model.restore_prompt(saved)
    status = _converse(model, options) if options.prompt is None else _answer(model, options)
    if saved is not None and model.engine.remembered:
        model.save_prompt(saved)
    return status


def _answer(model: LanguageModel, options: argparse.Namespace) -> int:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    prompt = [*_system(options), _message("user", text)] if options.chat else text
    stream = model.stream(prompt, **_wanted(options))
    _show(stream, model)
    return 0 if stream.completion else INTERRUPTED


def _converse(model: LanguageModel, options: argparse.Namespace) -> int:
    """Read messages until the input ends. Ctrl-C ends an answer, and between answers the talk."""
    status, messages = 0, _system(options)
    for text in _lines():
        messages.append(_message("user", text))
        said = ""
        try:
            _forget(model, messages, options)
            said = _show(model.stream(messages, **_wanted(options)), model)
        except LbrxError as problem:
            print(f"lbrx: {problem}", file=sys.stderr, flush=True)
            status = 1
        except KeyboardInterrupt:  # before there was anything to show
            print()
        if said:
            messages.append(_message("assistant", said))
        else:
            messages.pop()
    return status


def _forget(
    model: LanguageModel, messages: list[dict[str, str]], options: argparse.Namespace
) -> None:
    """Drop the oldest exchanges of a talk that leaves no room for an answer."""
    first = len(_system(options))
    room = min(options.max_tokens, model.engine.context // 2)
    while len(messages) > first + 1 and model.count(messages) + room > model.engine.context:
        del messages[first : first + 2]


def _lines() -> Iterator[str]:
    """What the user says, empty lines left out."""
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        with suppress(ImportError):
            import_module("readline")  # with which `input` lets a line be edited
    while True:
        try:
            line = input("> " if asks else "").strip()
        except (EOFError, KeyboardInterrupt):
            if asks:
                print()
            return
        if line:
            yield line


def _system(options: argparse.Namespace) -> list[dict[str, str]]:
    return [_message("system", options.system)] if options.system else []


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _wanted(options: argparse.Namespace) -> dict[str, Any]:
    """The options of a generation."""
    given = {item.name: getattr(options, item.name) for item in fields(Sampling)}
    return {
        **{name: value for name, value in given.items() if value is not None},
        "max_tokens": options.max_tokens,
        "stop": options.stop,
        "ignore_end": options.ignore_end,
    }


def _show(stream: Stream, model: LanguageModel) -> str:
    """Print a text as it comes, until it ends or is interrupted, and then its speeds: they are no
    part of the standard output. Returns the text."""
    parts = []
    with suppress(KeyboardInterrupt):
        for part in stream:
            parts.append(part)
            print(part, end="", flush=True)
    print(flush=True)
    if stream.timing.first_token:
        line = speeds(stream.timing, model.engine.model.device)
        print(line, file=sys.stderr, flush=True)
    return "".join(parts)


def speeds(timing: Timing, device: str) -> str:
    """The line of figures at the end."""
    on_metal = device == "metal"
    name = import_module("lbrx.metal").context().info.name if on_metal else f"{device} (numpy)"
    decode = f"decode {timing.decode_speed:.0f} tok/s, " if timing.new_tokens else ""
    first = f"first token {timing.first_token:.2f} s, peak {peak_memory() / 1e6:.0f} MB"
    return f"prefill {timing.prefill_speed:.0f} tok/s, {decode}{first}, {name}"
