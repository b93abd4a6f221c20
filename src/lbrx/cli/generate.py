"""lbrx generate: complete a text, or talk to a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from lbrx.errors import LbrxError
from lbrx.models import LanguageModel, Stream, load
from lbrx.models.generation import Timing, peak_memory
from lbrx.models.sampling import Sampling

SAMPLING = {
    "temperature": (float, "0 for the most likely token each time (the default)"),
    "top_k": (int, "choose among so many of the most likely tokens"),
    "top_p": (float, "choose among the tokens that have this probability together"),
    "min_p": (float, "drop tokens less likely than this share of the most likely"),
    "repetition_penalty": (float, "above 1: make tokens of the text so far less likely"),
    "seed": (int, "the same seed chooses the same tokens"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a file, a folder, or the name of a packaged model: smollm2")
    parser.add_argument("-p", "--prompt", help="the text to complete; '-' reads it from stdin")
    parser.add_argument("--chat", action="store_true", help="answer the prompt, by the template")
    parser.add_argument("--system", help="with --chat: what the model is told first")
    parser.add_argument("-n", "--max-tokens", type=int, default=256, help="at most (256)")
    parser.add_argument("--stop", action="append", default=[], help="end before this text")
    parser.add_argument("--ignore-end", action="store_true", help="go on after the model's end")
    for name, (kind, text) in SAMPLING.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    parser.add_argument("--context", type=int, help="the most tokens of a text")
    parser.add_argument("--cache-type", default="f16", help="of the KV cache: f16, bf16, f32, q8_0")
    parser.add_argument("--prompt-cache", metavar="FILE", help="restore and save what was read")


def run(options: argparse.Namespace) -> int:
    if options.prompt is None and not options.chat:
        raise LbrxError("there is no prompt: give -p TEXT, or --chat for a conversation")
    model = load(options.model, context=options.context, cache_dtype=options.cache_type)
    saved = Path(options.prompt_cache) if options.prompt_cache else None
    if saved is not None and saved.exists():
        model.restore_prompt(saved)
    status = _converse(model, options) if options.prompt is None else _answer(model, options)
    if saved is not None:
        model.save_prompt(saved)
    return status


def _answer(model: LanguageModel, options: argparse.Namespace) -> int:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    prompt = [*_system(options), _message("user", text)] if options.chat else text
    stream = model.stream(prompt, **_wanted(options))
    try:
        _show(stream)
    finally:
        print()
        _report(stream, model)
    return 0


def _converse(model: LanguageModel, options: argparse.Namespace) -> int:
    """Read messages until the input ends. Ctrl-C ends an answer, and between answers the talk."""
    messages = _system(options)
    for text in _lines():
        messages.append(_message("user", text))
        stream = model.stream(messages, **_wanted(options))
        said = ""
        with suppress(KeyboardInterrupt):
            for part in stream:
                said += part
                print(part, end="", flush=True)
        print()
        _report(stream, model)
        messages.append(_message("assistant", said))
    return 0


def _lines() -> Iterator[str]:
    """What the user says, empty lines left out."""
    asks = sys.stdin.isatty()
    while True:
        if asks:
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


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


def _show(parts: Iterable[str] | Stream) -> None:
    for part in parts:
        print(part, end="", flush=True)


def _report(stream: Stream, model: LanguageModel) -> None:
    """The text is standard output; how long it took is not."""
    sys.stdout.flush()
    print(speeds(stream.timing, model.engine.model.device), file=sys.stderr, flush=True)


def speeds(timing: Timing, device: str) -> str:
    """The line of figures at the end."""
    on_metal = device == "metal"
    name = import_module("lbrx.metal").context().info.name if on_metal else f"{device} (numpy)"
    decode = f"decode {timing.decode_speed:.0f} tok/s, " if timing.new_tokens else ""
    first = f"first token {timing.first_token:.2f} s, peak {peak_memory() / 1e6:.0f} MB"
    return f"prefill {timing.prefill_speed:.0f} tok/s, {decode}{first}, {name}"
