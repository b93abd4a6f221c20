"""lbrx generate: complete a text with a language model, or chat with it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

from lbrx.cli import INTERRUPTED
from lbrx.errors import LbrxError
from lbrx.models import LanguageModel, Stream
from lbrx.models.generation import OptionKeywords, Timing
from lbrx.models.language_model import read_options
from lbrx.models.loading import PREFILL, language_model
from lbrx.process import peak_memory

MIN_COMPILE_SECONDS = 0.2  # shown from here on
SAMPLING = (
    ("temperature", float, "T", "0 (the default) always takes the most likely token"),
    ("top_k", int, "K", "draw from the K most likely tokens (0: all)"),
    ("top_p", float, "P", "draw from the most likely tokens whose probabilities add up to P (1)"),
    ("min_p", float, "P", "draw from tokens at least P times as likely as the most likely (0)"),
    ("repetition_penalty", float, "X", "above 1, makes tokens of the text less likely (1)"),
    ("seed", int, "N", "draw the same tokens each time (default: different ones)"),
)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and the memory that it may use."""
    parser.add_argument(
        "model", help="a GGUF file, a model's folder, or the name of a packaged model: smollm2"
    )
    parser.add_argument(
        "--context",
        metavar="N",
        type=int,
        help="maximum tokens of a text with its prompt (default: what the model was trained for, "
        "at most 8192)",
    )
    parser.add_argument(
        "--cache-type",
        metavar="TYPE",
        default="f16",
        help="type of the KV cache: f16 (the default), bf16, f32 or q8_0",
    )


