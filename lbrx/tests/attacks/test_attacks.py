"""Hostile files raise an error that names the field, take little memory, and execute nothing."""

from __future__ import annotations

import json
import tracemalloc
import zipfile

import numpy as np
import pytest
from attack_table import ATTACKS, SOUND
from file_builders import (
    ARRAY,
    F64,
    STRING,
    U32,
    array,
    gguf,
    global_name,
    npy,
    pair,
    state_dict,
    tensor,
    text,
    torch_file,
    torch_tensor,
    zipped,
)

import lbrx
from lbrx.convert import Settings, convert
from lbrx.convert.contents import contents

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


def test_a_pickle_of_many_instructions(tmp_path):
    """Sixteen million dictionaries would take gigabytes."""
    (tmp_path / "a.pt").write_bytes(torch_file(b"}" * ((16 << 20) - 1) + b"."))
    with pytest.raises(lbrx.FormatError, match="pickle: more than 524,288 instructions"):
        lbrx.open_model(tmp_path / "a.pt")


@pytest.mark.parametrize("count", [10**12, 10**9, -1, 0, True, "2", 1e300, None])
@pytest.mark.parametrize("kind", ["gemma3_text", "gemma2", "llama"])
def test_absurd_numbers_of_layers(tmp_path, kind, count):
    """They are refused or written as they are, and nothing of that size is made."""
    sizes = {"hidden_size": 4, "num_attention_heads": 2, "head_dim": 2}
    pattern = {"sliding_window_pattern": 3}
    config = {"model_type": kind, "num_hidden_layers": count, **sizes, **pattern}
    (tmp_path / "config.json").write_text(json.dumps(config))
    lbrx.save(tmp_path / "model.safetensors", {"model.norm.weight": lbrx.ones(4, device="cpu")})
    if count is None:
        convert(tmp_path, tmp_path / "m.gguf", device="cpu")
        return
    with pytest.raises(lbrx.FormatError, match=r"config.json: num_hidden_layers: .* is not a"):
        convert(tmp_path, tmp_path / "m.gguf", device="cpu")


@pytest.mark.parametrize("quantization", [5, "x", [1], True, {"bits": 4.0, "group_size": 64}, {}])
def test_mlx_settings_of_other_types(tmp_path, quantization):
    (tmp_path / "config.json").write_text(json.dumps({"quantization": quantization}))
    words = lbrx.tensor(np.zeros((2, 8), np.uint32), device="cpu")
    tensors = {"a.weight": words, "a.scales": lbrx.ones((2, 1), device="cpu")}
    tensors["a.biases"] = lbrx.ones((2, 1), device="cpu")
    lbrx.save(tmp_path / "model.safetensors", tensors, {"format": "mlx"})
    model = lbrx.open_model(tmp_path)
    for use in (model.canonical, lambda: contents(model.files)):
        with pytest.raises(lbrx.FormatError, match=r"config.json quantization: "):
            use()


@pytest.mark.parametrize("name", ["x" * 256, "x\0y", "x" * 256 + "/y"], ids=["long", "zero", "in"])
def test_impossible_paths(tmp_path, name):
    with pytest.raises(lbrx.FormatError):
        lbrx.open_model(tmp_path / name)
    with pytest.raises(lbrx.FormatError):
        lbrx.save(tmp_path / name, {"w": lbrx.ones(2, device="cpu")}, format="npz")
    lbrx.save(tmp_path / "a.npz", {"w": lbrx.ones(2, device="cpu")})
    with pytest.raises(lbrx.FormatError):
        convert(tmp_path / "a.npz", tmp_path / name, Settings(to="npz"), device="cpu")
    with pytest.raises(lbrx.FormatError):
        convert(tmp_path / "a.npz", tmp_path / ("y" * 250), Settings(to="npz"), device="cpu")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", (F64, float("inf")), "'llama.block_count': inf is not a number"),
        ("llama.block_count", (STRING, "2"), "'llama.block_count': '2' is not a number"),
        ("llama.rope.scaling.factor", (STRING, "x"), "factor': 'x' is not a number"),
        ("tokenizer.ggml.bos_token_id", (STRING, "1"), "bos_token_id': '1' is not a number"),
        ("tokenizer.ggml.tokens", (U32, 5), "'tokenizer.ggml.tokens' is not an array of str"),
        ("tokenizer.chat_template", (ARRAY, array(U32, 1, bytes(4))), "is not a text"),
    ],
)
def test_metadata_of_other_types(tmp_path, key, value, message):
    values = {
        "general.architecture": (STRING, "llama"),
        "llama.rope.scaling.type": (STRING, "linear"),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.tokens": (ARRAY, array(STRING, 1, text("a"))),
        key: value,
    }
    pairs = [pair(name, *each) for name, each in values.items()]
    (tmp_path / "a.gguf").write_bytes(gguf(pairs, [tensor("token_embd.weight")], bytes(32)))
    with pytest.raises(lbrx.FormatError, match=message):
        convert(tmp_path / "a.gguf", tmp_path / "m", device="cpu")


def test_heads_of_no_size(tmp_path):
    """More heads than values in a row."""
    sizes = {"embedding_length": 2, "attention.head_count": 5, "rope.dimension_count": 2}
    pairs = [pair("general.architecture", STRING, "phi3")]
    pairs += [pair(f"phi3.{key}", U32, size) for key, size in sizes.items()]
    (tmp_path / "a.gguf").write_bytes(gguf(pairs, [tensor("token_embd.weight")], bytes(32)))
    with pytest.raises(lbrx.FormatError, match="heads of size 0, not of 1"):
        convert(tmp_path / "a.gguf", tmp_path / "m", device="cpu")
