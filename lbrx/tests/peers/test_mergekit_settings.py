"""What surrounds a method, against mergekit: gradients, filters, slices, modules, tokenizers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

import lbrx

pytest.importorskip("mergekit")
sys.path.append(str(Path(__file__).parent.parent / "formats"))
import tiny_tokenizers
from tiny_models import config, shapes

ADDED = {"base": (), "same": (), "one": ("<x>",), "two": ("<y>", "<x>")}
_UNUSED = ("num_local_experts", "num_experts_per_tok", "partial_rotary_factor")


def linear(*models, **settings):
    entries = [{"model": name, "parameters": {"weight": weight}} for name, weight in models]
    return {"merge_method": "linear", "models": entries, **settings}


FILTERS = [
    {"filter": "self_attn", "value": [1, 0.2]},
    {"filter": "mlp", "value": 0.3},
    {"value": 0.7},
]
SCALES = [
    {"filter": "o_proj", "value": 0.0},
    {"filter": "down_proj", "value": 0.5},
    {"value": 1.0},
]
TOKENS = {
    "<y>": {"source": {"kind": "zero"}, "force": True},
    "<new>": {"source": {"kind": "model_token", "model": "two", "token": "<y>"}},
    "<user>": {"source": "two", "force": True},
}
CONFIGURATIONS = {
    "gradients and filters": linear(("base", [0, 0.3, 1]), ("same", FILTERS)),
    "slices": {
        "merge_method": "linear",
        "parameters": {"weight": [0.5, 0.25]},
        "slices": [
            {
                "sources": [
                    {"model": "base", "layer_range": [0, 2], "parameters": {"weight": [0.2, 0.9]}},
                    {"model": "same", "layer_range": [0, 2]},
                ],
                "parameters": {"weight": 0.4},
            },
            {"sources": [{"model": "same", "layer_range": [1, 2]}]},
        ],
    },
    "layers stacked": {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [{"model": "base", "layer_range": [0, 2]}]},
            {
                "sources": [
                    {"model": "same", "layer_range": [0, 1], "parameters": {"scale": SCALES}}
                ]
            },
        ],
    },
    "modules": {
        "merge_method": "linear",
        "modules": {
            "default": {
                "models": linear(("base", 1), ("same", 2))["models"],
                "parameters": {"normalize": False},
            }
        },
    },
    "union with a base": linear(
        ("base", 1), ("one", 1), ("two", 1), base_model="base", tokenizer_source="union"
    ),
    "union, padded": linear(
        ("one", 1), ("two", 3), tokenizer={"source": "union", "pad_to_multiple_of": 64}
    ),
    "the base's tokenizer": linear(
        ("base", 1), ("one", 1), ("two", 1), base_model="base", tokenizer_source="base"
    ),
    "another tokenizer": linear(
        ("base", 1), ("one", 1), ("two", 1), base_model="base", tokenizer_source="two"
    ),
    "single tokens": linear(
        ("one", 1), ("two", 2), base_model="one", tokenizer={"source": "union", "tokens": TOKENS}
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four tiny models, some with tokens of their own."""
    result = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(5)
    known = tiny_tokenizers.byte_level("llama-bpe")
    for name, tokens in ADDED.items():
        tokenizer = Tokenizer.from_str(known.to_str())
        tokenizer.add_tokens(list(tokens))
        size = tokenizer.get_vocab_size()
        settings = {k: v for k, v in config("llama", 4, size).items() if k not in _UNUSED}
        settings |= {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
        kind = "PreTrainedTokenizerFast"
        tiny_tokenizers.write(result / name, tokenizer, tokenizer_class=kind, bos_token="<|begin|>")
        (result / name / "config.json").write_text(json.dumps(settings))
        values = {
            tensor: (rng.standard_normal(shape) * 0.1).astype(np.float32)
            for tensor, shape in shapes("llama", 4, size).items()
        }
        save_file(values, result / name / "model.safetensors", {"format": "pt"})
    return result


def in_folder(value, folder):
    """A configuration with the models' paths."""
    if isinstance(value, dict):
        return {key: in_folder(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [in_folder(item, folder) for item in value]
    is_model = value in ADDED and (folder / value).is_dir()
    return str(folder / value) if is_model else value


def vocabulary(path):
    return Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_settings(folder, tmp_path, name):
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    document = in_folder(CONFIGURATIONS[name] | {"dtype": "float32"}, folder)
    if "tokenizer_source" in document and document["tokenizer_source"].endswith("/base"):
        document["tokenizer_source"] = "base"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    run_merge(MergeConfiguration.model_validate(document), str(theirs), MergeOptions(quiet=True))
    lbrx.merge(document, ours, device="cpu")
    expected, found = lbrx.open_model(theirs), lbrx.open_model(ours)
    assert set(found) == set(expected)
    for key in ("num_hidden_layers", "vocab_size"):
        assert found.config[key] == expected.config[key]
    # mergekit adds the tokens of other models in the order of a set.
    new, old = vocabulary(ours), vocabulary(theirs)
    assert new.keys() == old.keys()
    order = [new[text] for text in sorted(old, key=old.__getitem__)]
    for tensor in expected:
        values, wanted = found[tensor].numpy(), expected[tensor].numpy()
        assert values.shape == wanted.shape
        if "embed_tokens" in tensor or "lm_head" in tensor:
            values = np.concatenate([values[order], values[len(order) :]])
        np.testing.assert_allclose(values, wanted, atol=1e-6)
