"""The command line: one file a subcommand, imported when it is asked for."""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from lbrx import __version__
from lbrx.errors import LbrxError

INTERRUPTED, BROKEN_PIPE = 130, 141  # what shells expect of 128 + the signal's number
# New objects before the collector looks for cycles. A start makes many, and nearly all stay.
UNCOLLECTED = 50_000
COMMANDS = {
    "convert": "write a model in another format, quantized or not",
    "devices": "show the Metal devices and what they can do",
    "generate": "complete a text with a language model, or talk to it",
    "inspect": "show what is in a model, and which chips it fits",
    "perplexity": "measure how well a language model predicts a text",
    "profile": "run a script and show what its kernels did",
    "shaders": "compile the kernels before they are used",
    "tune": "measure which kernels are the quickest here, and remember it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; an error of ours is a line, not a traceback."""
    if arguments is None:  # the process is ours
        gc.set_threshold(UNCOLLECTED)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _set_up_streams()
        status = _run(given)
        sys.stdout.flush()
    except LbrxError as problem:
        return _failed(str(problem))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return BROKEN_PIPE
    except OSError as problem:  # a full disk, a file that may not be read
        try:
            sys.stdout.flush()
        except OSError:
            _close_output()
        return _failed(str(problem))
    return status


def _run(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lbrx", description="An ML toolkit for Apple Silicon.")
    parser.add_argument("--version", action="version", version=f"lbrx {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if given[:1] == [name]:
            import_module(f"lbrx.cli.{name}").add_arguments(command)
    options = parser.parse_args(given)
    status: int = import_module(f"lbrx.cli.{options.command}").run(options)
    return status


def _failed(problem: str) -> int:
    print(f"lbrx: {problem}", file=sys.stderr)
    return 1


def _set_up_streams() -> None:
    """Any text can be written and any bytes read: what is wrong with them is for commands to say.

    A stream that the caller has closed is None, or nothing.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _close_output() -> None:
    """Nobody reads the output, or it cannot be written: the interpreter's own flush at its exit
    must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
