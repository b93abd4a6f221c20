"""safetensors, compared with the safetensors package."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from format_checks import same
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import lbrx
from lbrx.arrays.storage import MmapStorage, ViewStorage


def test_reads_what_the_package_writes(arrays, tmp_path):
    save_file(arrays, tmp_path / "a", {"note": "hello"})
    model = lbrx.open_model(tmp_path / "a")
    assert (model.format, model.metadata, set(model)) == (
        "safetensors",
        {"note": "hello"},
        set(arrays),
    )
    for name, array in arrays.items():
        same(model[name].numpy(), array)
        assert model[name].metadata.name == name
        assert model[name].metadata.source == str(tmp_path / "a")


def test_writes_what_the_package_reads(arrays, tmp_path):
    path = tmp_path / "a.safetensors"
    lbrx.save(
        path, {name: lbrx.tensor(array, device="cpu") for name, array in arrays.items()}, {"k": "ü"}
    )
    found = load_file(path)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        same(found[name], array)
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"k": "ü"}
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_views_are_written_as_they_show(tmp_path):
    t = lbrx.tensor(np.arange(24, dtype=np.int32).reshape(4, 6), device="cpu")
    lbrx.save(tmp_path / "a.safetensors", {"t": t.T, "s": t[1::2, ::-1], "e": t[:1].expand(3, 6)})
    found = load_file(tmp_path / "a.safetensors")
    for name, view in {"t": t.T, "s": t[1::2, ::-1], "e": t[:1].expand(3, 6)}.items():
        same(found[name], view.numpy())


def test_a_file_is_mapped_once(tmp_path):
    save_file({"a": np.ones(5000, np.float32), "b": np.zeros(3, np.int8)}, tmp_path / "m")
    model = lbrx.open_model(tmp_path / "m")
    a, b = model["a"].storage, model["b"].storage
    assert isinstance(a, ViewStorage)
    assert isinstance(a.base, MmapStorage)
    assert a.base is b.base
    assert (a.base.offset, a.base.nbytes) == (0, (tmp_path / "m").stat().st_size)
    assert not a.base.is_made
    assert model["a"].numpy().base is not None
    assert a.base.is_made
    assert not model["a"].numpy().flags.writeable


def test_elements_are_aligned(tmp_path):
    tensors = {
        "a": np.zeros(3, np.int8),
        "b": np.zeros(1, np.float64),
        "c": np.zeros(1, np.float16),
    }
    lbrx.save(
        tmp_path / "m.safetensors", {k: lbrx.tensor(v, device="cpu") for k, v in tensors.items()}
    )
    for name, info in lbrx.open_model(tmp_path / "m.safetensors").files.tensors.items():
        assert info.source.offset % tensors[name].itemsize == 0


@pytest.mark.parametrize("limit", [1, 100, "1KB"])
def test_shards(limit, tmp_path):
    arrays = {f"layer.{i}": np.full((i, 7), i, np.float32) for i in range(9)}
    tensors = {name: lbrx.tensor(array, device="cpu") for name, array in arrays.items()}
    config = {"model_type": "none"}
    lbrx.save(tmp_path / "m", tensors, format="safetensors", config=config, max_shard_size=limit)
    names = sorted(path.name for path in (tmp_path / "m").glob("*.safetensors"))
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert names == sorted(set(index["weight_map"].values()))
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in arrays.values())
    for path in (tmp_path / "m", tmp_path / "m" / "model.safetensors.index.json"):
        model = lbrx.open_model(path)
        assert set(model) == set(arrays)
        for name, array in arrays.items():
            same(model[name].numpy(), array)
    assert lbrx.open_model(tmp_path / "m").config == config
    with safe_open(tmp_path / "m" / index["weight_map"]["layer.8"], "numpy") as file:
        same(file.get_tensor("layer.8"), arrays["layer.8"])


def test_an_older_model_in_the_folder_goes(tmp_path):
    """Readers would take old shards for those of the new model."""
    tensors = {name: lbrx.ones(9, device="cpu") for name in "abc"}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "notes.txt").write_text("kept")
    for limit, count in ((None, 1), (40, 4), (None, 1)):
        lbrx.save(tmp_path / "m", tensors, format="safetensors", max_shard_size=limit)
        names = {path.name for path in (tmp_path / "m").iterdir()}
        assert len(names) == count + 1
        assert "notes.txt" in names
        assert set(lbrx.open_model(tmp_path / "m")) == set(tensors)


def test_eight_bit_floats(tmp_path):
    import ml_dtypes

    raw = np.arange(256, dtype=np.uint8)
    types = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
    for name, numpy_type in types.items():
        header = json.dumps(
            {"w": {"dtype": name, "shape": [2, 128], "data_offsets": [0, 256]}}
        ).encode()
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header + raw.tobytes())
        w = lbrx.open_model(tmp_path / name)["w"]
        assert (w.dtype, w.metadata.quantization) == (lbrx.float32, name.lower())
        np.testing.assert_array_equal(
            w.numpy(), raw.view(numpy_type).astype(np.float32).reshape(2, 128)
        )


class _Broken(dict):
    """A mapping whose second look-up of a tensor fails, like a disk."""

    def __init__(self, tensors, error):
        super().__init__(tensors)
        self.error, self.looks = error, 0

    def __getitem__(self, name):
        self.looks += name == "b"
        if self.looks == 2:
            raise self.error
        return super().__getitem__(name)


@pytest.mark.parametrize("name", ["m.safetensors", "m.gguf", "m.npz", "folder"])
@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()], ids=repr)
def test_nothing_is_left_of_what_failed(name, error, tmp_path):
    tensors = {k: lbrx.tensor(np.ones((4, 32), np.float32), device="cpu") for k in "abc"}
    target = tmp_path / name
    if name != "folder":
        target.write_bytes(b"as it was")
    with pytest.raises(type(error)):
        lbrx.save(target, _Broken(tensors, error), format=None if "." in name else "mlx")
    assert [path.name for path in tmp_path.iterdir()] == ([name] if name != "folder" else [])
    assert name == "folder" or target.read_bytes() == b"as it was"


def test_too_few_bytes_are_an_error(tmp_path):
    from lbrx.files.formats import FORMATS, Outgoing, plain, writing

    short = Outgoing("w", plain(lbrx.float32), (2,), lambda: [bytes(4)])
    with pytest.raises(lbrx.FormatError, match="'w': 4 bytes were given for F32 of shape"):
        writing.write(tmp_path / "m.safetensors", [short], {}, FORMATS["safetensors"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("m", {}, "does not end in .gguf, .npz, .safetensors: give format="),
        (
            "m.bin",
            {"format": "pytorch"},
            "'pytorch' is not a format that lbrx writes: give one of gguf",
        ),
        ("m.safetensors", {"metadata": {"a": 1}}, "metadata 'a': safetensors stores only strings"),
        (
            "m.safetensors",
            {"config": {"a": 1}},
            "is one file, which cannot hold config.json: name a folder",
        ),
        ("m.safetensors", {"max_shard_size": 3}, "shards of 3 bytes need a folder"),
        ("m.gguf", {"max_shard_size": 3}, "shards of 3 bytes need a folder"),
        ("m.npz", {"metadata": {"a": "b"}}, "an .npz stores no metadata"),
        *(
            (
                "m",
                {"format": "mlx", "max_shard_size": size},
                "is not a size: write it like",
            )
            for size in (0, -1, "", "GB", "0GB", "9" * 400 + "TB")
        ),
        ("m.safetensors", {"name": "__metadata__"}, "occurs twice or is the name of the metadata"),
        ("m.npz", {"name": "w" * 65_532}, "a zip file's names have at most 65531 bytes"),
    ],
)
def test_what_cannot_be_written(path, options, message, tmp_path):
    options = dict(options)
    tensors = {options.pop("name", "w"): lbrx.ones(3, device="cpu")}
    with pytest.raises(lbrx.FormatError, match=message):
        lbrx.save(tmp_path / path, tensors, **options)
    assert list(tmp_path.iterdir()) == []
