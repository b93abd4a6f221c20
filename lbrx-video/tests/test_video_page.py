"""The examples of docs/video.md and of the README run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

from clip_files import HEIGHT, WIDTH, source_frames, write_clip

import lbrx
import lbrx.video

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT.parent / "docs" / "video.md"


def run_examples(page):
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, page.name, "exec"), names)


def test_examples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_clip("clip.mov", "prores_ks", source_frames(9, "yuv422p10le"), "yuv422p10le")
    run_examples(PAGE)
    assert capsys.readouterr().out.startswith(f"prores ({HEIGHT}, {WIDTH}) 24 ")
    with lbrx.video.open("out.mov") as clip:
        assert len(clip) == 9
        assert clip.facts.codec == "prores"


def test_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_examples(PROJECT / "README.md")
    (printed,) = re.findall(r"```text\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    assert capsys.readouterr().out == printed
