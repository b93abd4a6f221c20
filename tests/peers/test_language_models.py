"""Random tiny models of every architecture against transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.models import architectures, load

torch = pytest.importorskip("torch", reason="transformers needs torch: make test-peers")
transformers = pytest.importorskip("transformers", reason="the peer: make test-peers")
sys.path.insert(0, str(Path(__file__).parents[1] / "lbrx" / "formats"))

VOCABULARY = 640
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
KINDS: dict[str, list[dict[str, object]]] = {
    "llama": [{}, {"rope_scaling": LLAMA3, "rope_theta": 5000.0}, {"tie_word_embeddings": True}],
    "mistral": [{"sliding_window": 7}],
    "qwen2": [{}, {"rope_scaling": YARN}],
    "qwen3": [{"attention_bias": False}],
    "gemma2": [{"sliding_window": 6, "query_pre_attn_scalar": 24}],
    "gemma3_text": [{"sliding_window": 6, "sliding_window_pattern": 2}],
    "phi3": [{"sliding_window": 9}],
    "smollm3": [{"no_rope_layers": [1, 0], "layer_types": ["full_attention"] * 2}],
}
CASES = [(kind, settings) for kind, several in KINDS.items() for settings in several]


def test_every_architecture_is_here():
    assert sorted(KINDS) == architectures.known()


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=str)
def test_logits(kind, settings, tmp_path):
    import tiny_models
    import tiny_tokenizers

    known = tiny_models.config(kind, 4, VOCABULARY)
    known |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    del known["model_type"]
    config = transformers.AutoConfig.for_model(kind, **{**known, **settings})
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    peer = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, 0.2)
    peer.save_pretrained(tmp_path)
    tiny_tokenizers.write(tmp_path, tiny_tokenizers.byte_level("smollm"))
    tokens = np.random.default_rng(3).integers(2, VOCABULARY, 21).tolist()
    with torch.no_grad():
        wanted = peer(torch.tensor([tokens])).logits[0].double().numpy()
    model = load(tmp_path, cache_dtype="float32")
    given = model.engine.all_logits(tokens).numpy()
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(given / scale, wanted / scale, atol=2e-4)
    state = model.engine.prefill([tokens[:13]], 8)
    for i in range(13, 21):
        state = model.engine.decode(lbrx.tensor([[tokens[i]]]), state.positions)
    np.testing.assert_allclose(state.logits.numpy()[0] / scale, wanted[-1] / scale, atol=2e-4)
