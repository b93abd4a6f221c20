"""The command line: a module for each subcommand, named after it and imported when it is run.

A new subcommand is a module in this folder, a line in `COMMANDS` and a case in `_find`. Other
distributions add theirs by entry points.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from lbrx.compile_notice import silenced
from lbrx.entry_points import imported, named
from lbrx.errors import MAX_QUOTED, LbrxError, printable, shortened
from lbrx.extras import DISTRIBUTIONS, without
from lbrx.terminal.arguments import WRONG_USAGE, Parser, UsageError
from lbrx.terminal.problems import as_json, report
from lbrx.version import VERSION

ENTRY_POINTS = "lbrx.commands"
INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + the signal's number, as in shells
# New objects between runs of the garbage collector: a start allocates many, and keeps nearly all.
GC_THRESHOLD = 50_000
COMMANDS = {
    "apply-lora": "add a LoRA adapter to a model's weights",
    "batch": "complete the prompts of a file, many at once",
    "bench": "measure this machine beside its ceilings and other libraries",
    "completion": "print a script that lets bash, zsh or fish complete lbrx commands",
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
    "serve": "answer requests of the APIs of OpenAI, Anthropic and Ollama",
    "shaders": "compile the kernels ahead of their first use",
    "task-vector": "write the difference of two models as a model",
    "train": "fine-tune a language model on examples",
    "tune": "measure which kernel variants are fastest on this device, and remember them",
}


class Command(Protocol):
    """The functions that the module of a subcommand has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int:
        """Returns the exit status."""
        ...


class InstalledCommand(Command, Protocol):
    """A command that another distribution adds."""

    SUMMARY: str
    """What it does, in a line that begins with a verb and has no full stop."""


_OWN_OPTIONS = ("-h", "--help", "--version")


def _find(name: str) -> Command:
    """The module of a subcommand; the others are not imported."""
    command: Command
    match name:
        case "apply-lora":
            from lbrx.cli import apply_lora as command
        case "batch":
            from lbrx.cli import batch as command
        case "bench":
            from lbrx.cli import bench as command
        case "completion":
            from lbrx.cli import completion as command
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
        case "serve":
            from lbrx.cli import serve as command
        case "shaders":
            from lbrx.cli import shaders as command
        case "task-vector":
            from lbrx.cli import task_vector as command
        case "train":
            from lbrx.cli import train as command
        case "tune":
            from lbrx.cli import tune as command
        case _:
            command = _installed(name)
    return command


def _installed(name: str) -> InstalledCommand:
    """The command of another distribution."""
    command = cast("InstalledCommand | None", imported(ENTRY_POINTS, name))
    if command is None:
        raise LbrxError(f"{name} is not a command: give one of {', '.join(commands())}")
    return command


def is_command(name: str) -> bool:
    """Whether there is a command of that name."""
    return name in COMMANDS or name in named(ENTRY_POINTS)


def summary(name: str) -> str:
    """What a command does, in a line."""
    return COMMANDS[name] if name in COMMANDS else _installed(name).SUMMARY


def commands() -> dict[str, str]:
    """What each command does, those of other distributions among them, in order."""
    return {name: summary(name) for name in sorted({*COMMANDS, *named(ENTRY_POINTS)})}


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
    options = argparse.Namespace()
    try:
        _set_up_streams()
        try:
            status = _run(given, options)
        finally:  # also after a help page, where argparse ends the program
            sys.stdout.flush()
    except UsageError as misuse:
        if not misuse.asks_for_json(given):
            misuse.parser.exit_with(misuse.problem)
        remedy = f"give the arguments that `{misuse.parser.prog} --help` lists"
        return _failed(f"{misuse.problem}: {remedy}", given, in_json=True, status=WRONG_USAGE)
    except LbrxError as problem:
        return _failed(str(problem), given, in_json=_wants_json(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return BROKEN_PIPE
    except OSError as problem:  # a full disk, an unreadable file
        in_json = _wants_json(options)
        try:
            sys.stdout.flush()
        except OSError:
            _close_output()
            in_json = False
        named = problem.filename is not None and problem.strerror is not None
        text = f"{problem.filename}: {problem.strerror}" if named else str(problem)
        if isinstance(problem, FileNotFoundError | IsADirectoryError | NotADirectoryError):
            text += ": check the path"
        return _failed(text, given, in_json=in_json)
    return status


def _wants_json(options: argparse.Namespace) -> bool:
    return bool(getattr(options, "json", False))


def spare_collector() -> None:
    """Let the garbage collector skip all that exists, modules and plans, which stay until the end
    of a command. Only where the command line started this process."""
    if gc.get_threshold()[0] == GC_THRESHOLD:
        gc.freeze()


def _run(given: Sequence[str], options: argparse.Namespace) -> int:
    """Run a command with arguments, which are put into `options`."""
    if given and is_command(given[0]):
        parser_of(given[0]).parse_args(given[1:], options)
        quiet = _wants_json(options) or bool(getattr(options, "quiet", False))
        with silenced(quiet):
            return _find(given[0]).run(options)
    if given and given[0] in DISTRIBUTIONS:
        raise LbrxError(without(given[0]))
    parser = top_parser()
    if not given:
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    if given[0].startswith("-") and not any(each.startswith(given[0]) for each in _OWN_OPTIONS):
        raise UsageError(parser, f"unrecognized arguments: {given[0]}: options follow the command")
    parser.parse_args(given)  # ends with a help page, the version or an error
    raise UsageError(parser, f"{given[0]} is not a command: give one of {', '.join(commands())}")


def top_parser() -> Parser:
    """The parser of a command line whose first word is not a command. It has the commands' names,
    and not their arguments."""
    parser = Parser(prog="lbrx", description="An ML toolkit for Apple Silicon.")
    parser.add_argument("--version", action="version", version=f"lbrx {VERSION}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in commands().items():
        parsers.add_parser(name, help=text)
    return parser


def parser_of(name: str) -> Parser:
    """The parser of a command's arguments."""
    text = summary(name)
    parser = Parser(prog=f"lbrx {name}", description=f"{text[0].upper()}{text[1:]}.")
    _find(name).add_arguments(parser)
    return parser


def _failed(problem: str, given: Sequence[str], *, in_json: bool, status: int = 1) -> int:
    """Print an error, in JSON on standard output, and return the exit status.

    What was given is shortened and has no line breaks in it: the error stays one line."""
    if in_json:
        try:
            print(as_json(problem), flush=True)
        except OSError:
            _close_output()
        else:
            return status
    problem = printable(problem)
    for part in (part for argument in given for part in (argument, *argument.split(os.sep))):
        if "\n" in part or len(part) > MAX_QUOTED:
            problem = problem.replace(printable(part), shortened(printable(part, kept="")))
    report(problem)
    return status


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
