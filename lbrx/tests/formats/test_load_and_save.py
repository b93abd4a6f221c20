"""`lbrx.load` is the inverse of `lbrx.save`, for every format that is written."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from format_checks import same
from safetensors.numpy import save_file

import lbrx
from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.files.formats import writing
from lbrx.quant.gguf import TYPES

TARGETS = {
    "m.safetensors": None,
    "folder": "safetensors",
    "mlx": "mlx",
    "m.gguf": None,
    "m.npz": None,
}
METADATA = {
    "m.safetensors": {"a": "b", "unicode": "ß"},
    "folder": {"a": "b"},
    "mlx": {"a": "b"},
    "m.gguf": {"general.name": "x", "n": 3, "f": 0.5, "l": ["a", "b"], "t": True},
}


def test_every_format_is_here():
    named = {
        name: kind or writing.format_for(Path(name), None).name for name, kind in TARGETS.items()
    }
    assert set(named.values()) == set(writing.writable())


def held(dtype: dt.Dtype, name: str) -> bool:
    return name != "m.gguf" or dtype in {kind.dtype for kind in TYPES}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_every_type(name, shape, tmp_path, rng):
    tensors = {}
    for dtype in dt.ALL:
        if held(dtype, name):
            noise = rng.integers(0, 2, (*shape, dtype.itemsize), np.uint8)
            values = noise.view(dtype.numpy).reshape(shape)
            tensors[f"t.{dtype.name}.weight"] = lbrx.tensor(values, device="cpu")
    lbrx.save(tmp_path / name, tensors, format=TARGETS[name])
    found = lbrx.load(tmp_path / name)
    assert type(found) is dict
    assert set(found) == set(tensors)
    for key, tensor in tensors.items():
        assert (found[key].dtype, found[key].device) == (tensor.dtype, "cpu")
        assert found[key].metadata.name == key
        same(found[key].numpy(), tensor.numpy())


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("key", ["w", "layer.weight", "layer.0.bias"])
@pytest.mark.parametrize(
    "scheme", ["q4_0", "q4_k", "iq4_xs", "mlx:4:64", "mlx:mxfp4", "mlx:3:32", "q4:64"]
)
def test_quantized_tensors(name, key, scheme, tmp_path, rng):
    """A format that has the scheme keeps it, others keep the values."""
    values = rng.standard_normal((3, 512)).astype(np.float32)
    weight = lbrx.quantize(lbrx.tensor(values, device="cpu"), scheme)
    beside = lbrx.tensor(values[0], device="cpu")
    lbrx.save(tmp_path / name, {key: weight, "norm": beside}, format=TARGETS[name])
    found = lbrx.load(tmp_path / name)
    assert set(found) == {key, "norm"}
    same(found[key].numpy(), weight.numpy())
    same(found["norm"].numpy(), values[0])
    is_gguf = quant.find(scheme).gguf_id is not None
    kept = (name == "m.gguf" and is_gguf) or (name == "mlx" and scheme.startswith("mlx:"))
    assert found[key].metadata.quantization == (scheme if kept else None)
    if kept:
        stored = [t.quantization for t in (found[key], weight)]
        assert stored[0].scheme == stored[1].scheme
        for part, array in stored[1].arrays.items():
            same(stored[0].arrays[part].numpy(), array.numpy())


def test_several_schemes_in_mlx(tmp_path, rng):
    values = lbrx.tensor(rng.standard_normal((2, 128)).astype(np.float32), device="cpu")
    schemes = {"a.weight": "mlx:4:64", "b.weight": "mlx:8:32", "c": "mlx:mxfp8", "d": "mlx:4:64"}
    tensors = {name: lbrx.quantize(values, scheme) for name, scheme in schemes.items()}
    lbrx.save(tmp_path / "m", tensors, format="mlx")
    found = lbrx.load(tmp_path / "m")
    assert {n: t.metadata.quantization for n, t in found.items()} == schemes
    for name, tensor in tensors.items():
        same(found[name].numpy(), tensor.numpy())


def test_words_that_are_not_quantized(tmp_path):
    """Plain tensors whose names look like MLX's."""
    words = lbrx.tensor(np.arange(8, dtype=np.uint32).reshape(2, 4), device="cpu")
    tensors = {"a.weight": words, "a.scales": lbrx.ones((2, 1), device="cpu")}
    lbrx.save(tmp_path / "m", tensors, format="mlx")
    found = lbrx.load(tmp_path / "m")
    assert set(found) == set(tensors)
    same(found["a.weight"].numpy(), words.numpy())


def test_eight_bit_floats_stay(tmp_path):
    """Of a file that has them: safetensors stores them again, GGUF their values."""
    values = np.arange(8, dtype=np.float32).astype(ml_dtypes.float8_e4m3fn)
    save_file({"w": values.view(np.uint8)}, tmp_path / "bytes.safetensors")
    text = (tmp_path / "bytes.safetensors").read_bytes().replace(b'"U8"', b'"F8_E4M3"')
    length = int.from_bytes(text[:8], "little") + len(b"F8_E4M3") - len(b"U8")
    (tmp_path / "a.safetensors").write_bytes(length.to_bytes(8, "little") + text[8:])
    found = lbrx.load(tmp_path / "a.safetensors")
    lbrx.save(tmp_path / "b.safetensors", found)
    lbrx.save(tmp_path / "b.gguf", found)
    assert lbrx.load(tmp_path / "b.safetensors")["w"].metadata.quantization == "f8_e4m3"
    for name in ("b.safetensors", "b.gguf"):
        same(lbrx.load(tmp_path / name)["w"].numpy(), values.astype(np.float32))


