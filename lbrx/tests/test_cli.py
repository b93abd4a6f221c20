"""The command line's table of subcommands and their help pages."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pkgutil import iter_modules

import pytest

import lbrx
import lbrx_command
from lbrx import cli
from lbrx.terminal.problems import as_json


def test_every_module_is_a_command():
    named = (module.name.replace("_", "-") for module in iter_modules(cli.__path__))
    assert sorted(cli.COMMANDS) == sorted(named)


@pytest.mark.parametrize("name", cli.commands())
def test_help(name, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([name, "--help"])
    page = capsys.readouterr().out
    assert page.startswith(f"usage: lbrx {name} ")
    text = cli.summary(name)
    assert f"{text[0].upper()}{text[1:]}." in " ".join(page.split())


@pytest.mark.parametrize("name", cli.commands())
def test_every_argument_is_explained(name):
    parser = argparse.ArgumentParser()
    cli._find(name).add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
    for part in parser._subparsers._group_actions[0].choices.values() if parser._subparsers else ():
        assert part.description
        assert [action.dest for action in part._actions if not action.help] == []


def leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser of a command, or those of its parts."""
    if parser._subparsers is None:
        return [parser]
    parts = parser._subparsers._group_actions[0].choices.values()
    return [leaf for part in parts for leaf in leaves(part)]


LEAVES = {leaf.prog: leaf for name in cli.commands() for leaf in leaves(cli.parser_of(name))}
FAILING = {
    "lbrx devices": (),
    "lbrx inspect": ("nowhere.gguf",),
    "lbrx generate": ("nowhere.gguf", "-p", "Hello"),
    "lbrx video info": ("nowhere.mov",),
    "lbrx video compare": ("nowhere.mov", "nowhere.mov"),
}
"""Arguments of the commands with --json that end with an error."""


def test_every_command_with_json_is_tried():
    assert set(FAILING) == {p for p, leaf in LEAVES.items() if "--json" in leaf.format_help()}


@pytest.mark.parametrize("prog", FAILING)
@pytest.mark.parametrize("option", ["--json", "--js"])
def test_errors_in_json(prog, option, capsys, monkeypatch):
    """The error of the same command without --json, in two parts, and the same exit status."""
    monkeypatch.setattr("lbrx.cli.devices.devices", no_device)
    given = [*prog.split()[1:], *FAILING[prog]]
    assert cli.main(given) == 1
    line = capsys.readouterr().err
    assert cli.main([*given, option]) == 1
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert captured.err == ""
    told = filter(None, (error["message"], error["remedy"]))
    assert f"lbrx: {': '.join(told)}\n" == line


def no_device():
    raise lbrx.DeviceError("no device: use another machine")


@pytest.mark.parametrize("prog", FAILING)
def test_wrong_usage_in_json(prog, capsys):
    for mistake in (["--json", "--nonsense"], ["--nonsense", "--json"], ["--json", "a", "b", "c"]):
        assert cli.main([*prog.split()[1:], *mistake]) == 2
        captured = capsys.readouterr()
        error = json.loads(captured.out)["error"]
        assert captured.err == ""
        assert re.match("unrecognized|the following arguments are required", error["message"])
        assert error["remedy"] == f"give the arguments that `{prog} --help` lists"


@pytest.mark.parametrize(
    ("problem", "message", "remedy"),
    [
        ("a is not there: give b", "a is not there", "give b"),
        ("a: b: is not JSON", "a: b: is not JSON", None),
        ("m is {'a': 1}: give {'role': 'user'}", "m is {'a': 1}", "give {'role': 'user'}"),
        ("a: give b: use c", "a: give b", "use c"),
        ("the address: givenness", "the address: givenness", None),
        ("a\nb: add c\nd", "a\nb", "add c\nd"),
        ("a is 1 x 2 and b 2 x 1: resize a", "a is 1 x 2 and b 2 x 1", "resize a"),
    ],
)
def test_the_parts_of_an_error(problem, message, remedy):
    assert json.loads(as_json(problem)) == {"error": {"message": message, "remedy": remedy}}


@pytest.mark.parametrize("prog", LEAVES)
def test_wrong_usage_shows_the_usage_of_its_command(prog, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main([*prog.split()[1:], "--nonsense"])
    told = capsys.readouterr().err
    assert told.startswith(LEAVES[prog].format_usage())
    assert f"\n{prog}: error: " in told


def test_json_that_cannot_be_written(capfd, monkeypatch):
    """The error is on standard error then."""
    monkeypatch.setattr(sys, "stdout", open(os.devnull))  # noqa: SIM115
    assert cli._failed("a: give b", [], in_json=True) == 1
    assert capfd.readouterr().err == "lbrx: a: give b\n"


def test_unknown_commands(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(["nonsense"])
    assert "invalid choice: 'nonsense' (choose from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["gen"], "argument COMMAND: invalid choice: 'gen', did you mean 'generate'? (choose from"),
        (["perplexty"], "invalid choice: 'perplexty', did you mean 'perplexity'?"),
        (["video", "conver"], "invalid choice: 'conver', did you mean 'convert'? (choose from"),
        (["convert", "--to", "gguff"], "invalid choice: 'gguff', did you mean 'gguf'? (choose"),
        (["generate", "m", "--promt", "x"], "arguments: --promt x (did you mean --prompt?)"),
        (["devices", "--jsn=1"], "unrecognized arguments: --jsn=1 (did you mean --json?)"),
        (["devices", "more", "--x", "-j"], "unrecognized arguments: more --x -j\n"),
        (["--json", "inspect", "m"], "lbrx: error: unrecognized arguments: --json: options follow"),
    ],
)
def test_mistyped_words_get_a_suggestion(given, told, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(given)
    assert told in capsys.readouterr().err


def test_no_command_shows_the_commands(capsys):
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == cli.top_parser().format_help()


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
        ("\udcff\u202e", r"lbrx: \udcff\u202e does not exist"),
        ("a" * 5000, f"lbrx: {'a' * 200}...{'a' * 97} does not exist"),
        ("a b " * 1200 + "\n", f"lbrx: {'a b ' * 50}..."),
        ("b//\n\x1b" * 900, r"lbrx: b//\n\x1bb//"),
    ],
)
def test_an_error_is_one_line_whatever_the_path_has(path, shown, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["inspect", path]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(shown)
    assert len(line) < 500


@pytest.mark.parametrize("given", [["{}"], ["devices", "{}"], ["bench", "--{}"]])
@pytest.mark.parametrize("value", ["a" * 5000, "\x1b[31m\n\udcff"])
def test_usage_errors_are_short(given, value, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main([part.format(value) for part in given])
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("lbrx")
    assert ": error: " in line
    assert line.isprintable()
    assert len(line) < 1000


def test_errors_of_the_library_are_printable():
    for value in ("a" * 5000, "\x1b[31m\udcff"):
        with pytest.raises(lbrx.LbrxError) as found:
            lbrx.open_model(value)
        assert str(found.value).isprintable()
        assert len(str(found.value)) < 500


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
