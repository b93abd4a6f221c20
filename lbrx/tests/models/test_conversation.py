"""Conversations of lbrx generate --chat: commands, pasted messages and interrupts."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import resource
import select
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

import lbrx
from lbrx.cli import main
from lbrx.models import LanguageModel
from lbrx.terminal.conversation import COMMANDS
from lbrx.terminal.message_input import MessageInput

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "models.md").read_text("utf-8")


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model("llama", max_position_embeddings=8192)


class Typed:
    """Messages that are given on a terminal; an exception instead of one is raised."""

    is_terminal = True

    def __init__(self, messages):
        self._messages = iter([*messages, EOFError])

    def read(self) -> str:
        given = next(self._messages)
        if isinstance(given, str):
            return given
        raise given


@pytest.fixture
def converse(folder, monkeypatch, capsys):
    """Runs a conversation; returns the exit status, what the model was asked with which seed, and
    the lines on standard error."""
    ordinary = LanguageModel.stream

    def run(*messages, options=()):
        asked = []

        def noted(self, prompt, **given):
            asked.append(([each["content"] for each in prompt], given.get("seed")))
            return ordinary(self, prompt, **given)

        monkeypatch.setattr(LanguageModel, "stream", noted)
        monkeypatch.setattr("lbrx.cli.generate.MessageInput", lambda: Typed(messages))
        given = ["generate", str(folder), "--chat", "-n", "3", "--ignore-end", "--quiet", *options]
        status = main(given)
        captured = capsys.readouterr()
        return status, asked, captured.out.splitlines(), captured.err.splitlines()

    return run


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("/rest", "/rest is not a command: did you mean /reset? (a space before it makes it a"),
        ("/sav x.json", "/sav is not a command: did you mean /save? (a space"),
        ("/h", "/h is not a command: did you mean /help?"),
        ("/usr", "/usr is not a command: give one that /help lists (a space before it"),
        ("/reset now", "/reset takes no argument: leave now out"),
        ("/save", "/save needs the name of a file: give /save FILE"),
        ("/save x.json", "there is nothing to save: write a message first"),
        ("/regenerate", "there is no message to answer again: write one first"),
    ],
)
def test_mistakes_in_commands_are_one_line(given, told, converse):
    status, asked, _, err = converse(given)
    assert (status, asked) == (0, [])
    (line,) = err[:-1]  # the last one ends the prompt
    assert line.startswith(f"lbrx: {told}")


def test_help_names_the_commands(converse):
    err = converse("/help ")[3]
    assert [line.split("  ")[0] for line in err[:-1]] == list(COMMANDS)
    assert re.findall(r"^\| `(/.+?)`.* \|", PAGE, re.M) == list(COMMANDS)


@pytest.mark.parametrize("text", ["/usr/bin", " /help", "a /help", "/help\nme", "/", "/ help"])
def test_other_texts_are_messages(text, converse):
    assert converse(text)[1] == [([text.strip()], None)]


@pytest.mark.parametrize("leaving", ["/exit", "/quit"])
def test_leaving(leaving, converse):
    assert converse("Hello", leaving, "more")[1] == [(["Hello"], None)]


def test_reset_keeps_the_system_message(converse):
    _, asked, out, _ = converse("Hello", "more", "/reset", "new", options=("--system", "Be brief."))
    assert asked == [
        (["Be brief.", "Hello"], None),
        (["Be brief.", "Hello", out[0], "more"], None),
        (["Be brief.", "new"], None),
    ]


def test_regenerate_replaces_the_last_answer(converse, folder):
    options = ("--temperature", "1", "--seed", "3")
    _, asked, out, err = converse("Hello", "/regenerate", "/regenerate", "more", options=options)
    model, given = lbrx.language_model(folder), {"max_tokens": 3, "ignore_end": True}
    texts = [
        model.chat([{"role": "user", "content": "Hello"}], temperature=1, seed=seed, **given).text
        for seed in (3, 4, 5)
    ]
    assert len(set(texts)) == 3
    assert "\n".join(out).startswith("\n".join(texts))
    assert asked[:3] == [(["Hello"], 3), (["Hello"], 4), (["Hello"], 5)]
    assert asked[3] == (["Hello", texts[2], "more"], 3)
    assert err[:-1] == []
    assert "--temperature is 0" in converse("Hello", "/regenerate")[3][0]


def test_regenerate_after_an_error_asks_the_same_message(converse):
    long = "word " * 9000
    status, asked, _, err = converse("Hello", long, "/regenerate")
    assert (status, len(asked)) == (1, 1)
    assert re.match(r"lbrx: the message has \d+,\d+ tokens, .* is 8,192: shorten it", err[0])
    assert err[2] == err[0]


def test_save_writes_what_chat_takes(converse, folder, tmp_path):
    file = tmp_path / "naïve chat.json"
    options = ("--system", "Be brief.")
    _, _, out, err = converse("Hello, ü", f"/save {file}", f"/save {file}", options=options)
    roles = {"system": "Be brief.", "user": "Hello, ü", "assistant": out[0]}
    messages = json.loads(file.read_text("utf-8"))
    assert messages == [{"role": role, "content": text} for role, text in roles.items()]
    assert err[:2] == [f"lbrx: 3 messages are in {file}", f"lbrx: {file} exists: give another name"]
    assert lbrx.language_model(folder).chat(messages, max_tokens=1)


def test_save_that_fails_leaves_no_file(converse, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    missing, link = tmp_path / "none" / "a.json", tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        given = (missing, "~/a.json", link, tmp_path, "a\0b")
        _, _, _, err = converse("Hello", *(f"/save {name}" for name in given))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    reasons = (
        f"{missing} cannot be written, No such file or directory: give another name",
        f"{tmp_path}/a.json cannot be written, File too large: give another name",
        f"{link} exists: give another name",
        f"{tmp_path} exists: give another name",
        "a\\x00b cannot be written, embedded null byte: give another name",
    )
    assert err[:-1] == [f"lbrx: {reason}" for reason in reasons]
    assert sorted(os.listdir(tmp_path)) == ["link"]


def test_an_interrupt_without_an_answer_drops_the_line(converse):
    status, asked, _, err = converse(KeyboardInterrupt, "Hello")
    assert (status, asked) == (0, [(["Hello"], None)])
    assert "Ctrl-D" in err[1]


def test_texts_from_elsewhere_have_no_commands(folder, capsys, monkeypatch, tmp_path):
    """They may be anyone's, and write no files."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"Hello\n/save {tmp_path}/a\n/exit\n"))
    assert main(["generate", str(folder), "--chat", "-n", "2"]) == 0
    assert capsys.readouterr().err.count("prefill") == 3
    assert os.listdir(tmp_path) == []


