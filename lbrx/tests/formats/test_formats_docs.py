"""docs/howto/formats.md: its examples run and do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import lbrx
from lbrx.files.formats import architecture_tables

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "formats.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_saving_and_loading(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(BLOCKS[0], names)
    assert set(names["tensors"]) == {"w", "n"}
    assert lbrx.open_model("a.safetensors").metadata == {"author": "me"}


def test_opening_a_model(smollm2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"lbrx": lbrx}
    exec(BLOCKS[1].replace("SmolLM2-135M-Instruct.Q4_1.gguf", str(smollm2)), names)
    assert names["model"].format == "gguf"
    assert set(lbrx.load("hf")) == set(names["hf"])


def test_every_table_is_named():
    paragraph = PAGE.split("## Names and layouts")[1].split("- Rows")[0]
    for name in architecture_tables.ARCHITECTURES:
        assert name.removesuffix("_text") in paragraph
