"""Interrupted conversions can be resumed and give the same bytes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from conversion_checks import contents, to
from interruptions import DYING

import lbrx
from lbrx.cli import main
from lbrx.convert import Settings, make_plan
from lbrx.convert.partial import PartialOutput, checksum

TARGETS = [
    ("m.gguf", "q4_k_m"),
    ("mlx", "mlx:4:64"),
    pytest.param("m.safetensors", "f16", marks=pytest.mark.full),
    pytest.param("m.npz", "f32", marks=pytest.mark.full),
]
# The arguments are source, target, quantization, and after how many pieces the process dies.
KILLED = f"""{DYING}
from lbrx.convert import Settings, convert
dying.left = int(sys.argv[4])
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
    lines = journal.read_text().split("\n\n")
    done = len(lines) - 1
    journal.write_text("\n".join(lines)[:-5])
    with (leftover(target) / "files/m.gguf").open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(0)
        file.truncate(size)
    assert done >= 8
    assert check_resumed(source, target, 0) == 0


def test_without_resume_it_starts_anew(interrupted):
    source, target = interrupted
    assert to(source, target, quantize="q8_0").reused == 0
    target.unlink()
    check_resumed(source, target, 0)


def test_another_conversion_is_refused(interrupted):
    source, target = interrupted
    with pytest.raises(lbrx.FormatError, match="belongs to another conversion, or the source has"):
        to(source, target, quantize="q4_0", resume=True)
    os.utime(source / "model.safetensors", ns=(1, 1))
    with pytest.raises(lbrx.FormatError, match="start again without --resume"):
        to(source, target, quantize="q8_0", resume=True)
    assert leftover(target).exists()


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config.json", "num_attention_heads", 8),  # the same shapes, other rows of q and k
        ("config.json", "rms_norm_eps", 0.25),  # only metadata
        ("tokenizer_config.json", "chat_template", "{{ other }}"),
    ],
)
def test_other_settings_of_the_source_are_refused(interrupted, file, key, value):
    source, target = interrupted
    path = source / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(lbrx.FormatError, match="start again without --resume"):
        to(source, target, quantize="q8_0", resume=True)
    assert leftover(target).exists()


def test_other_weights_with_the_same_size_and_time_are_refused(interrupted):
    source, target = interrupted
    path = source / "model.safetensors"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(lbrx.FormatError, match="the source has changed"):
        to(source, target, quantize="q8_0", resume=True)


@pytest.mark.parametrize("unit", [8, 4096])
def test_a_checksum_depends_on_the_order(rng, unit):
    """Swapped words and swapped pages, next to each other and apart."""
    data = rng.integers(0, 256, 5 * 4096 + 3, dtype=np.uint8)
    total = checksum([data.data])
    for i, j in ((0, 1), (0, 3), (1, 4)):
        other = data.copy()
        a, b = slice(i * unit, (i + 1) * unit), slice(j * unit, (j + 1) * unit)
        other[a], other[b] = data[b], data[a]
        assert checksum([other.data]) != total
    first, second = data[:4096].data, data[4096:8192].data
    assert checksum([first, second]) != checksum([second, first])
    assert checksum([first, b""]) != checksum([b"", first])


def test_swapped_pages_are_found(interrupted):
    source, target = interrupted
    with (leftover(target) / "files/m.gguf").open("r+b") as file:
        data = np.frombuffer(file.read(), np.uint8).copy()
        layout = make_plan(source, "m.gguf", Settings(quantize="q8_0")).output.layouts["m.gguf"]
        for slot, offset in layout.tensors:
            place = slice(offset, offset + slot.nbytes // 64 * 64)
            data[place] = data[place].reshape(-1, 2, 32)[:, ::-1].reshape(-1)
        file.seek(0)
        file.write(data)
    assert check_resumed(source, target, 0) == 0


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"piece": null}', b'{"piece": null, "sum": 1}', b'{"piece": 0, "sum": "1"}'),
        *(b'{"piece": -1, "sum": 0}', b'{"piece": [], "sum": {}}', b"[" * 100_000, b"7"),
        *(b'{"piece": "\xff\xfe"}', b"\xff\x00", b'{"piece": 1e999, "sum": 2}'),
        b'{"piece": ' + b"9" * 10_000 + b', "sum": 0}',
    ],
)
def test_damaged_journals(interrupted, line):
    """Damaged lines do not count; a damaged first line is an error."""
    source, target = interrupted
    journal = leftover(target) / "journal.jsonl"
    sound = journal.read_bytes()
    journal.write_bytes(line + b"\n" + sound)
    with pytest.raises(lbrx.FormatError, match="belongs to another conversion"):
        to(source, target, quantize="q8_0", resume=True)
    first, *rest = filter(None, sound.splitlines())
    journal.write_bytes(b"\n".join([first, line, *rest]))
    assert check_resumed(source, target, 1 << 40) > 0


def test_a_finished_journal_does_not_serve_another_process(folder, tmp_path, monkeypatch):
    """The first process ends between the second's opening of the journal and its lock, and a third
    one starts: the second must not write into the third's files."""
    source, _ = folder()
    output = make_plan(source, tmp_path / "m.gguf", Settings(quantize="q8_0")).output
    first, others = PartialOutput(output, False, "one"), []
    flock = fcntl.flock

    def late(handle, operation):
        if not others:
            others.append(None)
            first.remove()
            others.append(PartialOutput(output, False, "three"))
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(lbrx.FormatError, match="is being written by another process"):
        PartialOutput(output, False, "two")
    others[1].remove()
    assert not leftover(tmp_path / "m.gguf").exists()


def test_a_lock_is_held_until_the_folder_is_gone(folder, tmp_path, monkeypatch):
    """Another process that starts while one removes its folder is refused or starts alone."""
    source, _ = folder()
    output = make_plan(source, tmp_path / "m.gguf", Settings(quantize="q8_0")).output
    first, second = PartialOutput(output, False, "one"), []
    unlink = os.unlink

    def slow(path, **place):
        unlink(path, **place)
        if not second:
            second.append(None)
            with pytest.raises(lbrx.FormatError, match="is being written by another process"):
                PartialOutput(output, False, "two")

    monkeypatch.setattr(os, "unlink", slow)
    first.remove()
    assert second


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