def test_lines_that_end_as_on_windows(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\r\nmore"))
    given = MessageInput()
    assert [given.read(), given.read()] == ["Hello", "more"]


class Session:
    """A conversation in another process, on a terminal."""

    def __init__(self, folder: Path, *options: str, terminal: str = "xterm") -> None:
        command = [sys.executable, "-m", "lbrx", "generate", str(folder), "--chat", *options]
        self._shown = ""
        env = {**os.environ, "LBRX_DEVICE": "cpu", "TERM": terminal}
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.execve(sys.executable, command, env)
        size = struct.pack("HHHH", 40, 200, 0, 0)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def until(self, text: str) -> str:
        """What is shown next up to a text. Fails if that does not come in a minute."""
        end = time.monotonic() + 60
        while text not in self._shown:
            left = max(end - time.monotonic(), 0)
            assert select.select([self.terminal], [], [], left)[0], self._shown
            self._shown += os.read(self.terminal, 1 << 16).decode(errors="replace")
        shown, _, self._shown = self._shown.partition(text)
        return shown

    def interrupt(self, text: str) -> None:
        """Ctrl-C, as often as it takes until a text is shown.

        CPython looks for signals when its wait for a key is interrupted, so one that arrives
        between readline's prompt and that wait has no effect before the next key.
        """
        end = time.monotonic() + 60
        while text not in self._shown:
            assert time.monotonic() < end, self._shown
            self.send("\x03")
            while select.select([self.terminal], [], [], 1)[0] and text not in self._shown:
                self._shown += os.read(self.terminal, 1 << 16).decode(errors="replace")
        self.until(text)

    def until_answered(self) -> None:
        self.until("prefill")
        self.until("> ")

    def leave(self) -> int:
        """Ctrl-D; returns the exit status."""
        self.send("\x04")
        try:
            while os.read(self.terminal, 1 << 16):
                pass
        except OSError:  # Linux, once the process has closed the terminal
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


PASTED = "\x1b[200~{}\x1b[201~"


def test_pasted_lines_are_one_message(folder, tmp_path):
    """Marked by the terminal, or all at once; the last one without a line break can be edited."""
    session = Session(folder, "-n", "2", "--ignore-end")
    session.until("> ")
    session.send(PASTED.format("one\n/exit\n\n\tthree") + "\r")
    session.until_answered()
    session.send("/exit\rfive\rsi")
    session.until("si")
    session.send("x\r")
    session.until_answered()
    session.send(f"/save {tmp_path}/talk\r")
    session.until("4 messages")
    session.until("> ")
    assert session.leave() == 0
    said = [each["content"] for each in json.loads((tmp_path / "talk").read_text())]
    assert said[::2] == ["one\n/exit\n\n\tthree", "/exit\nfive\nsix"]


def test_an_interrupt_on_a_terminal_ends_the_answer_only(folder, tmp_path):
    session = Session(folder, "-n", "8000", "--ignore-end", terminal="dumb")
    session.until("> ")
    session.send("Hello\r")
    session.until("Hello")
    asked = [{"role": "user", "content": "Hello"}]
    text = lbrx.language_model(folder).chat(asked, max_tokens=9, ignore_end=True).text
    session.until(text.split()[0])
    session.send("\x03")
    session.until_answered()
    session.send("typed")
    session.until("typed")
    session.interrupt("lists the commands")
    session.until("> ")
    session.send(f"/save {tmp_path}/talk\r")
    session.until("2 messages")
    session.until("> ")
    assert session.leave() == 0
    said = json.loads((tmp_path / "talk").read_text())
    assert [each["role"] for each in said] == ["user", "assistant"]
