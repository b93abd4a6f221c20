"""lbrx merge on the command line: configurations, options, dry runs and resuming after a kill."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from interruptions import DYING
from merge_checks import linear, mean

import lbrx
from lbrx.cli import main
from lbrx.merging.config import dump

Q = "model.layers.0.self_attn.q_proj.weight"
# The arguments are the configuration, the target, and after how many pieces the process dies.
KILLED = f"""{DYING}
from lbrx.cli import main
dying.left = int(sys.argv[3])
work.PIECE = 64
main(["merge", sys.argv[1], sys.argv[2], "--device", "cpu", "--quiet", *sys.argv[4:]])
"""


@pytest.fixture
def pair(model, tmp_path):
    ta, tb = model("a", dtype=ml_dtypes.bfloat16), model("b", dtype=ml_dtypes.bfloat16)
    (tmp_path / "c.yml").write_text(dump(linear((tmp_path / "a", 1), (tmp_path / "b", 1))))
    return ta, tb


def run(*arguments):
    return main(["merge", *map(str, arguments), "--device", "cpu"])


def files(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_configuration(pair, tmp_path, capsys):
    assert run(tmp_path / "c.yml", tmp_path / "out", "--verify") == 0
    shown = capsys.readouterr().out
    assert "21 tensors" in shown
    assert "exact" in shown
    written = {"README.md", "config.json", "mergekit_config.yml", "model.safetensors"}
    written |= {"merge-report.html", "merge-report.json"}
    assert set(files(tmp_path / "out")) == written
    assert (tmp_path / "out" / "mergekit_config.yml").read_text() == (
        tmp_path / "c.yml"
    ).read_text()


def test_a_method_with_options(pair, tmp_path):
    ta, tb = pair
    arguments = ["--method", "linear", "--weight", "3", "--weight", "1", "--dtype", "float32"]
    assert run(*arguments, tmp_path / "a", tmp_path / "b", tmp_path / "out") == 0
    found = lbrx.open_model(tmp_path / "out")[Q].numpy()
    np.testing.assert_allclose(found, mean(ta[Q], tb[Q], 0.75), atol=1e-6)
    arguments = ["--method", "linear", "--weight", "1,0", "--normalize", "false", tmp_path / "a"]
    assert run(*arguments, tmp_path / "gradient") == 0
    model = lbrx.open_model(tmp_path / "gradient")
    np.testing.assert_array_equal(model[Q].numpy(), ta[Q])
    assert not model[Q.replace("layers.0", "layers.1")].numpy().any()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_forgotten_target_keeps_the_last_model(pair, tmp_path, capsys, more):
    before = files(tmp_path / "b")
    models = (tmp_path / "a", tmp_path / "b")
    assert run("--method", "linear", "--weight", "1", *models, *more) == 1
    shown = capsys.readouterr().err
    assert "b/model.safetensors exists, and the last path is the one to write: give OUT" in shown
    assert files(tmp_path / "b") == before


def test_a_dry_run_writes_nothing(pair, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert run(tmp_path / "c.yml", tmp_path / "out.gguf", "--quantize", "f16", "--dry-run") == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    facts = {name.strip(): text.strip() for name, text in lines.items()}
    assert facts["tensors"] == "21: 21 linear"
    assert facts["types"] == "16 F16, 5 F32"
    assert facts["vocabulary"] == "11 rows, the same in all models"
    assert {"reads", "writes", "memory", "time", "models", "output"} <= facts.keys()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{c}"], "give CONFIG.yml and OUT"),
        (["{c}", "{a}", "{out}"], "3 paths are given: give CONFIG.yml and OUT"),
        (["{a}", "{out}"], "is a folder: give CONFIG.yml, or add --method"),
        (["{c}", "{out}", "--weight", "1"], "--weight belongs to --method"),
        (["{c}", "{out}", "--base", "x"], "--base belongs to --method"),
        (["--method", "linear", "{out}"], "linear needs models"),
        (["--method", "lineer", "{a}", "{out}"], "did you mean linear"),
        (
            ["--method", "linear", "--weight", "1", "--weight", "2", "{a}", "{out}"],
            "--weight is given 2 times: give it once or 1 times",
        ),
        (["--method", "linear", "{a}", "{out}"], "weight has no value for"),
        (["{c}", "{out}", "--quantize", "q4_k_m"], "safetensors has no type for"),
        (["none.yml", "{out}"], "none.yml: No such file"),
    ],
)
def test_mistakes_are_one_line(pair, tmp_path, capsys, arguments, problem):
    names = {"c": tmp_path / "c.yml", "a": tmp_path / "a", "out": tmp_path / "out"}
    assert run(*(text.format(**names) for text in arguments)) == 1
    shown = capsys.readouterr().err
    assert problem in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_resumed_after_a_kill(pair, tmp_path, monkeypatch):
    """The same bytes as without the kill; another seed or weight does not continue it."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 64)
    assert run(tmp_path / "c.yml", whole) == 0
    command = [sys.executable, "-c", KILLED, str(tmp_path / "c.yml"), str(out)]
    for pieces, more in ((20, []), (25, ["--resume"])):
        killed = subprocess.run([*command, str(pieces), *more], check=False, env=os.environ)
        assert killed.returncode == -signal.SIGKILL
        assert not out.exists()
    other = tmp_path / "other.yml"
    other.write_text(dump(linear((tmp_path / "a", 2), (tmp_path / "b", 1))))
    journal = (tmp_path / ".out.partial" / "journal.jsonl").read_text()
    assert run(other, out, "--resume") == 1
    assert (tmp_path / ".out.partial" / "journal.jsonl").read_text() == journal
    prepared = lbrx.merging.prepare(tmp_path / "c.yml", out)
    options = lbrx.convert.RunOptions(resume=True)
    result = lbrx.merging.perform_merge(prepared, options, device="cpu")
    assert result.reused > 0
    # The card and the page have the folder's name.
    names = {"README.md": None, "merge-report.html": None, "merge-report.json": None}
    found, wanted = (json.loads((f / "merge-report.json").read_text()) for f in (out, whole))
    assert found["tensors"] == wanted["tensors"]
    assert {**files(out), **names} == {**files(whole), **names}
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_interrupted(pair, tmp_path, monkeypatch, capsys):
    from lbrx.convert.partial import PartialOutput

    def stop(self, piece, total):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PartialOutput, "finished", stop)
        assert run(tmp_path / "c.yml", tmp_path / "out") == 130
    assert "add --resume to continue" in capsys.readouterr().err
    assert run(tmp_path / "c.yml", tmp_path / "out", "--resume") == 0


def test_a_full_disk_loses_nothing(pair, tmp_path, monkeypatch, capsys):
    from lbrx.convert.partial import PartialOutput

    write, left = PartialOutput.write, [30]

    def full(self, slot, at, data):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, slot, at, data)

    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 64)
    with monkeypatch.context() as patch:
        patch.setattr(PartialOutput, "write", full)
        assert run(tmp_path / "c.yml", tmp_path / "out") == 1
    shown = capsys.readouterr().err
    assert "No space left on device" in shown
    assert "add --resume to continue" in shown
    prepared = lbrx.merging.prepare(tmp_path / "c.yml", tmp_path / "out")
    options = lbrx.convert.RunOptions(resume=True)
    assert lbrx.convert.perform(prepared.conversion, options, device="cpu").reused > 0
    assert run(tmp_path / "c.yml", tmp_path / "whole") == 0
    weights = [tmp_path / name / "model.safetensors" for name in ("out", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
