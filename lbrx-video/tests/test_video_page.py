"""The examples of docs/video.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

from clip_files import HEIGHT, WIDTH, source_frames, write_clip

import lbrx
import lbrx.video

PAGE = Path(__file__).parents[3] / "docs" / "video.md"


def test_examples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_clip("clip.mov", "prores_ks", source_frames(9, "yuv422p10le"), "yuv422p10le")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    assert capsys.readouterr().out.startswith(f"prores ({HEIGHT}, {WIDTH}) 24 ")
    with lbrx.video.open("out.mov") as clip:
        assert len(clip) == 9
        assert clip.facts.codec == "prores"
