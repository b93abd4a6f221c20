"""`lbrx batch`: the answers of a file of prompts, in order, and continued after an interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

import lbrx
from lbrx.cli import main

CHAT = [{"role": "user", "content": "Hello, world!"}]
LINES = [
    {"prompt": "Hello", "id": "first", "max_tokens": 12},
    {"messages": CHAT, "max_tokens": 2},
    {"prompt": [5, 6, 7], "temperature": 0.8, "seed": 3},
    {"prompt": "Hello", "regex": "[ab]{5}"},
    {"prompt": "one two three " * 30, "max_tokens": 1, "logprobs": True},
]
BAD = ["{", "[]", "{}", '{"prompt": "a", "messages": []}', '{"prompt": "a", "temperature": -1}']


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model("llama", max_position_embeddings=1024)


@pytest.fixture(scope="module")
def model(folder):
    return lbrx.language_model(folder, context=512)


def batch(folder, prompts, out, *options) -> int:
    arguments = ["batch", str(folder), str(prompts), str(out), "--context", "512", "--quiet"]
    return main([*arguments, *options])


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_those_of_generate(folder, model, tmp_path):
    (tmp_path / "in").write_text("\n\n".join(map(json.dumps, LINES)))
    options = ["--max-tokens", "6", "--parallel", "2", "--deterministic", "--draft", "ngram"]
    assert batch(folder, tmp_path / "in", tmp_path / "out", *options) == 0
    made = read(tmp_path / "out")
    assert [line["id"] for line in made] == ["first", 3, 5, 7, 9]
    for wanted, line in zip(LINES, made, strict=True):
        rest = {key: value for key, value in wanted.items() if key != "id"}
        prompt = rest.pop("prompt", None) or rest.pop("messages")
        expected = model.generate(prompt, **{"max_tokens": 6, **rest})
        assert (line["text"], line["tokens"]) == (expected.text, len(expected.tokens))
        assert line["finish_reason"] == expected.finish_reason
    assert len(made[4]["logprobs"]) == 1


def test_bad_lines_have_errors_and_stop_no_others(folder, tmp_path, capsys):
    (tmp_path / "in").write_text("\n".join([*BAD, json.dumps(LINES[0])]))
    assert batch(folder, tmp_path / "in", tmp_path / "out") == 1
    made = read(tmp_path / "out")
    assert ["error" in line for line in made] == [True] * len(BAD) + [False]
    assert "temperature" in made[4]["error"]


def test_a_run_that_was_cut_is_continued(folder, tmp_path):
    """Killed at any time, it leaves whole lines but for the last, and a later run adds the rest."""
    prompts, whole, out = (tmp_path / name for name in ("in", "whole", "out"))
    prompts.write_text("\n".join(json.dumps({"prompt": f"{i} plus 1 is"}) for i in range(40)))
    options = ["--max-tokens", "8", "--deterministic", "--parallel", "3"]
    assert batch(folder, prompts, whole, *options) == 0
    command = [sys.executable, "-m", "lbrx", "batch", str(folder), str(prompts), str(out)]
    with subprocess.Popen([*command, "--context", "512", "--quiet", *options]) as process:
        while not (out.exists() and out.stat().st_size) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    cut = out.read_bytes()[:-7]
    out.write_bytes(cut)
    kept = cut.rpartition(b"\n")[0]
    assert batch(folder, prompts, out, *options) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert out.read_bytes().startswith(kept)
    assert batch(folder, prompts, out, *options) == 0
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("change", ["options", "prompts", "rubbish", "more"])
def test_answers_of_other_prompts_are_not_continued(folder, tmp_path, capsys, change):
    prompts, out = tmp_path / "in", tmp_path / "out"
    prompts.write_text(json.dumps(LINES[0]) + "\n" + json.dumps(LINES[2]))
    assert batch(folder, prompts, out) == 0
    before = out.read_bytes()
    options = ["--temperature", "1"] if change == "options" else []
    if change == "prompts":
        prompts.write_text(json.dumps(LINES[2]))
    elif change == "rubbish":
        out.write_text("rubbish\n")
    elif change == "more":
        prompts.write_text(json.dumps(LINES[0]))
    capsys.readouterr()
    assert batch(folder, prompts, out, *options) == 1
    assert "give another file for the output" in capsys.readouterr().err
    assert change == "rubbish" or out.read_bytes() == before


def test_mistakes(folder, tmp_path, capsys):
    (tmp_path / "in").write_text("")
    assert batch(folder, tmp_path / "in", tmp_path / "in") == 1
    assert "the file of prompts" in capsys.readouterr().err
    assert batch(folder, tmp_path / "nothing", tmp_path / "out") == 1
    assert batch(folder, tmp_path / "in", tmp_path / "out") == 0
    assert (tmp_path / "out").read_bytes() == b""
