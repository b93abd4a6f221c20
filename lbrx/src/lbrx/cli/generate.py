"""lbrx generate: complete a text with a language model, or chat with it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

from lbrx.cli import INTERRUPTED
from lbrx.errors import LbrxError
from lbrx.files.formats.checks import read_json
from lbrx.files.stored.stored_model import StoredModel
from lbrx.models import Completion, LanguageModel, Stream
from lbrx.models.generation import OptionKeywords, Timing
from lbrx.models.language_model import read_options
from lbrx.models.loading import PREFILL, language_model
from lbrx.models.memory_plan import MemoryPlan
from lbrx.process import peak_memory
from lbrx.terminal.arguments import MODEL
from lbrx.terminal.conversation import HINT, Conversation, message
from lbrx.terminal.message_input import MessageInput
from lbrx.terminal.problems import report
from lbrx.terminal.progress import token_bar

MIN_COMPILE_SECONDS = 0.2  # shown from here on
SAMPLING = (
    ("temperature", float, "T", "0 (the default) always takes the most likely token"),
    ("top_k", int, "K", "draw from the K most likely tokens (0: all)"),
    ("top_p", float, "P", "draw from the most likely tokens whose probabilities add up to P (1)"),
    ("min_p", float, "P", "draw from tokens at least P times as likely as the most likely (0)"),
    ("repetition_penalty", float, "X", "above 1, makes tokens of the text less likely (1)"),
    ("presence_penalty", float, "X", "subtract this from logits of generated tokens (0)"),
    ("frequency_penalty", float, "X", "subtract this for each time a token was generated (0)"),
    ("seed", int, "N", "draw the same tokens each time (default: different ones)"),
)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and the memory that it may use."""
    parser.add_argument(
        "model", help=f"the model: {MODEL}; or BASE+LORA, with the adapter's folder"
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
    parser.add_argument(
        "--adapter",
        metavar="PATH[:SCALE]",
        action="append",
        default=[],
        help="a LoRA adapter that is added beside the weights; may be repeated",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="no progress bar, no memory plan, no speeds"
    )


def open_language_model(options: argparse.Namespace, other: str | None = None) -> LanguageModel:
    """Open the model, and print the memory that it will use before that. `other` is a model to open
    in its place with the same options, without adapters."""

    def show(memory: MemoryPlan) -> None:
        if not options.quiet:
            print(memory, file=sys.stderr, flush=True)

    return language_model(
        model_source(options.model if other is None else other),
        context=options.context,
        cache_dtype=options.cache_type,
        prefill=getattr(options, "prefill", "gpu"),
        adapters=options.adapter if other is None else (),
        on_memory_plan=show,
    )


@contextmanager
def reading(model: LanguageModel, doing: str, quiet: bool) -> Iterator[None]:
    """Show how much of a text the model has read, if that takes a while."""
    with token_bar(doing, quiet) as model.engine.progress:
        try:
            yield
        finally:
            model.engine.progress = None


def model_source(name: str) -> str | StoredModel:
    """The name of a model, or for BASE+LORA the model that the adapter makes of the base."""
    if "+" not in name:
        return name
    from lbrx.merging import merge
    from lbrx.merging.config import parse_model
    from lbrx.merging.lora import applied

    reference = parse_model(name)
    return name if reference.lora is None else merge(applied(reference.path, reference.lora))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="the text to complete; '-' reads standard input, without a line break at its end, as "
        "does a pipe or file there without -p and --chat",
    )
    add(
        "--chat",
        action="store_true",
        help="answer the prompt as a chat message; without -p, have a conversation, where "
        "/help lists commands",
    )
    add("--system", metavar="TEXT", help="the system message of a chat")
    add(
        "--json",
        action="store_true",
        help="print one JSON object at the end: text, tokens, finish reason, log-probabilities "
        "and timings",
    )
    add(
        "--top-logprobs",
        metavar="K",
        type=int,
        help="with --json: the K most likely tokens at each place, too",
    )
    add_text_arguments(parser)
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


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """How texts are generated."""
    add = parser.add_argument
    add("-n", "--max-tokens", metavar="N", type=int, default=256, help="new tokens at most (256)")
    add(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end before this text; may be repeated",
    )
    add("--ignore-end", action="store_true", help="continue after the model's end token")
    add("--show-special", action="store_true", help="show special tokens of the text, too")
    add("--schema", metavar="FILE", help="write JSON that obeys the JSON schema in this file")
    add("--regex", metavar="PATTERN", help="write text that matches a regular expression")
    add("--grammar", metavar="FILE", help="write text of the grammar in this file (Lark or GBNF)")
    for name, kind, metavar, text in SAMPLING:
        add(f"--{name.replace('_', '-')}", metavar=metavar, type=kind, help=text)


