"""Weights that other libraries packed: values are theirs bit for bit, and products use them packed.

The vectors are of lbrx/scripts/checkpoint_vectors.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx
from lbrx.convert import Settings, convert
from lbrx.tensors.quantized import linear

VECTORS = Path(__file__).with_name("packed_weights.safetensors")
HEADER_SIZE = int.from_bytes(VECTORS.read_bytes()[:8], "little")
HEADER = json.loads(VECTORS.read_bytes()[8 : 8 + HEADER_SIZE])
SETTINGS = json.loads(HEADER.pop("__metadata__")["settings"])
EXACT, HALF, BRAIN = np.float32, np.float16, ml_dtypes.bfloat16
# The scheme that kernels read (None where values are decoded), and the type that the library's
# result has: there both round once.
CASES = {
    "fp8 blocks": ("e4m3:64", EXACT),
    "fp8 channels": ("e4m3:128", BRAIN),
    "int8 channels": ("q8:128:symmetric", BRAIN),
    "packed 4": ("q4:32:symmetric", BRAIN),
    "packed 4 zero points": ("q4:64", HALF),
    "packed 8 channels": ("q8:128:symmetric", BRAIN),
    "packed 3": ("q3:64:symmetric", BRAIN),
    "nvfp4": ("e2m1:16", EXACT),
    "mxfp4": ("mlx:mxfp4", BRAIN),
    "mxfp8": ("mlx:mxfp8", BRAIN),
    "nf4": ("nf4:64", EXACT),
    "nf4 nested": ("nf4:64", EXACT),
    "nf4 across rows": (None, EXACT),
    "fp4": ("fp4:64", EXACT),
    "int8": ("q8:128:symmetric", HALF),  # it multiplies by two factors, one after the other
    "gptq 4": ("q4:32", EXACT),
    "gptq 4 ordered": (None, HALF),
    "gptq 3": ("q3:32", EXACT),
    "gptq 8 v2": ("q8:128", EXACT),
    "awq": ("q4:64", EXACT),
}
# What keeps its bits in MLX's files.
LOSSLESS = ("packed 4", "packed 3", "packed 4 zero points", "int8 channels", "gptq 4", "awq")
MODULE = "model.layers.0.mlp.up_proj"


def content(case: str, name: str) -> bytes:
    begin, end = HEADER[f"{case}/{name}"]["data_offsets"]
    start = 8 + HEADER_SIZE
    return VECTORS.read_bytes()[start + begin : start + end]


def values(case: str) -> np.ndarray:
    shape = HEADER[f"{case}/values"]["shape"]
    return np.frombuffer(content(case, "values"), np.float32).reshape(shape)


def checkpoint(case: str, folder: Path, **changed: bytes) -> Path:
    """A folder with the case's tensors as one layer."""
    names = [name.partition("/")[2] for name in HEADER if name.startswith(f"{case}/")]
    header, data = {}, b""
    for name in names:
        if name == "values":
            continue
        part = changed.get(name, content(case, name))
        entry = {**HEADER[f"{case}/{name}"], "data_offsets": [len(data), len(data) + len(part)]}
        header[f"{MODULE}.{name}"] = entry
        data += part
    text = json.dumps(header).encode()
    folder.mkdir()
    whole = len(text).to_bytes(8, "little") + text + data
    (folder / "model.safetensors").write_bytes(whole)
    settings = {"model_type": "llama", "quantization_config": SETTINGS[case]}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_values_are_the_library_s(case, tmp_path):
    scheme, rounded = CASES[case]
    model = lbrx.open_model(checkpoint(case, tmp_path / "model")).canonical()
    assert list(model) == [f"{MODULE}.weight"]
    weight = model[f"{MODULE}.weight"]
    assert weight.metadata.quantization == scheme
    found, wanted = (each.astype(rounded) for each in (weight.numpy(), values(case)))
    np.testing.assert_array_equal(found, wanted)
    assert "quantization_config" not in model.config


