"""Adapters that PEFT saves, applied on the fly, against what PEFT merges."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx

sys.path.append(str(Path(__file__).parent.parent / "formats"))
from tiny_models import config, shapes

torch = pytest.importorskip("torch", reason="PEFT needs torch: make test-peers")
transformers = pytest.importorskip("transformers", reason="the peer: make test-peers")
peft = pytest.importorskip("peft", reason="the peer: make test-peers")

SETTINGS = {
    "LoRA": {},
    "rsLoRA": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"k_proj": 9}},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_adapters(tmp_path, rng, name):
    model = tmp_path / "model"
    model.mkdir()
    settings = {**config("llama", 4, 64), "architectures": ["LlamaForCausalLM"]}
    (model / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": False}))
    values = {
        tensor: (rng.standard_normal(shape) * 0.1).astype(np.float32)
        for tensor, shape in shapes("llama", 4, 64).items()
    }
    save_file(values, model / "model.safetensors", {"format": "pt"})
    usual = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "k_proj", "up_proj"]}
    wanted = peft.LoraConfig(init_lora_weights=False, **{**usual, **SETTINGS[name]})
    theirs = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(model), wanted)
    with torch.no_grad():
        for parameter, tensor in theirs.named_parameters():
            if "modules_to_save" in parameter or "magnitude" in parameter:
                tensor.mul_(1.1)
    theirs.save_pretrained(tmp_path / "adapter")
    theirs.merge_and_unload().save_pretrained(tmp_path / "merged")
    document = {
        "merge_method": "passthrough",
        "models": [{"model": {"model": str(model), "lora": str(tmp_path / "adapter")}}],
    }
    lbrx.merge(document, tmp_path / "ours", device="cpu")
    expected, found = lbrx.open_model(tmp_path / "merged"), lbrx.open_model(tmp_path / "ours")
    assert set(found) == set(expected)
    for tensor in expected:
        np.testing.assert_allclose(found[tensor].numpy(), expected[tensor].numpy(), atol=1e-6)
    assert not np.array_equal(
        found["model.layers.0.self_attn.q_proj.weight"].numpy(),
        values["model.layers.0.self_attn.q_proj.weight"],
    )
