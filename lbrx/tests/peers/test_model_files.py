"""Tiny models of every architecture through our files: llama.cpp computes from the GGUF what transformers
computes from the folder it was made of, and transformers the same from the folder made of that GGUF."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx
from lbrx.files.formats import companions
from lbrx.files.formats.architecture_tables import ARCHITECTURES

torch = pytest.importorskip("torch", reason="torch computes the expected logits")
transformers = pytest.importorskip(
    "transformers", reason="transformers computes the expected logits"
)

sys.path.append(str(Path(__file__).parents[1] / "formats"))
PROMPT = [5, 17, 300, 42, 9, 77, 123, 60]
# Settings that transformers needs and our tables do not have.
MORE = {
    "hidden_act": "silu",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 16,
    "original_max_position_embeddings": 64,
    "use_sliding_window": False,
    "pad_token_id": 0,
    "no_rope_layer_interval": 4,
    "rope_local_base_freq": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BY_KIND = {
    "gemma2": {
        "sliding_window": 32,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {"sliding_window": 32},
    "qwen2": {"attention_bias": True},
}
SENTENCEPIECE = {"mistral", "mixtral", "gemma2", "gemma3_text", "phi3"}


@pytest.fixture(params=ARCHITECTURES)
def model(request, tmp_path):
    """A folder of Hugging Face's, and the GGUF made of it."""
    from tiny_models import config, shapes, to_gguf_file
    from tiny_tokenizers import byte_level, sentencepiece, write

    kind, rng = request.param, np.random.default_rng(5)
    tokenizer = sentencepiece() if kind in SENTENCEPIECE else byte_level("qwen2")
    tokenizer.add_special_tokens(["<|endoftext|>"])  # llama.cpp looks for it in every phi3
    write(tmp_path / "hf", tokenizer, eos_token="</s>" if kind in SENTENCEPIECE else "<|end|>")
    size = tokenizer.get_vocab_size()
    settings = {**config(kind, 4, size), **MORE, **BY_KIND.get(kind, {})}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(settings))
    tensors = {
        n: rng.normal(0, 0.1, s).astype(np.float32) for n, s in shapes(kind, 4, size).items()
    }
    save_file(tensors, tmp_path / "hf" / "model.safetensors", {"format": "pt"})
    to_gguf_file(tmp_path / "hf", tmp_path / "m.gguf")
    return tmp_path / "hf", tmp_path / "m.gguf"


def expected(folder):
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return network.eval()(torch.tensor([PROMPT])).logits[0].numpy()


def test_llama_cpp(model):
    """Its cache of keys and values is float16, which is where differences come from."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python reads the GGUF")
    folder, path = model
    logits = expected(folder)
    network = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False, logits_all=True)
    network.eval(PROMPT)
    found = np.array(network.scores[: len(PROMPT)])
    np.testing.assert_allclose(found, logits, atol=2e-3 * np.abs(logits).max())


def test_transformers(model, tmp_path):
    folder, path = model
    opened = lbrx.open_model(path)
    lbrx.save(tmp_path / "back", opened.canonical(), format="safetensors", config=opened.config)
    for name, content in companions.folder_files(opened.files, opened.config).items():
        (tmp_path / "back" / name).write_bytes(content)
    np.testing.assert_allclose(expected(tmp_path / "back"), expected(folder), atol=1e-5)
