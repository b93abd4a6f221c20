"""The command line: a module for each subcommand, named after it and imported when it is run.

A new subcommand is a module in this folder, a line in `COMMANDS` and a case in `_find`.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from lbrx.errors import LbrxError
from lbrx.version import VERSION

INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + the signal's number, as in shells
# New objects between runs of the garbage collector: a start allocates many, and keeps nearly all.
GC_THRESHOLD = 50_000
COMMANDS = {
    "apply-lora": "add a LoRA adapter to a model's weights",
    "bench": "measure this machine beside its ceilings and other libraries",
    "convert": "write a model in another format, quantized or not",
    "devices": "show the Metal devices and what they can do",
    "evolve": "search the merge parameters that give the best model",
    "export": "write a language model as a Core ML program for the Neural Engine",
    "extract-lora": "write the difference of two models as a LoRA adapter",
    "generate": "complete a text with a language model, or chat with it",
    "inspect": "show what is in a model, and which chips it fits",
    "merge": "merge models as mergekit's YAML says, or with options",
    "perplexity": "measure how well a language model predicts a text",
    "plan": "model the time and energy of a language model on the units of Apple's chips",
    "profile": "run a script and show how long its kernels took",
    "shaders": "compile the kernels ahead of their first use",
    "task-vector": "write the difference of two models as a model",
    "tune": "measure which kernel variants are fastest on this device, and remember them",
    "video": "show, convert and compare video clips, and run kernels on their frames",
}


class Command(Protocol):
    """The functions that the module of a subcommand has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int:
        """Returns the exit status."""
        ...


def _find(name: str) -> Command:
    """The module of a subcommand; the others are not imported."""
    command: Command
    match name:
        case "apply-lora":
            from lbrx.cli import apply_lora as command
        case "bench":
            from lbrx.cli import bench as command
        case "convert":
            from lbrx.cli import convert as command
        case "devices":
            from lbrx.cli import devices as command
        case "evolve":
            from lbrx.cli import evolve as command
        case "export":
            from lbrx.cli import export as command
        case "extract-lora":
            from lbrx.cli import extract_lora as command
        case "generate":
            from lbrx.cli import generate as command
        case "inspect":
            from lbrx.cli import inspect as command
        case "merge":
            from lbrx.cli import merge as command
        case "perplexity":
            from lbrx.cli import perplexity as command
        case "plan":
            from lbrx.cli import plan as command
        case "profile":
            from lbrx.cli import profile as command
        case "shaders":
            from lbrx.cli import shaders as command
        case "task-vector":
            from lbrx.cli import task_vector as command
        case "tune":
            from lbrx.cli import tune as command
        case "video":
            from lbrx.cli import video as command
        case _:
            raise LbrxError(f"{name} is not a command: give one of {', '.join(COMMANDS)}")
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status. Errors are one line on standard error."""
    if arguments is not None:
        return _status(arguments)
    gc.set_threshold(GC_THRESHOLD)  # the command line started this process
    try:
        return _status(sys.argv[1:])
    finally:  # the end of the process frees everything; a collection before it takes 40 ms
        gc.freeze()
        gc.disable()


def _status(given: Sequence[str]) -> int:
    try:
        _set_up_streams()
        try:
            status = _run(given)
        finally:  # also after a help page, where argparse ends the program
            sys.stdout.flush()
    except LbrxError as problem:
        return _failed(str(problem), given)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return BROKEN_PIPE
    except OSError as problem:  # a full disk, an unreadable file
        try:
            sys.stdout.flush()
        except OSError:
            _close_output()
        named = problem.filename is not None and problem.strerror is not None
        text = f"{problem.filename}: {problem.strerror}" if named else str(problem)
        return _failed(text, given)
    return status


def spare_collector() -> None:
    """Let the garbage collector skip all that exists, modules and plans, which stay until the end
    of a command. Only where the command line started this process."""
    if gc.get_threshold()[0] == GC_THRESHOLD:
        gc.freeze()


def _run(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lbrx", description="An ML toolkit for Apple Silicon.")
    parser.add_argument("--version", action="version", version=f"lbrx {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if given[:1] == [name]:
            _find(name).add_arguments(command)
    options = parser.parse_args(given)
    return _find(options.command).run(options)


def _failed(problem: str, given: Sequence[str]) -> int:
    """Print an error. Line breaks in paths that were given, and other control characters, are
    written as escapes: the error stays one line, and a name cannot drive the terminal."""
    for part in (part for argument in given for part in argument.split(os.sep)):
        if "\n" in part:
            problem = problem.replace(part, _escaped(part))
    lines = map(_escaped, f"lbrx: {problem}".split("\n"))
    print("\n".join(lines), file=sys.stderr)
    return 1


def _escaped(text: str) -> str:
    """The text with escapes such as \\n and \\x1b for its control characters."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def _set_up_streams() -> None:
    """Let any text be written and any bytes be read, so that commands can report bad input.

    A standard stream that the caller has closed is None here; the null device replaces it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _close_output() -> None:
    """Discard further output after a write has failed: otherwise the interpreter's flush at exit
    fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
