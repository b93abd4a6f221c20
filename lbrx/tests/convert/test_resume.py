"""Interrupted conversions can be resumed and give the same bytes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from conversion_checks import contents, to

import lbrx
from lbrx.cli import main
from lbrx.convert import Settings, make_plan
from lbrx.convert.partial import PartialOutput

TARGETS = [
    ("m.gguf", "q4_k_m"),
    ("mlx", "mlx:4:64"),
    pytest.param("m.safetensors", "f16", marks=pytest.mark.full),
    pytest.param("m.npz", "f32", marks=pytest.mark.full),
]
# The arguments are source, target, quantization, and after how many pieces the process dies.
KILLED = """
import os, signal, sys
import lbrx.convert.pieces as work
from lbrx.convert import Settings, convert
from lbrx.convert.partial import PartialOutput

finished = PartialOutput.finished
def dying(self, piece, total):
    finished(self, piece, total)
    dying.left -= 1
    if not dying.left:
        os.kill(os.getpid(), signal.SIGKILL)
dying.left = int(sys.argv[4])
PartialOutput.finished = dying
work.PIECE = 4096
convert(sys.argv[1], sys.argv[2], Settings(quantize=sys.argv[3]), device="cpu")
"""


def leftover(target):
    return target.with_name(f".{target.name}.partial")


@pytest.mark.parametrize(("name", "quantize"), TARGETS)
def test_killed(folder, tmp_path, small_pieces, name, quantize):
    source, _ = folder()
    whole, target = tmp_path / f"whole-{name}", tmp_path / name
    to(source, whole, quantize=quantize)
    for pieces in (5, 9):
        command = [sys.executable, "-c", KILLED, source, target, quantize, str(pieces)]
        if leftover(target).exists():
            command[2] = KILLED.replace('device="cpu"', 'device="cpu", resume=True')
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert leftover(target).exists()
        assert not target.exists()
    result = to(source, target, quantize=quantize, resume=True)
    assert 0 < result.reused < result.plan.nbytes
    assert list(contents(target).values()) == list(contents(whole).values())
    assert not leftover(target).exists()


@pytest.fixture
def interrupted(folder, tmp_path, small_pieces, monkeypatch):
    """A source, and a target that is half written."""
    source, _ = folder()
    finished, left = PartialOutput.finished, [8]

    def stop(self, piece, total):
        finished(self, piece, total)
        left[0] -= 1
        if left[0] <= 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PartialOutput, "finished", stop)
        with pytest.raises(KeyboardInterrupt):
            to(source, tmp_path / "m.gguf", quantize="q8_0")
    to(source, tmp_path / "whole.gguf", quantize="q8_0")
    return source, tmp_path / "m.gguf"


def check_resumed(source, target, at_most):
    result = to(source, target, quantize="q8_0", resume=True)
    assert result.reused <= at_most
    assert target.read_bytes() == target.with_name("whole.gguf").read_bytes()
    return result.reused


def test_a_torn_line_and_lost_pages(interrupted):
    """Pieces in the journal count only if their bytes are in the files."""
    source, target = interrupted
    journal = leftover(target) / "journal.jsonl"
    lines = journal.read_text().splitlines()
    done = len(lines) - 1
    journal.write_text("\n".join(lines)[:-4])
    with (leftover(target) / "files/m.gguf").open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(0)
        file.truncate(size)
    assert done >= 8
    assert check_resumed(source, target, 0) == 0


def test_without_resume_it_starts_anew(interrupted):
    source, target = interrupted
    assert to(source, target, quantize="q8_0").reused == 0
    check_resumed(source, target, 0)


def test_another_conversion_is_refused(interrupted):
    source, target = interrupted
    with pytest.raises(lbrx.FormatError, match="belongs to another conversion, or the source has"):
        to(source, target, quantize="q4_0", resume=True)
    os.utime(source / "model.safetensors", ns=(1, 1))
    with pytest.raises(lbrx.FormatError, match="start again without --resume"):
        to(source, target, quantize="q8_0", resume=True)
    assert leftover(target).exists()


def test_two_at_once_are_refused(folder, tmp_path):
    source, _ = folder()
    plan = make_plan(source, tmp_path / "m.gguf", Settings(quantize="q8_0"))
    first = PartialOutput(plan.output, False, "one")
    try:
        with pytest.raises(lbrx.FormatError, match="is being written by another process"):
            to(source, tmp_path / "m.gguf", quantize="q8_0")
    finally:
        first.remove()


def test_a_full_disk(folder, tmp_path, monkeypatch, capsys):
    """The finished part is kept, and the message names --resume."""
    source, _ = folder()
    write, left = os.pwrite, [3]

    def full(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*arguments)

    arguments = [
        "convert",
        str(source),
        str(tmp_path / "m"),
        "--quantize",
        "f16",
        "--device",
        "cpu",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert main(arguments) == 1
    assert "No space left on device: the finished part of" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()
    assert main([*arguments, "--resume"]) == 0
    assert "of them from an earlier run" in capsys.readouterr().out


def test_control_c(folder, tmp_path, monkeypatch, capsys):
    source, _ = folder()

    def interrupt(*arguments):
        raise KeyboardInterrupt

    arguments = ["convert", str(source), str(tmp_path / "m.gguf"), "--quantize", "q8_0"]
    with monkeypatch.context() as patch:
        patch.setattr(PartialOutput, "complete", interrupt)
        assert main([*arguments, "--device", "cpu"]) == 130
    error = capsys.readouterr().err
    assert (
        error
        == f"lbrx: interrupted: the finished part of {tmp_path}/m.gguf is kept: add --resume to continue\n"
    )
    assert main([*arguments, "--device", "cpu", "--resume", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