@pytest.mark.parametrize("name", METADATA)
def test_metadata(name, tmp_path):
    lbrx.save(tmp_path / name, {"w": lbrx.ones(4, device="cpu")}, METADATA[name], TARGETS[name])
    found = {
        k: v if isinstance(v, (str, int, float)) else list(v)
        for k, v in lbrx.open_model(tmp_path / name).metadata.items()
    }
    assert found == METADATA[name] | ({"format": "mlx"} if name == "mlx" else {})


def test_a_model_comes_back_from_load(tmp_path, rng):
    """What was loaded can be saved again, and a file may be written over while it is mapped."""
    values = rng.standard_normal((4, 5)).astype(np.float32)
    path = tmp_path / "a.safetensors"
    lbrx.save(path, {"w": lbrx.tensor(values, device="cpu")})
    found = lbrx.load(path)
    lbrx.save(path, {"w": found["w"], "double": found["w"] * 2})
    same(lbrx.load(path)["double"].numpy(), values * 2)
    same(found["w"].numpy(), values)


def test_tensors_of_a_device(tmp_path, rng, place):
    values = rng.standard_normal((4, 64)).astype(np.float32)
    tensor = lbrx.tensor(values, device=place)
    lbrx.save(tmp_path / "m.gguf", {"a": tensor + 1, "q": lbrx.quantize(tensor, "q8_0")})
    found = lbrx.load(tmp_path / "m.gguf")
    same(found["a"].to_device(place).numpy(), values + 1)
    assert found["q"].to_device(place).quantization.scheme == "q8_0"


def test_files_are_mapped_when_used(tmp_path):
    lbrx.save(tmp_path / "m.safetensors", {"w": lbrx.ones(4, device="cpu")})
    storage = lbrx.load(tmp_path / "m.safetensors")["w"].array.storage
    assert (type(storage).__name__, storage.base.is_made) == ("ViewStorage", False)


@pytest.mark.parametrize("name", ["nothing", "nothing.safetensors"])
def test_what_is_not_there(name, tmp_path):
    with pytest.raises(lbrx.FormatError, match=f"{name}: no such file or folder"):
        lbrx.load(tmp_path / name)


@pytest.mark.parametrize(("name", "form"), [("m.safetensors", None), ("m", "safetensors")])
def test_what_replaces_a_file_is_on_the_disk_first(tmp_path, monkeypatch, name, form):
    events = []
    sync, replace = os.fsync, os.replace

    def note_sync(handle):
        events.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
        sync(handle)

    def note_replace(old, new):
        events.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    tensors = {"w": lbrx.ones(3, device="cpu")}
    lbrx.save(tmp_path / name, tensors, format=form)
    assert events == ["replace"]
    lbrx.save(tmp_path / name, tensors, format=form)
    before = ["sync file"] if form is None else ["sync file", "sync folder"]
    assert events[1:] == [*before, "replace", "sync folder"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_follow_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        tensors = {"w": lbrx.ones(3, device="cpu")}
        lbrx.save(tmp_path / "m.npz", tensors)
        lbrx.save(tmp_path / "m", tensors, format="safetensors", config={"a": 1})
    finally:
        os.umask(before)
    files = [tmp_path / "m.npz", *(tmp_path / "m").iterdir()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o666 & ~mask}
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o777 & ~mask


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.gguf", "folder"])
def test_a_write_without_room_names_the_file(tmp_path, name):
    given = {"a": lbrx.ones((256, 256), device="cpu")}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match=rf"File too large: '{tmp_path}/.*{name[:2]}"):
            lbrx.save(tmp_path / name, given, format="safetensors" if name == "folder" else None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_nothing_is_told_from_a_missing_file(tmp_path):
    link = tmp_path / "model.gguf"
    link.symlink_to(tmp_path / "gone.gguf")
    with pytest.raises(lbrx.FormatError, match="is a symbolic link to what does not exist"):
        lbrx.load(link)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(lbrx.FormatError, match="is a symbolic link to what does not exist"):
        lbrx.load(loop)


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("pipe", "gguf", "is a device, pipe or socket: give a file or a folder"),
        ("pipe", "npz", "is a device, pipe or socket"),
        ("pipe", "mlx", "is a device, pipe or socket"),
        ("there", "gguf", "is a folder, and gguf is written as a file"),
        ("file", "mlx", "is a file, and mlx is written as a folder"),
        ("nowhere", "gguf", "is a broken link"),
    ],
)
def test_what_is_not_replaced(tmp_path, target, kind, message):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("as it was")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    before = {path: path.lstat().st_ino for path in tmp_path.rglob("*")}
    with pytest.raises(lbrx.FormatError, match=message):
        lbrx.save(tmp_path / target, {"x": lbrx.ones(3)}, format=kind)
    assert {path: path.lstat().st_ino for path in tmp_path.rglob("*")} == before
