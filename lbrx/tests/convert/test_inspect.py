"""The output of `lbrx inspect`."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from conversion_checks import to

import lbrx
from lbrx.cli import main
from lbrx.convert.contents import contents
from lbrx.files import formats
from lbrx.metal.device import chips
from lbrx.models.fitting import WORKING_SET


@pytest.mark.parametrize(
    ("target", "quantize", "quantization", "encoding"),
    [
        ("m.gguf", "q4_k_m", "q4_k_m", "Q6_K"),
        ("m.gguf", "f16", None, "F16"),
        ("mlx", "mlx:4:32", "MLX affine, 4 bits in groups of 32", "MLX:4:32"),
        ("hf", "bf16", None, "BF16"),
    ],
)
def test_contents(folder, tmp_path, tokenizer, target, quantize, quantization, encoding):
    source, tensors = folder()
    result = to(source, tmp_path / target, quantize=quantize)
    found = contents(formats.read(tmp_path / target))
    assert found.architecture == "llama"
    assert found.parameters == sum(values.size for values in tensors.values())
    assert found.nbytes == result.plan.nbytes
    assert found.quantization == quantization
    assert encoding in {kind.encoding for kind in found.kinds}
    assert sum(kind.tensors for kind in found.kinds) == len(tensors)
    assert sum(kind.nbytes for kind in found.kinds) == found.nbytes
    assert found.settings["layers"] == 2
    assert found.tokenizer is not None
    assert found.tokenizer.tokens == tokenizer.get_vocab_size()
    assert found.tokenizer.chat_template


def test_what_fits(folder, capsys):
    source, _ = folder()
    assert main(["inspect", str(source), "--context", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    modelled = found["modelled"]
    # Two layers, two heads of keys and values, 64 numbers of two bytes each.
    assert modelled["memory"]["cache"] == 1000 * 2 * 2 * 2 * 64 * 2
    assert modelled["memory"]["weights"] == found["nbytes"]
    assert modelled["total"] == sum(modelled["memory"].values())
    enough = {chip["chip"]: tuple(chip["enough"]) for chip in modelled["chips"]}
    assert enough == {name: chip.memory for name, chip in chips().items()}


def test_what_does_not_fit(folder, tmp_path, capsys):
    """A cache that fits some memory sizes and not others."""
    source, _ = folder()
    limit = 24 * 2**30 * WORKING_SET
    tokens = int(limit / (2 * 2 * 2 * 64 * 2))
    assert main(["inspect", str(source), "--context", str(tokens)]) == 0
    lines = {line[:10].strip(): line[10:].split() for line in capsys.readouterr().out.splitlines()}
    assert lines["M1"] == ["no", "size", "-"]
    assert lines["M3 Pro"][:2] == ["36", "GB"]
    assert lines["M4"][:2] == ["32", "GB"]
    assert lines["M3 Max"][:6] == ["36,", "48,", "64,", "96,", "128", "GB"]


def test_names_cannot_drive_the_terminal(tmp_path, capsys):
    lbrx.save(tmp_path / "m.safetensors", {"\x1b[31m\n" + "a" * 999: lbrx.ones(4, device="cpu")})
    assert main(["inspect", str(tmp_path / "m.safetensors")]) == 0
    out = capsys.readouterr().out
    assert r"largest: \x1b[31m\naa" in out
    assert max(map(len, out.splitlines())) < 400


def test_tensors_alone(tmp_path, capsys):
    """A file that is not a language model has no memory plan."""
    np.savez(tmp_path / "m.npz", a=np.ones((3, 4), np.float16), n=np.arange(5))
    assert main(["inspect", str(tmp_path / "m.npz")]) == 0
    out = capsys.readouterr().out
    assert "architecture  not named" in out
    assert "parameters    12\n" in out
    assert "Modelled" not in out
    assert main(["inspect", str(tmp_path / "m.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["modelled"] is None


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--context", "0"], "give a positive number of tokens")]
)
def test_refused(tmp_path, capsys, arguments, message):
    assert main(["inspect", str(tmp_path), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_truncated_file_is_one_line(tmp_path, capsys):
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\0\0\0")
    assert main(["inspect", str(tmp_path / "m.gguf")]) == 1
    assert capsys.readouterr().err.startswith(f"lbrx: {tmp_path}/m.gguf: ")


def test_a_reader_that_has_seen_enough(folder):
    """No traceback when the other end of a pipe is closed."""
    source, _ = folder()
    command = [sys.executable, "-m", "lbrx", "inspect", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
