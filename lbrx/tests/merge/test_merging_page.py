"""docs/howto/merging.md: every method with its parameters and defaults, and commands that exist,
here and in the README."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from lbrx import cli
from lbrx.merging.config import documents, parse
from lbrx.merging.evolve import parse_evolve
from lbrx.merging.experts import parse_mixture
from lbrx.merging.methods import METHODS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "howto" / "merging.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
METHOD_PART = PAGE.split("## Methods\n")[1].split("\n## ")[0]
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", METHOD_PART, re.M | re.S))


def shown(default):
    if default is None:
        return "none"
    return str(default).lower() if isinstance(default, bool) else f"{default:g}"


def test_every_method_has_a_section():
    assert list(SECTIONS) == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_parameters_and_formula(name):
    method, text = METHODS[name], SECTIONS[name]
    assert re.search(r"^    \S", text, re.M), "a formula"
    line = re.search(r"^Parameters: (.*?)\.$", text, re.M | re.S)[1]
    given = dict(re.findall(r"`(\w+)` \(([^)]*)\)", line))
    every = (*method.own, *method.parameters)
    assert given == {p.name: "required" if p.required else shown(p.default) for p in every}


@pytest.mark.parametrize(
    "block",
    [re.search(r"```sh\n(.*?)```", PAGE, re.S)[1], README.split("Merge two")[1].split("```")[1]],
)
def test_commands_are_understood(block):
    lines = block.strip().replace("\\\n", " ").splitlines()
    commands = [line for line in lines if not line.startswith(("pip ", "python "))]
    assert len(commands) > 1
    for line in commands:
        _, command, *arguments = shlex.split(line, comments=True)
        parser = argparse.ArgumentParser()
        cli._find(command).add_arguments(parser)
        parser.parse_args(arguments)


def test_configurations_are_understood():
    merge, mixture, search = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    assert parse(documents(merge, "page")[0]).method == "ties"
    assert len(parse_mixture(documents(mixture, "page")[0]).experts) == 2
    assert len(parse_evolve(documents(search, "page")[0]).space.genes) == 2
