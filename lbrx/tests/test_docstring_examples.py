"""The examples in docstrings run and give what they promise."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
from device_memory import DISCRETE

import lbrx

PACKAGES = (
    *(
        "arrays",
        "custom_kernels",
        "files",
        "graph",
        "kernels",
        "memory",
        "metal",
        "ops",
        "planning",
    ),
    *("program", "quant", "scheduler", "tensors"),
)


def modules() -> Iterator[str]:
    for package in PACKAGES:
        home = importlib.import_module(f"lbrx.{package}")
        yield home.__name__
        yield from (each.name for each in pkgutil.walk_packages(home.__path__, f"{home.__name__}."))


def examples() -> dict[str, doctest.DocTest]:
    """Each example once: methods and functions of an operation share its text."""
    finder, found = doctest.DocTestFinder(), {}
    for name in modules():
        for test in finder.find(importlib.import_module(name), globs={"lbrx": lbrx, "np": np}):
            if test.examples:
                found.setdefault("".join(each.source for each in test.examples), test)
    return {test.name: test for test in found.values()}


EXAMPLES = examples()


@pytest.mark.skipif(DISCRETE, reason="some share memory with the device")
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_docstring_example(name):
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(EXAMPLES[name], out=report.append, clear_globs=False)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(report)


def indented(text: str) -> str:
    """The indented block of a docstring, which is code without its result."""
    lines = textwrap.dedent(text.partition("\n")[2]).splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))


def test_examples_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"lbrx": lbrx, "w": lbrx.ones((2, 3))}
    exec(indented(lbrx.load.__doc__), names)
    assert names["w"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_examples_of_models(smollm2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").symlink_to(smollm2)
    names = {"lbrx": lbrx}
    exec(indented(lbrx.open_model.__doc__), names)
    assert names["model"].format == "gguf"
    code = indented(lbrx.language_model.__doc__)
    exec(code, names)
    assert isinstance(names["llm"], lbrx.models.LanguageModel)


@pytest.mark.full
def test_examples_of_texts(smollm2, capsys):
    from lbrx.models import LanguageModel, Stream

    names = {"lbrx": lbrx, "llm": lbrx.language_model("smollm2", context=512)}
    for owner in (LanguageModel.chat, LanguageModel.generate, Stream):
        exec(indented(owner.__doc__), names)
    assert names["stream"].completion.text in capsys.readouterr().out
