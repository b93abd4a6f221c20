"""Extracted adapters in PEFT, and mixtures of experts in transformers and against mergekit-moe."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx
from lbrx.merging.experts import parse_mixture, plan_mixture
from lbrx.merging.lora import LoraOptions, extract_lora

sys.path.append(str(Path(__file__).parent.parent / "formats"))
import tiny_tokenizers
from tiny_models import config, shapes

torch = pytest.importorskip("torch", reason="the peers need torch: make test-peers")
transformers = pytest.importorskip("transformers", reason="the peer: make test-peers")

VOCABULARY = 620
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write(folder, kind, rng, near=None):
    folder.mkdir()
    settings = {
        **config(kind, 4, VOCABULARY),
        "architectures": [CLASSES[kind]],
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps({**settings, "torch_dtype": "float32"}))
    values = {
        n: (rng.standard_normal(s) * 0.1).astype(np.float32)
        for n, s in shapes(kind, 4, VOCABULARY).items()
    }
    if near is not None:
        values = {n: near[n] + 0.1 * v for n, v in values.items()}
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    tiny_tokenizers.write(
        folder, tiny_tokenizers.byte_level("llama-bpe"), bos_token="<|begin|>", pad_token="<|end|>"
    )
    return values


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_an_extracted_adapter_in_peft(kind, tmp_path, rng):
    """With the full rank the adapter gives the tuned model, with its norms and biases."""
    peft = pytest.importorskip("peft")
    base = write(tmp_path / "base", kind, rng)
    tuned = write(tmp_path / "tuned", kind, rng, near=base)
    extract_lora(
        tmp_path / "base", tmp_path / "tuned", tmp_path / "lora", LoraOptions(96), device="cpu"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    merged = peft.PeftModel.from_pretrained(model, tmp_path / "lora").merge_and_unload()
    found = {name: value.numpy() for name, value in merged.state_dict().items()}
    for name, values in tuned.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5, err_msg=name)


def document(folder, mode="random", shared=False):
    experts = [
        {"source_model": str(folder / "x"), "positive_prompts": ["one two three"]},
        {
            "source_model": str(folder / "y"),
            "positive_prompts": ["code"],
            "negative_prompts": ["a poem"],
        },
    ]
    result = {"base_model": str(folder / "base"), "gate_mode": mode, "experts": experts}
    if shared:
        result["shared_experts"] = [
            {"source_model": str(folder / "base"), "positive_prompts": ["all"]}
        ]
    return result


@pytest.mark.parametrize("kind", CLASSES)
def test_a_mixture_in_transformers(kind, tmp_path, rng):
    for name in ("base", "x", "y"):
        write(tmp_path / name, kind, rng)
    lbrx.merge(document(tmp_path, shared=kind == "qwen2"), tmp_path / "out", device="cpu")
    tokens = [0, 5, 9, 300, 77, 2]
    ours = lbrx.language_model(tmp_path / "out", device="cpu", cache_dtype="float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        wanted = theirs(torch.tensor([tokens])).logits[0].float().numpy()
    np.testing.assert_allclose(ours.engine.all_logits(tokens).numpy(), wanted, atol=1e-3)


@pytest.mark.parametrize(
    ("mode", "tolerance"), [("cheap_embed", 1e-5), ("hidden", 0.02), ("hidden_avg", 0.02)]
)
def test_routers_as_mergekit_moe(mode, tolerance, tmp_path, rng):
    """mergekit computes hidden states in bfloat16."""
    router = pytest.importorskip("mergekit.moe.router")
    from mergekit.moe.config import MoEMergeConfig

    for name in ("base", "x", "y"):
        write(tmp_path / name, "llama", rng)
    given = document(tmp_path, mode)
    model = plan_mixture(parse_mixture(given), device="cpu").model
    theirs = MoEMergeConfig.model_validate(given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
    rows = router.get_gate_params(theirs.base_model, tokenizer, theirs.experts, mode, device="cpu")
    opened = lbrx.StoredModel(model, model.recipes)
    for layer, wanted in enumerate(rows):
        found = opened[f"model.layers.{layer}.block_sparse_moe.gate.weight"].numpy()
        np.testing.assert_allclose(found, wanted.float().numpy(), atol=tolerance)
