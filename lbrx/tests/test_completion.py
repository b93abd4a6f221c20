"""Completion of commands in shells: the scripts are run by the shells that they are for."""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

from lbrx import cli
from lbrx.terminal.completion import FILE_METAVARS, SHELLS

FILES = "files"
PLACES = [
    ("", set(cli.commands())),
    ("ge", {"generate"}),
    ("--v", {"--version"}),
    ("generate --pref", {"--prefill"}),
    ("generate --prefill ", {"gpu", "neural-engine", "auto"}),
    ("generate --prefill n", {"neural-engine"}),
    ("generate --prefill gpu --prompt-", {"--prompt-cache"}),
    ("generate --prompt-cache ", FILES),
    ("generate --temperature ", set()),
    ("generate model --stop ", set()),
    ("generate ", FILES),
    ("generate model ", set()),
    ("merge a b c ", FILES),
    ("video ", {"info", "frames", "convert", "apply", "compare"}),
    ("video co", {"convert", "compare"}),
    ("video convert --encoder s", {"software"}),
    ("video convert --dec", {"--decoder"}),
    ("convert --dec", set()),
    ("convert --device m", {"metal"}),
    ("convert -- --de", FILES),
    ("convert --no-d", {"--no-durable"}),
    ("shaders ", {"build"}),
    ("profile script.py ", FILES),
    ("nonsense --", set()),
    ("completion ", set(SHELLS)),
]


def script(shell: str, capsys) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def run(shell: str, text: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = [shell, *(["--norc", "--noprofile"] if shell == "bash" else [])]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def in_bash(lines: list[str], capsys) -> list[set[str]]:
    """What bash proposes for command lines without `lbrx`, whose words are split at = too."""
    text = script("bash", capsys)
    for line in lines:
        words = [word for word in re.split(r" +|(=)", f"lbrx {line}") if word is not None]
        array = " ".join(f"'{word}'" for word in words)
        text += f"COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _lbrx\n"
        text += 'echo "${COMPREPLY[*]}"\n'
    return [set(found.split()) for found in run("bash", text).splitlines()]


def test_bash(capsys):
    more = [("convert --to=", {"gguf", "npz", "safetensors", "mlx"}), ("convert --to=g", {"gguf"})]
    more += [("convert --to=gguf --ver", {"--verify"}), ("convert --imatrix=a --to m", {"mlx"})]
    places = [*PLACES, *more]
    found = in_bash([line for line, _ in places], capsys)
    wanted = [set() if words == FILES else words for _, words in places]
    assert found == wanted


def test_every_option_of_every_command(capsys):
    """Its help page begins the lines about them with their names."""
    pages = {"": cli.top_parser().format_help()}
    for name in cli.commands():
        for parser in every(cli.parser_of(name)):
            pages[parser.prog.removeprefix("lbrx ")] = parser.format_help()
    found = in_bash([f"{words} -".lstrip() for words in pages], capsys)
    for page, options in zip(pages.values(), found, strict=True):
        told = " ".join(re.findall(r"^  (-.*?)(?:  |$)", page, re.M))
        assert options == set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", told)), page


def every(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A command's parser and those of its parts."""
    parts = parser._subparsers._group_actions[0].choices.values() if parser._subparsers else ()
    return [parser, *parts]


def test_values_that_are_files():
    """A new metavar has to be put into one of the two sets."""
    others = {"A,B", "HxW", "K", "METHOD", "N", "NAME", "NAME=VALUE", "NAMES", "P", "PATTERN"}
    others |= {
        "KEY",
        "ORIGIN",
        "PATH[:SCALE]",
        "S",
        "SIZE",
        "SM",
        "T",
        "TEXT",
        "TEXTS",
        "TYPE",
        "VALUE",
        "X",
        "[NAME=]MODEL",
        None,
    }
    actions = [a for n in cli.commands() for p in every(cli.parser_of(n)) for a in p._actions]
    assert {a.metavar for a in actions if a.option_strings} <= FILE_METAVARS | others


def test_bash_on_a_terminal(capsys, tmp_path):
    """A file after a command, and nothing where a number is wanted."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (tmp_path / "a model.gguf").touch()
    (tmp_path / "lbrx.bash").write_text(script("bash", capsys))
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.environ.update(TERM="dumb", PS1="$ ")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    os.write(terminal, b"source lbrx.bash; bind 'set bell-style none'; echo rea''dy\n")
    shown = until(terminal, "ready")
    os.write(terminal, b"lbrx inspect a\t\x01echo \x05\n")
    shown = until(terminal, "lbrx inspect a model.gguf")
    assert "a\\ model.gguf" in shown
    os.write(terminal, b"lbrx generate a --seed a\t\x01echo \x05\n")
    until(terminal, "lbrx generate a --seed a\r\n")
    os.write(terminal, b"exit\n")
    assert os.waitpid(process, 0)[1] == 0
    os.close(terminal)


def until(terminal: int, text: str) -> str:
    shown, end = "", time.monotonic() + 60
    while text not in shown:
        assert select.select([terminal], [], [], max(end - time.monotonic(), 0))[0], shown
        shown += os.read(terminal, 1 << 16).decode()
    return shown


ZSH = """
compdef() { }
_files() { print -r -- files }
_describe() { print -r -- ${found[@]%%:*} }
compset() { }
propose() { words=("$@") CURRENT=$#; [[ -n $(_lbrx) ]] && _lbrx || print }
"""


def test_zsh(capsys):
    text = ZSH + script("zsh", capsys)
    for line, _ in PLACES:
        words = " ".join(f"'{word}'" for word in f"lbrx {line}".split(" "))
        text += f"propose {words}\n"
    for (line, wanted), told in zip(PLACES, run("zsh", text).splitlines(), strict=True):
        if wanted == FILES:
            assert told == "files", line
        else:  # zsh takes those that begin with the word
            word = line.split(" ")[-1]
            assert {each for each in told.split() if each.startswith(word)} == wanted, line


def test_fish(capsys, tmp_path):
    (tmp_path / "file").touch()
    text = script("fish", capsys) + f"cd {tmp_path}\n"
    places = [(line, words) for line, words in PLACES if "-- --" not in line]
    for line, _ in places:
        text += f"complete -C 'lbrx {line}' | cut -f 1 | tr '\\n' ' '; printf '\\n'\n"
    for (line, wanted), told in zip(places, run("fish", text).splitlines(), strict=True):
        found = set(told.split())
        if wanted == FILES:
            assert found == {"file"}, line
        elif line != "generate model ":  # fish proposes files after any positional argument
            assert found == wanted, line


def test_texts_are_quoted_for_each_shell(capsys):
    for shell in SHELLS:
        text = script(shell, capsys)
        assert "adapter" in text or shell == "bash"
        if shutil.which(shell):
            done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("given", [[], ["powershell"]])
def test_other_shells(given, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(["completion", *given])
    assert "{bash,zsh,fish}" in capsys.readouterr().err