def run(options: argparse.Namespace) -> int:
    if options.prompt is None and not options.chat:
        options.prompt = _piped_text()
    if options.json and options.prompt is None:
        raise LbrxError("--json is for one answer: give -p TEXT, too")
    if options.top_logprobs is not None and not options.json:
        raise LbrxError("--top-logprobs is for --json: give that, too")
    if options.system is not None and not options.chat:
        raise LbrxError("--system is a chat message: give --chat, too")
    read_options(generation_options(options))  # bad ones raise before the model is loaded
    if options.chat:
        from lbrx.models import template_process

        template_process.start()  # which gets ready while the model is loaded
    model = open_language_model(options)
    saved = Path(options.prompt_cache) if options.prompt_cache else None
    if saved is not None and saved.exists():
        model.restore_prompt(saved)
    status = _chat(model, options) if options.prompt is None else _complete(model, options)
    if saved is not None and model.engine.cached_tokens:
        model.save_prompt(saved)
    return status


def _complete(model: LanguageModel, options: argparse.Namespace) -> int:
    # As in a shell's $(...): `echo` ends a line that is not meant to end the prompt.
    text = _without_break(sys.stdin.read()) if options.prompt == "-" else options.prompt
    system = [message("system", options.system)] if options.system else []
    prompt = [*system, message("user", text)] if options.chat else text
    chosen = generation_options(options)
    if options.json:
        chosen["logprobs"] = True
    stream = model.stream(prompt, **chosen)
    _show(stream, model, options.quiet, options.json)
    return 0 if stream.completion else INTERRUPTED


def _piped_text() -> str:
    """What a pipe or file gives on standard input. Raises LbrxError if there is nothing."""
    text = "" if sys.stdin is None or sys.stdin.isatty() else _without_break(sys.stdin.read())
    if not text:
        raise LbrxError("there is no prompt: give -p TEXT, or --chat for a conversation")
    return text


def _without_break(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _chat(model: LanguageModel, options: argparse.Namespace) -> int:
    """Answer messages until the input ends."""
    conversation = Conversation(
        model,
        options.system,
        generation_options(options),
        lambda stream: _show(stream, model, options.quiet),
    )
    given = MessageInput()
    if given.is_terminal and not options.quiet:
        report(HINT)
    return conversation.run(given)


def generation_options(options: argparse.Namespace) -> OptionKeywords:
    """The keyword arguments of `LanguageModel.stream` that were given."""
    given = {name: getattr(options, name, None) for name in OptionKeywords.__annotations__}
    if given["schema"] is not None:
        given["schema"] = read_json(Path(given["schema"]))
    if given["grammar"] is not None:
        given["grammar"] = read_text(Path(given["grammar"]))
    return cast(OptionKeywords, {name: x for name, x in given.items() if x is not None})


def read_text(path: Path) -> str:
    """The contents of a file. Raises LbrxError if it is not UTF-8."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise LbrxError(f"{path} is not a text in UTF-8: give a file that is") from None


def _show(stream: Stream, model: LanguageModel, quiet: bool, as_json: bool = False) -> str:
    """Print a text as it is generated, until it ends or is interrupted, and return it; as JSON it
    is printed at its end. Its end's reason and the speeds follow on standard error."""
    parts = []
    with suppress(KeyboardInterrupt):
        with reading(model, "reading the prompt", quiet):
            first = next(stream, "")
        for part in chain([first], stream):
            parts.append(part)
            if not as_json:
                print(part, end="", flush=True)
    if not as_json:
        print(flush=True)
    elif stream.completion is not None:
        print(json.dumps(_described(stream.completion, model), ensure_ascii=False), flush=True)
    if quiet:
        return "".join(parts)
    _show_reader(model)
    if stream.timing.first_token_seconds:
        line = speeds(stream.timing, model.engine.network.device)
        reason = f", ended by {stream.completion.finish_reason}" if stream.completion else ""
        print(f"{line}{reason}", file=sys.stderr, flush=True)
    return "".join(parts)


def _described(completion: Completion, model: LanguageModel) -> dict[str, Any]:
    """What --json prints."""
    timing = completion.timing
    result: dict[str, Any] = {
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": str(completion.finish_reason),
        "logprobs": completion.logprobs,
    }
    if completion.top_logprobs is not None:
        result["top_logprobs"] = [
            [{"token": token, "logprob": score} for token, score in place]
            for place in completion.top_logprobs
        ]
    return {
        **result,
        "timing": {
            "prompt_tokens": timing.prompt_tokens,
            "first_token_seconds": timing.first_token_seconds,
            "prefill_tokens_per_second": timing.prefill_speed if timing.prompt_tokens else None,
            "decode_tokens_per_second": timing.decode_speed if timing.decoded_tokens else None,
            "compile_seconds": timing.compile_seconds,
        },
        "device": model.engine.network.device,
    }


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
