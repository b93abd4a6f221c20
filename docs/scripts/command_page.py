"""The page of commands, from the parsers of the command lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from lbrx import cli
from softcoreml.__main__ import _parser as softcoreml_parser
from softmetal.__main__ import _parser as softmetal_parser

HEAD = """# Commands

`lbrx COMMAND --help` shows the same. Errors are one line on standard error with exit status 1, or
2 where the arguments are wrong; Ctrl-C gives 130. With `--json`, where a command has it, an error
is `{"error": {"message": "...", "remedy": "..."}}` on standard output with the same status; the
remedy is null if there is none. The report of a Mac has a command of its own,
`python -m lbrx.mac_report` ([lbrx on a Mac](../howto/mac.md)).

Tab completes commands, options, their values and files, once the shell has the script that
`lbrx completion` prints:

```
lbrx completion bash > ~/.local/share/bash-completion/completions/lbrx
lbrx completion zsh > ~/.zfunc/_lbrx           # with fpath+=~/.zfunc before compinit in ~/.zshrc
lbrx completion fish > ~/.config/fish/completions/lbrx.fish
```

bash needs the package bash-completion for this; without it, name a file and `source` it in
`~/.bashrc`. The scripts hold what the commands were when they were written: write them again after
an update.
"""


def parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Each command with what it does and its parser."""
    for name, text in cli.commands().items():
        parser = cli.parser_of(name)
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
    text = text.replace("][", "]\\[")  # which would be a link
    hidden = action.default in (None, False, argparse.SUPPRESS, "", [], ())
    told = hidden or "default" in text or str(action.default) in text
    return text if told else f"{text} (default: {action.default})".strip()


def generated() -> dict[str, str]:
    """The text by its place in docs/."""
    return {"reference/commands.md": "\n".join([HEAD, *(markdown(*each) for each in parsers())])}
