"""Damaged files: each is read or raises an LbrxError, and nothing else happens."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress

import pytest
from attack_table import SOUND
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.convert import Settings, convert
from lbrx.convert.verify import verify
from lbrx.files.formats import companions, translate

_INTERESTING = [0, 1, 0x7F, 0x80, 0xFF]


@st.composite
def damaged(draw, sound: bytes) -> bytes:
    """A file with some bytes changed, moved, repeated or removed."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        size = draw(st.integers(1, 9))
        match draw(st.sampled_from(["set", "noise", "cut", "drop", "copy", "word"])):
            case "set":
                data[at : at + 1] = bytes([draw(st.sampled_from(_INTERESTING))])
            case "noise":
                data[at : at + size] = draw(st.binary(min_size=size, max_size=size))
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + size]
            case "copy":
                data[at:at] = data[at : at + size]
            case "word":
                data[at : at + 8] = draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little")
    return bytes(data)


def try_to_read(path, data: bytes) -> None:
    path.write_bytes(data)
    with suppress(lbrx.LbrxError):
        model = lbrx.open_model(path)
        for tensor in model.values():
            assert tensor.numpy().shape == tensor.shape
        assert len(translate.to_huggingface(model.files)) <= 2 * len(model)
        repr(dict(model.metadata))
        companions.folder_files(model.files, model.config)


@pytest.mark.parametrize("name", SOUND)
def test_fuzz(name, tmp_path):
    @settings(
        max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(damaged(SOUND[name]))
    def run(data):
        try_to_read(tmp_path / name, data)

    run()


@pytest.mark.full
@pytest.mark.parametrize("name", SOUND)
def test_fuzz_at_length(name, tmp_path):
    @settings(
        max_examples=12_000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(damaged(SOUND[name]))
    def run(data):
        try_to_read(tmp_path / name, data)

    run()


TARGETS = [
    *(("a.safetensors", None), ("a.npz", "f16"), ("folder", "f16"), ("folder", "mlx:4:32")),
    *(("b.gguf", None), ("b.gguf", "q8_0"), ("b.gguf", "q4_k_m")),
]


@pytest.mark.full
@pytest.mark.parametrize("name", SOUND)
def test_conversions(name, tmp_path):
    """A written file is right; after an error nothing is left."""

    @settings(
        max_examples=2_000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(damaged(SOUND[name]), st.sampled_from(TARGETS))
    def run(data, target):
        (tmp_path / name).write_bytes(data)
        path = tmp_path / "to" / target[0]
        try:
            done = convert(tmp_path / name, path, Settings(quantize=target[1]), device="cpu")
            verify(done.plan, done.checksums, lambda written: None)
        except lbrx.LbrxError:
            assert not list(path.parent.glob(".*"))
        shutil.rmtree(path.parent, ignore_errors=True)

    run()


@pytest.mark.full
@pytest.mark.parametrize(
    "head", [b"", b"GGUF\x03\0\0\0", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x02", b"\x08\x09"]
)
def test_noise(head, tmp_path):
    @settings(
        max_examples=1_000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.binary(max_size=400))
    def run(data):
        try_to_read(tmp_path / "noise", head + data)

    run()


CONFIG = {
    "model_type": "llama",
    "hidden_size": 4,
    "num_attention_heads": 2,
    "vocab_size": 4,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
TOKENIZER = {
    "added_tokens": [{"id": 3, "content": "<s>", "special": True}],
    "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
    "post_processor": {
        "processors": [{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}]
    },
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
}
SETTINGS = {
    "bos_token": {"content": "<s>"},
    "chat_template": [{"name": "default", "template": "x"}],
}
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(value: object, path: tuple = ()) -> list[tuple]:
    """The path of every value within a JSON value."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def replaced(value: object, path: tuple, new: object) -> object:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("examples", [150, pytest.param(2_000, marks=pytest.mark.full)])
def test_other_settings(examples, tmp_path):
    """A folder's JSON files with some values of other types."""
    sound = {"config.json": CONFIG, "tokenizer.json": TOKENIZER, "tokenizer_config.json": SETTINGS}
    lbrx.save(tmp_path / "model.safetensors", {"model.norm.weight": lbrx.ones(4, device="cpu")})

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def run(data):
        for name, value in sound.items():
            place = data.draw(st.sampled_from(places(value)))
            changed = (
                replaced(value, place, data.draw(VALUES)) if data.draw(st.booleans()) else value
            )
            (tmp_path / name).write_text(json.dumps(changed))
        with suppress(lbrx.LbrxError):
            model = lbrx.open_model(tmp_path)
            translate.to_gguf(model.recipes, model.config)
            metadata = companions.gguf_metadata(model.files, model.config)
            lbrx.save(tmp_path.with_suffix(".gguf"), {}, metadata)

    run()
