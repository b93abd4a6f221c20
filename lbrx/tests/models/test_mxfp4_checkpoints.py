"""Experts in MXFP4, in Hugging Face's layout: used as they are stored."""

from __future__ import annotations

import json

import numpy as np
import pytest
import reference_model
from device_memory import tolerance

import lbrx

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
VALUES = np.concatenate([VALUES, -VALUES])  # of E2M1's codes
SETTINGS = {"quantization_config": {"quant_method": "mxfp4"}}


def packed(rng, experts, rows, columns):
    """Random blocks and scales, and what they stand for: (experts, rows, columns)."""
    blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16)).astype(np.uint8)
    scales = rng.integers(122, 126, (experts, rows, columns // 32)).astype(np.uint8)
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*scales.shape, 32)
    values = VALUES[codes] * 2.0 ** (scales.astype(np.float64) - 127)[..., None]
    return blocks, scales, values.reshape(experts, rows, columns)


@pytest.fixture
def model(make_model, rng, tmp_path):
    """A folder with packed experts, and the weights that it stands for."""
    folder = make_model("gpt_oss")
    stored = lbrx.open_model(folder)
    tensors = {name: stored[name].numpy() for name in stored}
    values = dict(tensors)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks, scales, decoded = packed(rng, experts, outputs, inputs)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values[name] = decoded.swapaxes(1, 2)
    config = json.loads((folder / "config.json").read_text())
    lbrx.save(tmp_path / "m", tensors, format="safetensors", config={**config, **SETTINGS})
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "m" / file).write_bytes((folder / file).read_bytes())
    return tmp_path / "m", {**config, "swiglu_limit": 1.5}, values


def test_logits(model):
    folder, config, values = model
    tokens = np.random.default_rng(3).integers(2, 600, 17).tolist()
    wanted = reference_model.logits(config, values, tokens)
    opened = lbrx.language_model(folder, cache_dtype="float32")
    found = opened.engine.all_logits(tokens).numpy()
    # Processors multiply packed weights with 16-bit activations.
    assert np.abs(found - wanted).max() < tolerance(1e-3, 2e-2) * np.abs(wanted).max()
    mlp = opened.engine.network.layers[0].mlp
    assert mlp.gate_up.metadata.quantization == "mlx:mxfp4"


def test_scales_that_do_not_fit(model):
    folder, *_ = model
    stored = lbrx.open_model(folder)
    tensors = {name: stored[name].numpy() for name in stored}
    name = next(name for name in tensors if name.endswith("down_proj_scales"))
    for change, told in ((tensors[name][:, 1:], "MXFP4 needs bytes of"), (None, "has no scales")):
        changed = {**tensors, name: change} if change is not None else dict(tensors)
        if change is None:
            del changed[name]
        path = folder.parent / told.split()[-1]
        lbrx.save(path, changed, format="safetensors", config=stored.config)
        with pytest.raises(lbrx.FormatError, match=told):
            lbrx.open_model(path).canonical()
