"""Random tiny models of every architecture against transformers and llama.cpp, in every format."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.convert import Settings, convert
from lbrx.models import architectures
from lbrx.models.engine import CHUNK

pytest.importorskip("torch", reason="transformers needs torch: make test-peers")
pytest.importorskip("transformers", reason="the peer: make test-peers")
sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import peer_models
import stored_cases

SEEDS = (5, 6)
ROUNDED = 1e-3  # the tolerance where weights are quantized
# Settings that GGUF has no key for, and llama.cpp ignores: windows (except Gemma's and Phi's),
# lists of layers without RoPE, YaRN's finer settings, activations, scales of queries, no caps.
LOST_IN_GGUF = {
    *(
        "llama, gelu",
        "mistral",
        "mixtral",
        "qwen2, window",
        "qwen2, listed window",
        "qwen3, window",
    ),
    *("qwen2, yarn", "qwen2, yarn untruncated", "qwen2, yarn scales"),
    *("gemma2", "gemma2, no caps", "gemma3_text, caps", "smollm3, listed", "smollm3, window"),
}
# They have no table of names.
RECURRENT = ("lfm2", "qwen3_next", "mamba2", "granitemoehybrid", "falcon_h1")
NOT_IN_GGUF = (*RECURRENT, "glm,", "glm4_moe", "deepseek", "gpt2", "gpt_oss")
# llama.cpp does not support these biases, disables Phi's window, and has contexts of at least 256
# tokens, which use the factors for long texts.
NOT_LLAMA_CPPS = {
    *("qwen3, biases", "gemma2, untied", "smollm3, biases"),
    *("phi3", "phi3, short texts", "llama, longrope"),
}


def close(given: np.ndarray, wanted: np.ndarray, tolerance: float = 2e-4) -> None:
    assert given.shape == wanted.shape
    error = np.abs(given - wanted).max() / np.abs(wanted).max()
    assert error < tolerance, f"differs by {error:.2g}"


def check(path: Path, tokens: list[int], wanted: np.ndarray, tolerance: float = 2e-4) -> None:
    """All at once, then the second half token by token."""
    # Long enough for the factors for long texts, where a model has them.
    model = lbrx.language_model(path, context=len(tokens) + 1, cache_dtype="float32")
    close(model.engine.all_logits(tokens).numpy(), wanted, tolerance)
    half = len(tokens) // 2
    state = model.engine.prefill([tokens[:half]], len(tokens) - half)
    for place in range(half, len(tokens)):
        close(state.logits.numpy()[0], wanted[place - 1], tolerance)
        state = model.engine.decode(lbrx.tensor([[tokens[place]]]), state.positions)
    close(state.logits.numpy()[0], wanted[-1], tolerance)


def test_every_architecture_is_here():
    kinds = {peer_models.kind_of(case) for case in peer_models.CASES}
    assert sorted(kinds) == architectures.known()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", peer_models.CASES)
def test_logits(case, seed, tmp_path):
    peer, tokens = peer_models.make(case, seed), peer_models.prompt(seed)
    folder = peer_models.write(peer, tmp_path)
    check(folder, tokens, peer_models.logits(peer, tokens))


@pytest.mark.parametrize("case", ["mistral", "gemma3_text, pattern"])
def test_long_texts(case, tmp_path):
    """Longer than a chunk of the prompt, with windows that span blocks of keys."""
    peer = peer_models.make(case, 5, sliding_window=150, max_position_embeddings=1024)
    tokens = peer_models.prompt(5, CHUNK + 90)
    folder = peer_models.write(peer, tmp_path)
    wanted = peer_models.logits(peer, tokens)
    model = lbrx.language_model(folder, cache_dtype="float32")
    known = CHUNK + 70
    state = model.engine.prefill([tokens[:known]], len(tokens) - known)
    for place in range(known, len(tokens)):
        close(state.logits.numpy()[0], wanted[place - 1])
        state = model.engine.decode(lbrx.tensor([[tokens[place]]]), state.positions)


@pytest.mark.parametrize("case", ["llama, tied", "phi3, long texts"])
def test_several_files(case, tmp_path):
    peer, tokens = peer_models.make(case, 7), peer_models.prompt(7)
    folder = peer_models.write(peer, tmp_path, max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    check(folder, tokens, peer_models.logits(peer, tokens))


def test_the_language_part_of_a_larger_model(tmp_path):
    """Multimodal Gemma 3, as a folder and as the GGUF of its language part."""
    peer, tokens = peer_models.make_multimodal_gemma(7), peer_models.prompt(7)
    folder, wanted = peer_models.write(peer, tmp_path / "folder"), peer_models.logits(peer, tokens)
    check(folder, tokens, wanted)
    convert(folder, tmp_path / "model.gguf")
    check(tmp_path / "model.gguf", tokens, wanted)


def llama_cpps(path: Path, tokens: list[int]) -> np.ndarray:
    llama_cpp = pytest.importorskip("llama_cpp", reason="the peer: make test-peers")
    exact = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    model = llama_cpp.Llama(
        str(path), n_ctx=64, n_threads=1, verbose=False, logits_all=True, **exact
    )
    model.eval(tokens)
    return np.array(model.scores[: len(tokens)], np.float64)


@pytest.mark.parametrize(
    "case",
    [
        c
        for c in peer_models.CASES
        if not f"{c},".startswith(NOT_IN_GGUF) and c not in stored_cases.CASES
    ],
)
def test_gguf(case, tmp_path):
    peer, tokens = peer_models.make(case, 8), peer_models.prompt(8)
    folder, path = peer_models.write(peer, tmp_path / "folder"), tmp_path / "model.gguf"
    convert(folder, path)
    wanted = peer_models.logits(peer, tokens)
    if case in LOST_IN_GGUF:
        wanted = llama_cpps(path, tokens)
    elif case not in NOT_LLAMA_CPPS:
        close(llama_cpps(path, tokens), wanted, 1e-3)
    check(path, tokens, wanted, 1e-3 if case in LOST_IN_GGUF else 2e-4)


QUANTIZED = [
    ("llama, biases", "q8_0"),
    ("qwen2", "q4_0"),
    ("gemma3_text", "q5_1"),
    ("phi3", "q4_1"),
]


@pytest.mark.parametrize(("case", "scheme"), QUANTIZED)
def test_quantized_gguf(case, scheme, tmp_path):
    """Transformers computes with the dequantized weights."""
    peer, tokens = peer_models.make(case, 10), peer_models.prompt(10)
    folder, path = peer_models.write(peer, tmp_path / "folder"), tmp_path / "model.gguf"
    convert(folder, path, Settings(quantize=scheme))
    stored = lbrx.open_model(path).canonical()
    peer_models.assign(peer, {name: stored[name].numpy() for name in stored})
    check(path, tokens, peer_models.logits(peer, tokens), ROUNDED)


MLX = [("llama, tied", 4, 32), ("qwen3", 8, 32), ("gemma2, caps", 4, 32), ("phi3", 8, 32)]


@pytest.mark.parametrize(("case", "bits", "group"), MLX)
def test_mlx(case, bits, group, tmp_path):
    """A folder as mlx-lm writes it; transformers computes with the dequantized weights."""
    pytest.importorskip("mlx.core", reason="the peer: make test-peers")
    peer, tokens = peer_models.make(case, 9), peer_models.prompt(9)
    quantize_with_mlx(peer_models.write(peer, tmp_path), peer, bits, group)
    check(tmp_path, tokens, peer_models.logits(peer, tokens), ROUNDED)


def quantize_with_mlx(folder: Path, peer: Any, bits: int, group: int) -> None:
    """Quantize a folder's weights, and the peer's. One matrix is left unquantized."""
    import mlx.core as mx

    tensors, values, scheme = {}, {}, {"group_size": group, "bits": bits}
    skipped = "model.layers.0.mlp.down_proj"
    for name, weight in mx.load(str(folder / "model.safetensors")).items():
        if weight.ndim != 2 or name.startswith(skipped):
            tensors[name] = weight
            continue
        parts = mx.quantize(weight, **scheme)
        stem = name.removesuffix("weight")
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            tensors[stem + part] = array
        values[name] = np.array(mx.dequantize(*parts, **scheme))
    peer_models.assign(peer, values)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {**scheme, skipped: False}
    (folder / "config.json").write_text(json.dumps(config))
