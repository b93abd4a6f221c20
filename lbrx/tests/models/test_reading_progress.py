"""Progress of reading long texts: what the engine reports, and the bar of the commands."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest

import lbrx
from lbrx.cli import main
from lbrx.models import engine
from lbrx.terminal import progress

TOKENS = list(range(10, 60))
ERASED = "\x1b[2K"


class Terminal(io.StringIO):
    """Standard output and error of one terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model("llama")


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, on which bars appear before anything of a text is read."""
    shown, ordinary = Terminal(), engine.Engine.report

    def delayed(self, done, total):
        ordinary(self, done, total)
        end = time.monotonic() + 20
        while self.progress and "tokens" not in shown.getvalue() and time.monotonic() < end:
            time.sleep(0.01)

    monkeypatch.setattr(engine.Engine, "report", delayed)
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def run(terminal: Terminal, *arguments: object) -> int:
    with redirect_stdout(terminal), redirect_stderr(terminal):
        return main([str(argument) for argument in arguments])


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("replayed", [False, True])
def test_chunks_of_a_prompt_are_reported(folder, device, replayed, monkeypatch):
    """The last chunk is not: its end is the first token."""
    model = lbrx.language_model(folder, device=device)
    wanted = model.generate(TOKENS, max_tokens=3).tokens
    monkeypatch.setattr(engine, "CHUNK", 16)
    monkeypatch.setattr(engine.Engine, "_replays_chunks", lambda self: replayed)
    model.generate([5], max_tokens=1)
    seen = []
    model.engine.progress = lambda done, total: seen.append((done, total))
    assert model.generate(TOKENS, max_tokens=3).tokens == wanted
    assert seen == [(0, 50), (16, 50), (32, 50), (48, 50)]
    seen.clear()
    model.generate([*TOKENS[:-1], 7], max_tokens=1)
    assert seen == [(0, 1)]


def test_a_scored_text_is_reported(folder, monkeypatch):
    """Beyond the context there are pieces, which share a token."""
    monkeypatch.setattr("lbrx.models.scoring.TOGETHER", 12)
    model = lbrx.language_model(folder, context=20)
    seen = []
    model.engine.progress = lambda *counts: seen.append(counts)
    model.log_probabilities(TOKENS)
    read = [done for done, _ in seen]
    assert read == [0, 12, 20, 19, 31, 39, 38, 50]
    assert {total for _, total in seen} == {50}


def test_a_bar_is_erased_before_the_text(folder, terminal):
    options = ("-n", "4", "--ignore-end")
    assert run(terminal, "generate", folder, "-p", "Hello, world", *options) == 0
    before, _, after = terminal.getvalue().rpartition(ERASED)
    assert "reading the prompt" in before
    text = lbrx.language_model(folder).generate("Hello, world", max_tokens=4, ignore_end=True).text
    assert after.startswith(f"{text}\nprefill ")


def test_a_bar_of_perplexity(folder, terminal, tmp_path):
    (tmp_path / "text").write_text("Hello, world! " * 8)
    assert run(terminal, "perplexity", folder, tmp_path / "text") == 0
    before, _, after = terminal.getvalue().rpartition(ERASED)
    assert "reading the text" in before
    assert after.startswith("perplexity ")


def test_a_quiet_command_prints_its_result_only(folder, terminal, tmp_path):
    assert run(terminal, "generate", folder, "-p", "Hello", "-n", "4", "--quiet") == 0
    text = lbrx.language_model(folder).generate("Hello", max_tokens=4).text
    assert terminal.getvalue() == f"{text}\n"
    (tmp_path / "text").write_text("Hello, world! " * 8)
    assert run(terminal, "perplexity", folder, tmp_path / "text", "--quiet") == 0
    assert terminal.getvalue().startswith(f"{text}\nperplexity ")


def test_a_quick_text_has_no_bar(folder, monkeypatch):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(progress, "DELAY", 1000)
    with progress.token_bar("reading") as report:
        report(1, 2)
    assert shown.getvalue() == ""
