"""docs/howto/convert.md lists the options of the command."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from lbrx.cli import convert, inspect

PAGE = (Path(__file__).parents[3] / "docs/howto/convert.md").read_text()


def parser(module) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser()
    module.add_arguments(result)
    return result


def test_every_option_is_there():
    options = set(parser(convert)._option_string_actions) - {"-h", "--help"}
    table = PAGE.split("## What tensors become")[0]
    assert set(re.findall(r"`(--[a-z-]+)`", table.split("| option |")[1])) == options


def test_examples_are_understood():
    block = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1]
    lines = [*block.splitlines(), *convert._EXAMPLES.splitlines()[1:]]
    for line in lines:
        _, command, *arguments = shlex.split(line)
        parser({"convert": convert, "inspect": inspect}[command]).parse_args(arguments)