def open_language_model(options: argparse.Namespace) -> LanguageModel:
    """Open the model, and print the memory that it will use before that."""
    return language_model(
        options.model,
        context=options.context,
        cache_dtype=options.cache_type,
        prefill=getattr(options, "prefill", "gpu"),
        on_memory_plan=lambda memory: print(memory, file=sys.stderr, flush=True),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add("-p", "--prompt", metavar="TEXT", help="the text to complete; '-' reads standard input")
    add(
        "--chat",
        action="store_true",
        help="answer the prompt as a chat message; without -p, read messages line by line",
    )
    add("--system", metavar="TEXT", help="the system message of a chat")
    add("-n", "--max-tokens", metavar="N", type=int, default=256, help="new tokens at most (256)")
    add(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end before this text; may be repeated",
    )
    add("--ignore-end", action="store_true", help="continue after the model's end token")
    for name, kind, metavar, text in SAMPLING:
        add(f"--{name.replace('_', '-')}", metavar=metavar, type=kind, help=text)
    add(
        "--prefill",
        choices=PREFILL,
        default="gpu",
        help="the unit that reads prompts: gpu (the default), neural-engine through a Core ML "
        "program that is kept in LBRX_CACHE, or auto, which models both and prints its reason",
    )
    add(
        "--prompt-cache",
        metavar="FILE",
        help="restore the KV cache from this file if it exists, and save it there at the end",
    )


def run(options: argparse.Namespace) -> int:
    if options.prompt is None and not options.chat:
        raise LbrxError("there is no prompt: give -p TEXT, or --chat for a conversation")
    if options.system is not None and not options.chat:
        raise LbrxError("--system is a chat message: give --chat, too")
    read_options(_generation_options(options))  # bad ones raise before the model is loaded
    model = open_language_model(options)
    saved = Path(options.prompt_cache) if options.prompt_cache else None
    if saved is not None and saved.exists():
        model.restore_prompt(saved)
    status = _chat(model, options) if options.prompt is None else _complete(model, options)
    if saved is not None and model.engine.cached_tokens:
        model.save_prompt(saved)
    return status


def _complete(model: LanguageModel, options: argparse.Namespace) -> int:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    prompt = [*_system(options), _message("user", text)] if options.chat else text
    stream = model.stream(prompt, **_generation_options(options))
    _show(stream, model)
    return 0 if stream.completion else INTERRUPTED


def _chat(model: LanguageModel, options: argparse.Namespace) -> int:
    """Answer messages until the input ends. Ctrl-C ends an answer, or else the conversation."""
    status, messages = 0, _system(options)
    for text in _lines():
        said, asked = "", [*messages, _message("user", text)]
        try:
            asked = _fitting(model, asked, options)
            said = _show(model.stream(asked, **_generation_options(options)), model)
        except LbrxError as problem:
            print(f"lbrx: {problem}", file=sys.stderr, flush=True)
            status = 1
        except KeyboardInterrupt:  # before the first part of the answer
            print()
        if said:
            messages = [*asked, _message("assistant", said)]
    return status


def _fitting(
    model: LanguageModel, messages: list[dict[str, str]], options: argparse.Namespace
) -> list[dict[str, str]]:
    """A conversation without its oldest exchanges, where all of it leaves no room for an answer.

    Raises LbrxError if its last message alone does not fit the context.
    """
    context, first = model.engine.context, len(_system(options))
    alone = model.count_tokens([*messages[:first], messages[-1]])
    if alone >= context:
        raise LbrxError(
            f"the message has {alone:,} tokens, and the context is {context:,}: shorten it; the "
            "conversation continues without it"
        )
    kept = list(messages)
    room = min(options.max_tokens, context // 2)
    while len(kept) > first + 1 and model.count_tokens(kept) + room > context:
        del kept[first : first + 2]
    if forgotten := (len(messages) - len(kept)) // 2:
        noun = "exchange" if forgotten == 1 else "exchanges"
        print(
            f"lbrx: the conversation exceeds the context of {context:,} tokens: the oldest "
            f"{forgotten} {noun} are forgotten",
            file=sys.stderr,
            flush=True,
        )
    return kept


def _lines() -> Iterator[str]:
    """The lines of standard input that are not empty."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401 (importing it lets `input` edit lines)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            if interactive:
                print()
            return
        if line:
            yield line


def _system(options: argparse.Namespace) -> list[dict[str, str]]:
    return [_message("system", options.system)] if options.system else []


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _generation_options(options: argparse.Namespace) -> OptionKeywords:
    """The keyword arguments of `LanguageModel.stream` that were given."""
    given = {name: getattr(options, name, None) for name in OptionKeywords.__annotations__}
    return cast(OptionKeywords, {name: x for name, x in given.items() if x is not None})


def _show(stream: Stream, model: LanguageModel) -> str:
    """Print a text as it is generated, until it ends or is interrupted, and return it. The speeds
    follow on standard error."""
    parts = []
    with suppress(KeyboardInterrupt):
        for part in stream:
            parts.append(part)
            print(part, end="", flush=True)
    print(flush=True)
    _show_reader(model)
    if stream.timing.first_token_seconds:
        line = speeds(stream.timing, model.engine.network.device)
        print(line, file=sys.stderr, flush=True)
    return "".join(parts)


def _show_reader(model: LanguageModel) -> None:
    """Print which unit read the prompts, where that was asked for."""
    reports: list[str] = getattr(model.engine.prompt_reader, "reports", [])
    for line in reports:
        print(line, file=sys.stderr, flush=True)
    reports.clear()


def speeds(timing: Timing, device: str) -> str:
    """The line of measurements after a text."""
    decode = f"decode {timing.decode_speed:.0f} tok/s, " if timing.decoded_tokens else ""
    first = f"first token {timing.first_token_seconds:.2f} s, peak {peak_memory() / 1e6:.0f} MB"
    rates = f"prefill {timing.prefill_speed:.0f} tok/s, {decode}{first}, {_device_name(device)}"
    return f"{rates}{_compiled(timing)}"


def _compiled(timing: Timing) -> str:
    """What the first run of a model compiled; kernels from a cache take no time to speak of."""
    if timing.compile_seconds < MIN_COMPILE_SECONDS:
        return ""
    return f" (compiled {timing.compiled_kernels} kernels in {timing.compile_seconds:.1f} s)"


def _device_name(device: str) -> str:
    if device != "metal":
        return f"{device} (numpy)"
    from lbrx.metal import context

    return context().info.name
