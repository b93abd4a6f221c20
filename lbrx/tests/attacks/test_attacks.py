"""Hostile files raise an error that names the field, take little memory, and execute nothing."""

from __future__ import annotations

import tracemalloc
import zipfile

import pytest
from attack_table import ATTACKS, SOUND
from file_builders import global_name, npy, state_dict, torch_file, torch_tensor, zipped

import lbrx

_MEMORY = 64 << 20


@pytest.mark.parametrize(
    ("files", "message"), [a[1:] for a in ATTACKS], ids=[a[0] for a in ATTACKS]
)
def test_attack(files, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(lbrx.FormatError, match=message) as caught:
            lbrx.open_model(tmp_path / next(iter(files)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) < 1000 + len(str(tmp_path))
    assert peak < _MEMORY
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


@pytest.mark.parametrize("name", SOUND)
def test_what_fuzzing_starts_from_is_sound(name, tmp_path):
    (tmp_path / name).write_bytes(SOUND[name])
    model = lbrx.open_model(tmp_path / name)
    assert len(model) > 0
    assert all(tensor.numpy().shape == tensor.shape for tensor in model.values())


def test_header_above_the_limit(tmp_path):
    """A header of 200 MB is not read."""
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write((200 << 20).to_bytes(8, "little") + b"{")
        file.truncate(300 << 20)
    with pytest.raises(
        lbrx.FormatError, match="header length: 209,715,200 bytes, at most 104,857,600"
    ):
        lbrx.open_model(path)


def test_parameters_of_parameters(tmp_path):
    """A hundred thousand nested parameters around one tensor do not exhaust the stack."""
    depth = 10**5
    wrapped = global_name("torch._utils", "_rebuild_parameter") * depth
    wrapped += torch_tensor([2, 3], [3, 1]) + b"\x85R" * depth
    (tmp_path / "a.pt").write_bytes(torch_file(state_dict({"w": wrapped})))
    assert lbrx.open_model(tmp_path / "a.pt")["w"].shape == (2, 3)


def test_a_compressed_array_that_ends_early(tmp_path):
    """A stream that is shorter than the directory's size is an error when it is read."""
    whole = zipped({"w.npy": npy(data=bytes(24000), shape="(20, 300)")}, zipfile.ZIP_DEFLATED)
    short = zipped({"w.npy": npy(data=bytes(240), shape="(20, 300)")}, zipfile.ZIP_DEFLATED)
    short = short.replace((128 + 240).to_bytes(4, "little"), (128 + 24000).to_bytes(4, "little"))
    (tmp_path / "whole.npz").write_bytes(whole)
    (tmp_path / "short.npz").write_bytes(short)
    assert lbrx.open_model(tmp_path / "whole.npz")["w"].numpy().shape == (20, 300)
    with pytest.raises(lbrx.FormatError, match=r"deflated member: ends .* bytes early"):
        lbrx.open_model(tmp_path / "short.npz")["w"].numpy()
