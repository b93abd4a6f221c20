"""The command line's table of subcommands and their help pages."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pkgutil import iter_modules

import pytest

import lbrx
import lbrx_command
from lbrx import cli


def test_every_module_is_a_command():
    named = (module.name.replace("_", "-") for module in iter_modules(cli.__path__))
    assert sorted(cli.COMMANDS) == sorted(named)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help(name, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([name, "--help"])
    page = capsys.readouterr().out
    assert page.startswith(f"usage: lbrx {name} ")
    text = cli.COMMANDS[name]
    assert f"{text[0].upper()}{text[1:]}." in " ".join(page.split())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_argument_is_explained(name):
    parser = argparse.ArgumentParser()
    cli._find(name).add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
    for part in parser._subparsers._group_actions[0].choices.values() if parser._subparsers else ():
        assert part.description
        assert [action.dest for action in part._actions if not action.help] == []


def test_unknown_commands(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(["nonsense"])
    assert "invalid choice: 'nonsense' (choose from" in capsys.readouterr().err


INTERRUPTED_IMPORT = """
import signal, sys
import lbrx_command

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "lbrx.errors":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.exit(lbrx_command.main())
"""


def test_an_interrupt_during_the_imports():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "lbrx: interrupted\n")


INTERRUPTED_MODULE = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize(
    ("module", "outcome"),
    [("lbrx.version", (-signal.SIGINT, "")), ("lbrx.cli.devices", (130, ""))],
)
def test_an_interrupt_of_the_module_has_no_traceback(module, outcome, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_MODULE.format(module=module))
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "lbrx", "devices"],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == outcome


def test_the_command_without_an_interrupt(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lbrx", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        lbrx_command.main()
    assert capsys.readouterr().out.startswith("lbrx ")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("given", [["--help"], ["--version"], ["convert", "--help"], ["devices"]])
def test_output_that_cannot_be_written(given):
    # argparse ignores errors of writes, which come at once without a buffer.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "lbrx", *given]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=buffered, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "lbrx: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("no\nsuch.gguf", r"lbrx: no\nsuch.gguf does not exist"),
        ("a/no\nsuch\r.gguf", r"lbrx: a/no\nsuch\r.gguf does not exist"),
        ("\x1b[31mred", r"lbrx: \x1b[31mred does not exist"),
        ("ü 日本", "lbrx: ü 日本 does not exist"),
    ],
)
def test_an_error_is_one_line_whatever_the_path_has(path, shown, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["inspect", path]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(shown)


@pytest.mark.parametrize(
    "given",
    [
        ["convert", "a.npz"],
        ["convert", "--force", "--to", "safetensors", "a.npz"],
        ["merge", "--method", "linear", "a.npz", "a.npz"],
        ["task-vector", "a.npz", "a.npz", "--out"],
        ["extract-lora", "a.npz", "a.npz", "--out"],
        ["apply-lora", "a.npz", "a.npz"],
    ],
    ids=lambda given: given[0],
)
@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("", "the path to write is empty: give a file or a folder"),
        ("-", "models are not written to standard output: give a file or a folder"),
        ("smollm2", "smollm2 is a packaged model: give another path to write"),
        (
            "s3://bucket/a",
            "s3://bucket/a is a URL, where nothing can be written: give a file or a folder",
        ),
    ],
    ids=["empty", "dash", "packaged model", "url"],
)
def test_a_target_that_was_hardly_meant_as_one(
    given, target, problem, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lbrx.save("a.npz", {"x": lbrx.ones((2, 2))})
    assert cli.main([*given, target]) == 1
    assert capsys.readouterr().err == f"lbrx: {problem}\n"
    assert os.listdir() == ["a.npz"]


def test_a_path_with_a_line_break_that_exists(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "a\nfolder"
    folder.mkdir()
    (folder / "model.gguf").write_bytes(b"not a model")
    monkeypatch.chdir(tmp_path)
    for path in ("a\nfolder/model.gguf", "./a\nfolder//model.gguf", str(folder)):
        assert cli.main(["inspect", path]) == 1
        (line,) = capsys.readouterr().err.split("\n")[:-1]
        assert r"a\nfolder/model.gguf: starts with" in line
