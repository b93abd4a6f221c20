"""Merged models against numpy: methods are tested in test_methods, here what surrounds them."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from merge_checks import linear, mean, merged, stacked
from tiny_models import to_gguf_file

import lbrx
from lbrx.convert import Settings, convert

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def pair(model, tmp_path):
    """Two models of one architecture: their paths and tensors."""
    return (tmp_path / "a", model("a")), (tmp_path / "b", model("b"))


def test_linear_is_written_with_its_companions(pair, tmp_path):
    (a, ta), (b, tb) = pair
    found = merged(linear((a, 3), (b, 1)), tmp_path / "out")
    assert set(found) == set(ta)
    for name in ta:
        np.testing.assert_allclose(found[name].numpy(), mean(ta[name], tb[name], 0.75), atol=1e-6)
    assert found.config["num_hidden_layers"] == 2
    card = (tmp_path / "out" / "README.md").read_text()
    assert "merge_method: linear" in card
    assert str(a) in card
    assert "weight: 3" in (tmp_path / "out" / "mergekit_config.yml").read_text()


def test_without_out_tensors_are_lazy(pair):
    (a, ta), (b, tb) = pair
    model = lbrx.merge(linear((a, 1), (b, 1), dtype="bfloat16"))
    assert set(model) == set(ta)
    found = model[Q].to_device("cpu").numpy()
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
        found, (ta[Q] * np.float32(0.5) + tb[Q] * np.float32(0.5)).astype(found.dtype)
    )


@pytest.mark.parametrize(
    "dtypes", [("float16", None), (None, "bfloat16"), ("float32", "float16")], ids=str
)
def test_types_of_the_result(pair, tmp_path, dtypes):
    """`out_dtype` decides, then `dtype`; the only rounding is the last."""
    (a, ta), (b, tb) = pair
    settings = {k: v for k, v in zip(("dtype", "out_dtype"), dtypes, strict=True) if v}
    found = merged(linear((a, 1), (b, 1), **settings), tmp_path / "out")[Q]
    assert found.dtype == (dtypes[1] or dtypes[0])
    half = np.float32(0.5)
    np.testing.assert_array_equal(
        found.numpy(), (ta[Q] * half + tb[Q] * half).astype(found.numpy().dtype)
    )


def test_the_stored_type_is_kept(model, tmp_path):
    model("a", dtype=ml_dtypes.bfloat16)
    model("b", dtype=np.float32)
    found = merged(linear((tmp_path / "a", 1), (tmp_path / "b", 1)), tmp_path / "out")
    assert found[Q].dtype == "bfloat16"
    assert found.config["torch_dtype"] == "bfloat16"


def test_layers_are_stacked_bit_for_bit(pair, tmp_path):
    (a, ta), (b, tb) = pair
    config = stacked((a, 0, 2), (b, 1, 2), (a, 1, 2))
    found = merged(config, tmp_path / "out")
    assert found.config["num_hidden_layers"] == 4
    origins = [(ta, 0), (ta, 1), (tb, 1), (ta, 1)]
    for layer, (tensors, number) in enumerate(origins):
        for rest in ("self_attn.q_proj.weight", "input_layernorm.weight"):
            new = found[f"model.layers.{layer}.{rest}"].numpy()
            np.testing.assert_array_equal(new, tensors[f"model.layers.{number}.{rest}"])
    np.testing.assert_array_equal(
        found["model.embed_tokens.weight"].numpy(), ta["model.embed_tokens.weight"]
    )
    np.testing.assert_array_equal(found["lm_head.weight"].numpy(), ta["lm_head.weight"])
    assert len(found) == len(ta) + 2 * 9


def test_the_ends_come_from_the_first_and_the_last_slice(pair, tmp_path):
    (a, ta), (b, tb) = pair
    found = merged(stacked((a, 0, 1), (b, 0, 1)), tmp_path / "out")
    np.testing.assert_array_equal(
        found["model.embed_tokens.weight"].numpy(), ta["model.embed_tokens.weight"]
    )
    np.testing.assert_array_equal(found["model.norm.weight"].numpy(), tb["model.norm.weight"])


def test_passthrough_scales_where_a_filter_matches(pair, tmp_path):
    (a, ta), _ = pair
    config = stacked((a, 0, 2))
    config["parameters"] = {"scale": [{"filter": "o_proj", "value": 0}, {"value": 1}]}
    found = merged(config, tmp_path / "out")
    assert not found["model.layers.0.self_attn.o_proj.weight"].numpy().any()
    np.testing.assert_array_equal(found[Q].numpy(), ta[Q])


def test_gradients_run_over_the_layers_of_a_slice(pair, tmp_path):
    (a, ta), (b, tb) = pair
    config = linear((a, [0, 1]), (b, [1, 0]))
    found = merged(config, tmp_path / "out")
    np.testing.assert_allclose(found[Q].numpy(), ta[Q], atol=1e-6)
    first = Q.replace("layers.1", "layers.0")
    np.testing.assert_allclose(found[first].numpy(), tb[first], atol=1e-6)
    np.testing.assert_allclose(
        found["model.norm.weight"].numpy(), tb["model.norm.weight"], atol=1e-6
    )


def test_slices_of_two_models_with_parameters_of_each(pair, tmp_path):
    (a, ta), (b, tb) = pair
    sources = [
        {"model": str(a), "layer_range": [0, 1], "parameters": {"weight": 1}},
        {"model": str(b), "layer_range": [1, 2], "parameters": {"weight": 3}},
    ]
    config = {"merge_method": "linear", "slices": [{"sources": sources}]}
    found = merged(config, tmp_path / "out")
    assert found.config["num_hidden_layers"] == 1
    first = Q.replace("layers.1", "layers.0")
    np.testing.assert_allclose(found[first].numpy(), mean(ta[first], tb[Q], 0.25), atol=1e-6)


def test_gguf_and_mlx_inputs(model, tmp_path):
    """Inputs in three formats, two of them quantized, against their decoded values."""
    tensors = model("a", scale=4)
    model("b", scale=4)
    model("c", scale=4)
    to_gguf_file(tmp_path / "b", tmp_path / "b.gguf")
    convert(tmp_path / "b", tmp_path / "q.gguf", Settings(quantize="q8_0"), device="cpu")
    convert(tmp_path / "c", tmp_path / "mlx", Settings(to="mlx", quantize="mlx:8:32"), device="cpu")
    paths = [tmp_path / "a", tmp_path / "q.gguf", tmp_path / "mlx"]
    found = merged(linear(*((path, 1) for path in paths)), tmp_path / "out")
    parents = [lbrx.open_model(path).canonical() for path in paths]
    assert set(found) == set(tensors)
    assert "quantization" not in found.config
    for name in found:
        expected = sum(parent[name].numpy().astype(np.float64) for parent in parents) / 3
        np.testing.assert_allclose(found[name].numpy(), expected, atol=1e-6)


def test_quantized_gguf_in_the_same_pass(model, tmp_path):
    """The same bytes as converting the merged model in float32."""
    model("a", scale=16, dtype=ml_dtypes.bfloat16)
    model("b", scale=16, dtype=ml_dtypes.bfloat16)
    config = linear((tmp_path / "a", 1), (tmp_path / "b", 2))
    lbrx.merge(config, tmp_path / "one.gguf", quantize="q4_k_m", device="cpu")
    lbrx.merge({**config, "dtype": "float32"}, tmp_path / "exact", device="cpu")
    convert(tmp_path / "exact", tmp_path / "two.gguf", Settings(quantize="q4_k_m"), device="cpu")
    one, two = (lbrx.open_model(tmp_path / name) for name in ("one.gguf", "two.gguf"))
    assert set(one) == set(two)
    assert one["blk.0.attn_q.weight"].metadata.quantization == "q4_k"
    for name in one:
        np.testing.assert_array_equal(one[name].numpy(), two[name].numpy())


def test_mlx_in_the_same_pass(model, tmp_path):
    """Scales and small tensors have the type of the models."""
    model("a", scale=4, dtype=ml_dtypes.bfloat16)
    model("b", scale=4, dtype=ml_dtypes.bfloat16)
    config = linear((tmp_path / "a", 1), (tmp_path / "b", 2))
    one = merged(config, tmp_path / "one", to="mlx", quantize="mlx:4:32")
    lbrx.merge(config, tmp_path / "plain", device="cpu")
    settings = Settings(to="mlx", quantize="mlx:4:32")
    convert(tmp_path / "plain", tmp_path / "two", settings, device="cpu")
    two = lbrx.open_model(tmp_path / "two")
    assert set(one) == set(two)
    assert one["model.layers.0.self_attn.q_proj.scales"].dtype == "bfloat16"
    for name in one:
        np.testing.assert_array_equal(one[name].numpy(), two[name].numpy())


def test_a_copied_gguf_keeps_its_blocks(model, tmp_path):
    model("a", scale=4)
    convert(tmp_path / "a", tmp_path / "a.gguf", Settings(quantize="q8_0"), device="cpu")
    found = merged(stacked((tmp_path / "a.gguf", 1, 2)), tmp_path / "out.gguf")
    old = lbrx.open_model(tmp_path / "a.gguf")
    assert found["blk.0.attn_q.weight"].metadata.quantization == "q8_0"
    for name in ("attn_q", "ffn_down"):
        np.testing.assert_array_equal(
            found[f"blk.0.{name}.weight"].numpy(), old[f"blk.1.{name}.weight"].numpy()
        )


def test_copies_are_not_quantized_again(model, tmp_path):
    """Blocks of the wanted type are copied; others are quantized from what is stored."""
    model("a", scale=16)
    convert(tmp_path / "a", tmp_path / "a.gguf", Settings(quantize="q4_k_m"), device="cpu")
    config = stacked((tmp_path / "a.gguf", 0, 2), (tmp_path / "a.gguf", 1, 2))
    prepared = lbrx.merging.prepare(
        config, tmp_path / "out.gguf", lbrx.merging.MergeOptions(quantize="q4_k_m")
    )
    items = {item.name: item for item in prepared.conversion.items}
    assert items["blk.2.attn_q.weight"].is_kept
    found = merged(config, tmp_path / "out.gguf", quantize="q4_k_m")
    old = lbrx.open_model(tmp_path / "a.gguf")
    for layer, origin in enumerate((0, 1, 1)):
        ours, theirs = (m[f"blk.{n}.attn_q.weight"] for m, n in ((found, layer), (old, origin)))
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_tied_embeddings(model, tmp_path):
    """A model without lm_head uses its embedding; the merged model is tied like the first."""
    ta = model("a")
    tb = model("b", tie_word_embeddings=True)
    out = "lm_head.weight"
    found = merged(linear((tmp_path / "b", 1), (tmp_path / "a", 1)), tmp_path / "tied")
    assert out not in found
    found = merged(linear((tmp_path / "a", 1), (tmp_path / "b", 1)), tmp_path / "free")
    np.testing.assert_allclose(found[out].numpy(), mean(ta[out], tb[out]), atol=1e-6)


@pytest.mark.parametrize("kind", ["qwen2", "gemma2", "mixtral", "phi3"])
def test_other_architectures(model, tmp_path, kind):
    ta, tb = model("a", kind), model("b", kind)
    config = linear((tmp_path / "a", 1), (tmp_path / "b", 1))
    found = merged(config, tmp_path / "out")
    for name in ta:
        np.testing.assert_allclose(found[name].numpy(), mean(ta[name], tb[name]), atol=1e-6)
    lbrx.merge(config, tmp_path / "out.gguf", device="cpu")
    again = lbrx.open_model(tmp_path / "out.gguf").canonical()
    for name in ta:
        np.testing.assert_allclose(again[name].numpy(), mean(ta[name], tb[name]), atol=1e-5)


def test_settings_of_each_layer_follow_the_slices(model, tmp_path):
    model("a", layer_types=["full_attention", "sliding_attention"])
    found = merged(stacked((tmp_path / "a", 1, 2), (tmp_path / "a", 0, 2)), tmp_path / "out")
    assert found.config["layer_types"] == [
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 3
