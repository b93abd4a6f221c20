"""The command line: one file a subcommand, imported when it is asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from lbrx import __version__
from lbrx.errors import LbrxError

INTERRUPTED, BROKEN_PIPE = 130, 141  # what shells expect of 128 + the signal's number
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
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="lbrx", description="An ML toolkit for Apple Silicon.")
    parser.add_argument("--version", action="version", version=f"lbrx {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if given[:1] == [name]:
            import_module(f"lbrx.cli.{name}").add_arguments(command)
    options = parser.parse_args(given)
    try:
        status: int = import_module(f"lbrx.cli.{options.command}").run(options)
        sys.stdout.flush()
    except LbrxError as problem:
        print(f"lbrx: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone; the interpreter's own flush at exit must not say so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status
