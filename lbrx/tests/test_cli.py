"""The command line's table of subcommands and their help pages."""

from __future__ import annotations

import argparse
from pkgutil import iter_modules

import pytest

from lbrx import cli


def test_every_module_is_a_command():
    named = (module.name.replace("_", "-") for module in iter_modules(cli.__path__))
    assert sorted(cli.COMMANDS) == sorted(named)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help(name, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([name, "--help"])
    page = capsys.readouterr().out
    assert page.startswith(f"usage: lbrx {name} ")
    text = cli.COMMANDS[name]
    assert f"{text[0].upper()}{text[1:]}." in " ".join(page.split())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_argument_is_explained(name):
    parser = argparse.ArgumentParser()
    cli._find(name).add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
    for part in parser._subparsers._group_actions[0].choices.values() if parser._subparsers else ():
        assert part.description
        assert [action.dest for action in part._actions if not action.help] == []


def test_unknown_commands(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(["nonsense"])
    assert "invalid choice: 'nonsense' (choose from" in capsys.readouterr().err