@pytest.mark.parametrize("case", [case for case, (scheme, _) in CASES.items() if scheme])
def test_products_read_them_packed(case, tmp_path, rng):
    weight = lbrx.open_model(checkpoint(case, tmp_path / "model")).canonical()[f"{MODULE}.weight"]
    wanted = values(case).astype(np.float64)
    for tokens in (1, 3):
        x = rng.standard_normal((tokens, wanted.shape[1])).astype(np.float32)
        found = linear(lbrx.tensor(x, device="metal"), weight.to_device("metal")).numpy()
        np.testing.assert_allclose(found, x @ wanted.T, atol=4e-3 * np.abs(wanted).max() * 11)
    assert weight.to_device("metal").metadata.quantization == CASES[case][0]


@pytest.mark.parametrize("case", CASES)
def test_conversion_to_floats(case, tmp_path):
    checkpoint(case, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "plain", Settings(to="safetensors", dtype="f32"))
    plain = lbrx.open_model(tmp_path / "plain")
    assert "quantization_config" not in plain.config
    found = plain[f"{MODULE}.weight"].numpy().astype(CASES[case][1])
    np.testing.assert_array_equal(found, values(case).astype(CASES[case][1]))


@pytest.mark.parametrize("case", LOSSLESS)
def test_conversion_to_mlx_keeps_every_value(case, tmp_path):
    folder = checkpoint(case, tmp_path / "model")
    convert(folder, tmp_path / "mlx", Settings(to="mlx"))
    before = lbrx.open_model(folder).canonical()[f"{MODULE}.weight"]
    after = lbrx.open_model(tmp_path / "mlx").canonical()[f"{MODULE}.weight"]
    bits, group, *_ = CASES[case][0][1:].split(":")
    assert after.metadata.quantization == f"mlx:{bits}:{group}"
    np.testing.assert_array_equal(after.numpy(), before.numpy())


@pytest.mark.parametrize(
    ("case", "name", "told"),
    [
        ("fp8 blocks", "weight_scale_inv", "does not fit"),
        ("packed 4", "weight_shape", "is not the shape of a matrix"),
        ("nf4 nested", "weight.quant_state.bitsandbytes__nf4", "is not bitsandbytes' state"),
    ],
)
def test_parts_that_do_not_fit(case, name, told, tmp_path):
    entry = HEADER[f"{case}/{name}"]
    shape = entry["shape"]
    try:
        if told == "does not fit":
            entry["shape"] = shape[::-1]
            folder = checkpoint(case, tmp_path / "model")
        else:
            wrong = b'{"quant_type": 4}' if "state" in name else b"\xff" * 16
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            folder = checkpoint(case, tmp_path / "model", **{name: wrong.ljust(size)[:size]})
    finally:
        entry["shape"] = shape
    with pytest.raises(lbrx.FormatError, match=told):
        lbrx.open_model(folder).canonical()


@pytest.mark.parametrize(
    ("case", "settings", "told"),
    [
        ("gptq 4", {"checkpoint_format": "marlin"}, "which is not read"),
        ("gptq 4 ordered", {"desc_act": False}, "inputs in another order"),
        ("awq", {"version": "gemv"}, "another kind than gemm"),
        ("fp8 blocks", {"weight_block_size": "x"}, "are not two sizes"),
    ],
)
def test_settings_that_are_not_read(case, settings, told, tmp_path):
    folder = checkpoint(case, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= settings
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(lbrx.FormatError, match=told):
        lbrx.open_model(folder).canonical()[f"{MODULE}.weight"].numpy()


def test_a_quantization_that_no_tensor_has(tmp_path):
    save_file({"w.weight": np.ones((4, 4), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    with pytest.raises(lbrx.FormatError, match="the quantization 'fp8', which no tensor has"):
        lbrx.open_model(tmp_path).canonical()
