"""Damaged files: each is read, or refused with an error of lbrx's, and nothing else happens."""

from __future__ import annotations

import pytest
from attack_table import SOUND
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.formats import translate

_INTERESTING = [0, 1, 0x7F, 0x80, 0xFF]


@st.composite
def damaged(draw, sound: bytes) -> bytes:
    """A file with some bytes changed, moved, repeated or gone."""
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
    try:
        model = lbrx.open_model(path)
        for tensor in model.values():
            assert tensor.numpy().shape == tensor.shape
        translate.to_huggingface(model.files)
        repr(dict(model.metadata))
    except lbrx.LbrxError as error:
        assert str(error)


@pytest.mark.parametrize("name", SOUND)
def test_fuzz(name, tmp_path):
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged(SOUND[name]))
    def run(data):
        try_to_read(tmp_path / name, data)

    run()


@pytest.mark.full
@pytest.mark.parametrize("name", SOUND)
def test_fuzz_at_length(name, tmp_path):
    @settings(max_examples=20_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged(SOUND[name]))
    def run(data):
        try_to_read(tmp_path / name, data)

    run()


@pytest.mark.full
@pytest.mark.parametrize("head", [b"", b"GGUF\x03\0\0\0", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x02", b"\x08\x09"])
def test_noise(head, tmp_path):
    @settings(max_examples=5_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=400))
    def run(data):
        try_to_read(tmp_path / "noise", head + data)

    run()
