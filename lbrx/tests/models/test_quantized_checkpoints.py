"""Checkpoints that other libraries quantized are refused by name wherever weights are used."""

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
    "fp8": ({"quant_method": "fp8"}, {f"{LAYER}.weight_scale_inv": PLAIN}),
    "fp8 static": ({"quant_method": "fbgemm_fp8"}, {f"{LAYER}.input_scale": PLAIN}),
    "bitsandbytes int8": ({"load_in_8bit": True}, {f"{LAYER}.SCB": PLAIN}),
    "bitsandbytes nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {f"{LAYER}.weight.absmax": PLAIN, f"{LAYER}.weight.quant_map": PLAIN},
    ),
    "bitsandbytes state": ({"bnb": 1}, {f"{LAYER}.weight.quant_state.bitsandbytes__nf4": PLAIN}),
    "gptq": (
        {"quant_method": "gptq", "bits": 4},
        {f"{LAYER}.{part}": PLAIN for part in ("qweight", "qzeros", "scales", "g_idx")},
    ),
    "awq": ({"quant_method": "awq"}, {f"{LAYER}.qweight": PLAIN, f"{LAYER}.scales": PLAIN}),
    "hqq": ({"quant_method": "hqq"}, {f"{LAYER}.W_q": PLAIN, f"{LAYER}.zero": PLAIN}),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        {f"{LAYER}.weight_packed": PLAIN, f"{LAYER}.weight_shape": PLAIN},
    ),
    "mxfp6": ({"quant_method": "mxfp6"}, {"model.layers.0.mlp.experts.down_proj_blocks": PLAIN}),
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
