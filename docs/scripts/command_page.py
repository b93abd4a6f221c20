"""The page of commands, from the parsers of the command lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from lbrx import cli
from softcoreml.__main__ import _parser as softcoreml_parser
from softmetal.__main__ import _parser as softmetal_parser

HEAD = """# Commands

`lbrx COMMAND --help` shows the same. Errors are one line on standard error with exit status 1;
Ctrl-C gives 130. The report of a Mac has a command of its own, `python -m lbrx.mac_report`
([lbrx on a Mac](../howto/mac.md)).
"""


def parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Each command with what it does and its parser."""
    for name, text in cli.COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"lbrx {name}")
        cli._find(name).add_arguments(parser)
        yield parser.prog, text, parser
        if parser._subparsers is not None:
            yield from _parts(parser.prog, parser)
    for package, parser in (("softmetal", softmetal_parser()), ("softcoreml", softcoreml_parser())):
        yield from _parts(f"python -m {package}", parser)


def _parts(
    prog: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """The commands that a command consists of."""
    (commands,) = parser._subparsers._group_actions
    for action in commands._choices_actions:
        yield f"{prog} {action.dest}", action.help, commands.choices[action.dest]


def markdown(prog: str, text: str, parser: argparse.ArgumentParser) -> str:
    actions = [action for action in parser._actions if action.dest != "help"]
    words = [_metavar(action) for action in actions if not action.option_strings]
    options = ["[options]"] if any(action.option_strings for action in actions) else []
    usage = " ".join([prog, *options, *words])
    rows = [f"| {_spelled(action)} | {_meaning(action)} |" for action in actions]
    table = ["", "| argument | meaning |", "|---|---|", *rows] if rows else []
    sentence = f"{text[0].upper()}{text[1:]}."
    return "\n".join([f"## {prog}", "", sentence, "", "```", usage, "```", *table, ""])


def _metavar(action: argparse.Action) -> str:
    if action.choices and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    name = action.metavar or action.dest
    word = name if isinstance(name, str) else " ".join(name)
    if action.nargs in ("*", "+", argparse.REMAINDER):
        return f"{word}..." if not word.endswith(("...", "]")) else word
    return f"[{word}]" if action.nargs == "?" else word


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_metavar(action)}`"
    value = "" if action.nargs == 0 else f" {_metavar(_named(action))}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _named(action: argparse.Action) -> argparse.Action:
    """An option's value is shown in capitals, as argparse shows it."""
    if action.metavar is None and not action.choices:
        action.metavar = action.dest.upper()
    return action


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("|", "\\|")
    hidden = action.default in (None, False, argparse.SUPPRESS, "", [], ())
    told = hidden or "default" in text or str(action.default) in text
    return text if told else f"{text} (default: {action.default})".strip()


def generated() -> dict[str, str]:
    """The text by its place in docs/."""
    return {"reference/commands.md": "\n".join([HEAD, *(markdown(*each) for each in parsers())])}
