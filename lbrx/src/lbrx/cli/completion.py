"""lbrx completion: a script for the shell that completes the words of lbrx commands."""

from __future__ import annotations

import argparse

from lbrx import cli
from lbrx.terminal.completion import SHELLS, described, script

_EXAMPLES = """to enable it, and again after an update of lbrx:
  lbrx completion bash > ~/.local/share/bash-completion/completions/lbrx
  lbrx completion zsh > ~/.zfunc/_lbrx
  lbrx completion fish > ~/.config/fish/completions/lbrx.fish

The folder has to exist. bash needs the package bash-completion, or `source FILE` in ~/.bashrc;
zsh needs `fpath+=~/.zfunc; autoload -U compinit; compinit` in ~/.zshrc.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")


def run(options: argparse.Namespace) -> int:
    commands = [next(described(("lbrx",), cli.top_parser()))]
    for name in cli.commands():
        commands += described(("lbrx", name), cli.parser_of(name))
    print(script(options.shell, commands), end="")
    return 0
