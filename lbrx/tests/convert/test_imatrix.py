"""Importance matrices: both kinds of files, and their effect on encoders."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from conversion_checks import gguf_types, gguf_values, to

import lbrx
from lbrx import quant
from lbrx.cli import main
from lbrx.files.formats import imatrix

UP, EXPERTS = "blk.0.ffn_up.weight", "blk.0.ffn_up_exps.weight"


def write_records(path, means, calls=3):
    """A file of llama.cpp from before it used GGUF: means times calls, and the name of the data."""
    parts = [struct.pack("<i", len(means))]
    for name, values in means.items():
        data = (values.reshape(-1) * np.float32(calls)).astype("<f4")
        parts += [struct.pack("<i", len(name)), name.encode()]
        parts += [struct.pack("<2i", calls, data.size), data.tobytes()]
    path.write_bytes(b"".join(parts) + struct.pack("<2i", calls, 4) + b"text")


def write_gguf(path, means, count=8):
    """A GGUF of sums and counts, with a row for each matrix."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_string("general.type", "imatrix")
    for name, values in means.items():
        rows = np.atleast_2d(values)
        writer.add_tensor(f"{name}.in_sum2", rows * np.float32(count))
        writer.add_tensor(f"{name}.counts", np.full((len(rows), 1), count, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("write", "quantize"),
    [(write_records, "q4_k_m"), (write_gguf, "q4_0"), (write_gguf, "iq4_xs")],
)
def test_encoders_are_told(folder, tmp_path, rng, small_pieces, write, quantize):
    """As the reference encodes with the same importance: it counts, and rows are not mixed up."""
    source, tensors = folder(dtype=np.float32)
    means = {UP: rng.exponential(size=256).astype(np.float32) ** 3}
    write(tmp_path / "i", means)
    assert imatrix.read(tmp_path / "i").keys() == {UP}
    result = to(source, tmp_path / "m.gguf", quantize=quantize, imatrix=tmp_path / "i")
    assert [item.name for item in result.plan.items if item.importance is not None] == [UP]
    values = tensors["model.layers.0.mlp.up_proj.weight"]
    scheme = gguf_types(tmp_path / "m.gguf")[UP].lower()
    known = quant.dequantize(*quant.quantize(values, scheme, imatrix.read(tmp_path / "i")[UP]))
    found = gguf_values(tmp_path / "m.gguf")[UP]
    np.testing.assert_array_equal(found, known)
    even = quant.dequantize(*quant.quantize(values, scheme))
    errors = [(np.square(x - values, dtype=np.float64) * means[UP]).sum() for x in (found, even)]
    assert errors[0] < errors[1]
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["quantize.imatrix.file"].contents() == "i"
    assert fields["quantize.imatrix.entries_count"].contents() == 1


@pytest.mark.parametrize("write", [write_records, write_gguf])
def test_each_expert_has_its_own(folder, tmp_path, rng, small_pieces, write):
    source, tensors = folder("mixtral", np.float32)
    means = {EXPERTS: rng.exponential(size=(3, 256)).astype(np.float32) ** 3}
    means[EXPERTS][1] = 0  # never chosen
    write(tmp_path / "i", means)
    to(source, tmp_path / "m.gguf", quantize="q4_k_s", imatrix=tmp_path / "i")
    found, known = gguf_values(tmp_path / "m.gguf")[EXPERTS], imatrix.read(tmp_path / "i")[EXPERTS]
    scheme = gguf_types(tmp_path / "m.gguf")[EXPERTS].lower()
    for expert, importance in enumerate(known.reshape(3, 256)):
        values = tensors[f"model.layers.0.block_sparse_moe.experts.{expert}.w3.weight"]
        expected = quant.dequantize(*quant.quantize(values, scheme, importance))
        np.testing.assert_array_equal(found[expert], expected)


def test_another_file_is_another_conversion(folder, tmp_path, monkeypatch):
    source, _ = folder()
    write_records(tmp_path / "i", {UP: np.ones(256, np.float32)})
    options = {"quantize": "q4_0", "imatrix": tmp_path / "i"}
    with monkeypatch.context() as patch:
        patch.setattr("lbrx.convert.partial.PartialOutput.complete", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            to(source, tmp_path / "m.gguf", **options)
    write_records(tmp_path / "i", {UP: np.arange(256, dtype=np.float32)})
    with pytest.raises(lbrx.FormatError, match="start again without --resume"):
        to(source, tmp_path / "m.gguf", resume=True, **options)


RECORD = struct.pack("<2i", 1, 1) + b"w" + struct.pack("<2if", 1, 1, 1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is cut short"),
        (b"\0\0\0\0", "has no importance"),
        (b"\xff" * 40, "name of record 0: 4,294,967,295 bytes"),
        (RECORD[:-1], "record 'w': 4 bytes"),
        (RECORD[:-8] + struct.pack("<i", 1 << 30), "record 'w': 4,294,967,296 bytes"),
        (
            RECORD[:-4] + struct.pack("<f", -1.0),
            "'w': importance: has values that are negative or not finite",
        ),
        (RECORD[:-4] + struct.pack("<f", np.inf), "negative or not finite"),
        (struct.pack("<i", 2) + RECORD[4:] * 2, "record 'w': is empty or occurs twice"),
        (struct.pack("<2i", 1, 1) + b"\xff" + RECORD[9:], "name of record 0: is not UTF-8"),
    ],
)
def test_records_that_are_wrong(tmp_path, content, message):
    (tmp_path / "i").write_bytes(content)
    with pytest.raises(lbrx.FormatError, match=message):
        imatrix.read(tmp_path / "i")


def test_a_model_is_no_importance(folder, tmp_path, capsys):
    source, _ = folder()
    to(source, tmp_path / "m.gguf", quantize="q8_0")
    write_records(tmp_path / "i", {UP: np.ones(255, np.float32)})
    start = ["convert", str(source), str(tmp_path / "n.gguf"), "--quantize"]
    for options, message in (
        (["q4_0", "--imatrix", str(tmp_path / "m.gguf")], "has no importance"),
        (["q4_0", "--imatrix", str(tmp_path / "gone")], "no such file"),
        (["q4_0", "--imatrix", str(tmp_path / "i")], "255 numbers do not fit shape (384, 256)"),
        (["f16", "--imatrix", str(tmp_path / "i")], "importance is for GGUF's mixtures"),
        (["q8_0", "--imatrix", str(tmp_path / "i")], "no tensor gets a type whose encoder uses"),
    ):
        assert main([*start, *options]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "n.gguf").exists()
