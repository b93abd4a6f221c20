"""The errors that `--verify` measures and the damage that it finds."""

from __future__ import annotations

import numpy as np
import pytest
from conversion_checks import gguf_values, to
from safetensors.numpy import load_file

import lbrx
from lbrx.cli import main
from lbrx.convert.verify import ClassError, verify


def checked(result) -> dict[tuple[str, str], ClassError]:
    rows = verify(result.plan, result.checksums, lambda written: None)
    return {(row.name, row.after): row for row in rows}


def test_errors_by_class(folder, tmp_path, small_pieces):
    """Compared with float64 sums over the tensors that the gguf package reads."""
    source, tensors = folder(dtype=np.float32)
    rows = checked(to(source, tmp_path / "m.gguf", quantize="q8_0"))
    found = gguf_values(tmp_path / "m.gguf")
    names = ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"]
    before = np.stack([tensors[f"model.layers.{n}.mlp.up_proj.weight"] for n in (0, 1)])
    after = np.stack([found[name] for name in names])
    errors = after.astype(np.float64) - before
    row = rows["blk.*.ffn_up.weight", "Q8_0"]
    assert (row.before, row.tensors, row.sums.values) == ("F32", 2, before.size)
    np.testing.assert_allclose(row.rmse, np.sqrt(np.square(errors).mean()), rtol=1e-9)
    expected = np.linalg.norm(errors) / np.linalg.norm(before.astype(np.float64))
    np.testing.assert_allclose(row.relative, expected, rtol=1e-9)
    assert row.sums.largest == np.abs(errors).max()
    assert rows["blk.*.attn_norm.weight", "F32"].sums.largest == 0


@pytest.mark.parametrize(
    ("target", "quantize"), [("m.safetensors", "f16"), ("m.gguf", "q4_k_m"), ("m", "mlx:mxfp4")]
)
def test_right_ones_pass(folder, tmp_path, target, quantize):
    source, _ = folder()
    result = to(source, tmp_path / target, quantize=quantize)
    assert sum(row.tensors for row in checked(result).values()) == len(result.plan.items)


@pytest.mark.parametrize(
    ("target", "quantize", "tensor"),
    [
        ("m.safetensors", None, "model.norm.weight"),
        ("m.safetensors", "f16", "model.norm.weight"),
        ("m.gguf", "q4_k_m", "blk.0.attn_v.weight"),
        ("m", "mlx:4:64", "model.layers.0.mlp.up_proj.weight"),
    ],
)
def test_a_flipped_bit_is_found(folder, tmp_path, target, quantize, tensor):
    """Damage in a copied tensor, in a rounded one, and in blocks."""
    source, _ = folder()
    result = to(source, tmp_path / target, quantize=quantize)
    stored = lbrx.open_model(tmp_path / target).files.tensors[tensor]
    with stored.source.file.open("r+b") as file:
        file.seek(stored.source.offset + 20)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(
        lbrx.FormatError, match=rf"'{tensor}': rows 0 to \d+ differ from what was written"
    ):
        checked(result)


def test_another_file_is_found(folder, tmp_path):
    source, _ = folder()
    result = to(source, tmp_path / "m.gguf", quantize="q8_0")
    to(source, tmp_path / "m.gguf", quantize="q4_0", force=True)
    with pytest.raises(lbrx.FormatError, match=r"is Q6_K of shape .*, not Q8_0 of"):
        checked(result)
    to(source, tmp_path / "m.gguf", quantize="q8_0", exclude=("*.mlp.up*",), force=True)
    with pytest.raises(lbrx.FormatError, match=r"'blk.0.ffn_up.weight' is missing"):
        checked(result)


def test_infinities_and_overflow(tmp_path, rng):
    """NaN and infinity are right where the source has them; overflow is an error."""
    values = np.array([[1, np.inf, np.nan, 70000]], np.float32)
    lbrx.save(tmp_path / "a.safetensors", {"w": lbrx.tensor(values, device="cpu")})
    result = to(tmp_path / "a.safetensors", tmp_path / "b.safetensors", quantize="f16")
    (row,) = checked(result).values()
    assert row.sums.largest == np.inf
    assert np.isinf(load_file(tmp_path / "b.safetensors")["w"]).tolist() == [[0, 1, 0, 1]]


def test_the_command_prints_a_table(folder, tmp_path, capsys):
    source, _ = folder()
    target = str(tmp_path / "m.gguf")
    options = ["--quantize", "q8_0", "--verify", "--device", "cpu"]
    assert main(["convert", str(source), target, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{target}: 21 tensors, ")
    assert "peak memory" in lines[0]
    (row,) = [line.split() for line in lines if line.startswith("blk.*.attn_q")]
    assert row[1:4] == ["2", "BF16", "Q8_0"]
    assert 0.4 < float(row[5].removesuffix("%")) < 0.7
