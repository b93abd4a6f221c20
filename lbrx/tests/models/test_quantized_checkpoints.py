"""Checkpoints in quantizations that lbrx does not read are refused by name wherever weights are
used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import lbrx
from lbrx.cli import main
from lbrx.convert import Settings, convert

LAYER = "model.layers.0.mlp.up_proj"
PLAIN = np.ones(4, np.float32)
# The library, what it writes to config.json, and the tensors that it adds to a layer.
KINDS = {
    "hqq": ({"quant_method": "hqq"}, {f"{LAYER}.W_q": PLAIN, f"{LAYER}.zero": PLAIN}),
    "quanto": ({"quant_method": "quanto"}, {f"{LAYER}.weight._data": PLAIN}),
    "aqlm": ({"quant_method": "aqlm"}, {f"{LAYER}.codebooks": PLAIN}),
    "exl3": ({"quant_method": "exl3"}, {f"{LAYER}.trellis": PLAIN}),
    "scales of plain weights": ({"quant_method": "magic"}, {f"{LAYER}.weight_scale_inv": PLAIN}),
    "static scales": ({"quant_method": "other"}, {f"{LAYER}.input_scale": PLAIN}),
    "bitsandbytes without codes": ({"bnb": 1}, {f"{LAYER}.SCB": PLAIN}),
    "unheard of": ("magic", {f"{LAYER}.weight_scale": PLAIN}),
}


@pytest.fixture(scope="module")
def plain(make_model):
    return make_model("llama")


def changed(plain: Path, target: Path, config: dict, tensors: dict) -> Path:
    """A copy of a model with other settings and more tensors."""
    shutil.copytree(plain, target)
    settings = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**settings, **config}))
    weights = target / "model.safetensors"
    save_file({**load_file(weights), **tensors}, weights)
    return target


@pytest.mark.parametrize("shown_by", ["config", "tensors"])
@pytest.mark.parametrize("kind", KINDS)
def test_refused_everywhere(kind, shown_by, plain, tmp_path, capsys):
    settings, tensors = KINDS[kind]
    by_config = shown_by == "config"
    folder = changed(
        plain,
        tmp_path / "model",
        {"quantization_config": settings} if by_config else {},
        {} if by_config else tensors,
    )
    wanted = r"quantized \(.+\), which lbrx does not read: use the checkpoint from which"
    for used in (
        lambda: lbrx.language_model(folder),
        lambda: lbrx.open_model(folder).canonical(),
        lambda: convert(folder, tmp_path / "out", Settings(to="safetensors")),
        lambda: convert(folder, tmp_path / "out", Settings(to="mlx")),
        lambda: convert(folder, tmp_path / "out.gguf"),
    ):
        with pytest.raises(lbrx.FormatError, match=wanted):
            used()
    assert not (tmp_path / "out").exists()
    (tmp_path / "text").write_text("Hello, world!")
    for command in (["generate", folder, "-p", "Hello"], ["perplexity", folder, tmp_path / "text"]):
        assert main([*map(str, command)]) == 1
        assert "which lbrx does not read" in capsys.readouterr().err
    # The stored tensors themselves can be looked at.
    assert set(tensors) <= set(lbrx.open_model(folder)) or by_config


@pytest.mark.parametrize("settings", [5, "4bit", {"bits": 4}, [1]], ids=str)
@pytest.mark.parametrize("as_mlx", [False, True])
def test_mlx_settings_that_cannot_be_read(settings, as_mlx, plain, tmp_path, capsys):
    folder = changed(plain, tmp_path / "model", {"quantization": settings}, {})
    if as_mlx:
        weights = folder / "model.safetensors"
        save_file(load_file(weights), weights, {"format": "mlx"})
    with pytest.raises(lbrx.FormatError, match=r"quantization: .* is not MLX's: it has to be"):
        lbrx.language_model(folder)
    assert main(["inspect", str(folder)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_mlx_weights_without_their_settings(plain, tmp_path):
    """MLX's words and scales, where no config.json says how they are packed."""
    convert(plain, tmp_path / "mlx", Settings(to="mlx", quantize="mlx:4:64"))
    assert lbrx.open_model(tmp_path / "mlx").canonical()
    assert lbrx.open_model(tmp_path / "mlx" / "model.safetensors").canonical()
    alone = (tmp_path / "mlx" / "model.safetensors").rename(tmp_path / "alone.safetensors")
    with pytest.raises(lbrx.FormatError, match=r"open MLX's folder with its config\.json"):
        lbrx.open_model(alone).canonical()


@pytest.mark.parametrize("settings", [None, {}])
def test_no_quantization(settings, plain, tmp_path):
    folder = changed(plain, tmp_path / "model", {"quantization_config": settings}, {})
    assert lbrx.language_model(folder).config.layers == 2


def test_integers_are_not_weights(plain, tmp_path):
    """Codes whose scales are missing."""
    folder = changed(plain, tmp_path / "model", {}, {})
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    tensors[f"{LAYER}.weight"] = tensors[f"{LAYER}.weight"].astype(np.int8)
    save_file(tensors, weights)
    with pytest.raises(lbrx.FormatError, match=rf"{LAYER}.weight has the type int8: weights are"):
        lbrx.language_model(folder)


def test_a_model_whose_layers_are_integers(make_model, tmp_path):
    """bitsandbytes' int8 in a mixture of experts: its experts and attention multiply packed."""
    source = make_model("qwen3_moe")
    tensors = load_file(source / "model.safetensors")
    packed, values = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if not name.endswith("_proj.weight") or weight.shape[1] % 32:
            continue
        sizes = np.abs(weight).max(axis=1, keepdims=True)
        codes = np.rint(weight / sizes * 127).astype(np.int8)
        packed |= {name: codes, name.replace("weight", "SCB"): sizes[:, 0].astype(np.float32)}
        values[name] = (codes * sizes / 127).astype(np.float32)
    assert len(packed) > len(tensors)
    for folder, stored in (("packed", packed), ("plain", values)):
        shutil.copytree(source, tmp_path / folder)
        save_file(stored, tmp_path / folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    changed_config = {**config, "quantization_config": settings}
    (tmp_path / "packed" / "config.json").write_text(json.dumps(changed_config))
    tokens = np.random.default_rng(3).integers(2, 300, 23).tolist()
    found, wanted = (
        lbrx.language_model(tmp_path / folder, cache_dtype="float32").log_probabilities(tokens)
        for folder in ("packed", "plain")
    )
    # Processors multiply packed weights with 16-bit activations.
    assert np.abs(np.subtract(found, wanted)).max() < 2e-3
    opened = lbrx.language_model(tmp_path / "packed").engine.network.layers[0]
    schemes = {opened.mlp.output.metadata.quantization, opened.mlp.inputs[0].metadata.quantization}
    assert all(scheme and scheme.startswith("q8:") for scheme in schemes)
