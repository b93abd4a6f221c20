"""Names and layouts, compared with the gguf package's map of names."""

from __future__ import annotations

import json
import re

import gguf
import numpy as np
import pytest
from format_checks import same
from safetensors.numpy import save_file
from tiny_models import GEMMA, TIED, config, shapes, to_gguf_file

import lbrx
from lbrx.files.formats import companions, translate
from lbrx.files.formats.architecture_tables import (
    ARCHITECTURES,
    hyperparameters,
    of_config,
    rope_scaling,
)


@pytest.fixture
def folder(tmp_path, rng):
    """Writes a tiny model of an architecture and gives its tensors."""

    def make(kind, **settings):
        tensors = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes(kind).items()}
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({**config(kind), **settings}))
        save_file(tensors, tmp_path / kind / "model.safetensors")
        return tmp_path / kind, tensors

    return make


def their_name(arch: str, name: str) -> str:
    """The name of a tensor in the package's table."""
    key = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(key, 2)
    stacked = re.sub(r"experts\.\d+", "experts", name)
    found = names.get_name(stacked, (".weight", ".bias"))
    assert found is not None, name
    return found


def in_pairs(values, heads):
    """Rows in llama.cpp's order."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_to_gguf_and_back(kind, folder, tmp_path):
    path, tensors = folder(kind)
    made = to_gguf_file(path, tmp_path / "m.gguf")
    arch = ARCHITECTURES[kind].gguf
    assert set(made) == {their_name(arch, name) for name in tensors}
    permuted = kind in ("llama", "mistral", "mixtral", "smollm3", "granite")
    for name, array in tensors.items():
        expected = array
        if permuted and re.search(r"\.[qk]_proj", name):
            expected = in_pairs(array, 4 if "q_proj" in name else 2)
        if kind in GEMMA and name.endswith("norm.weight"):
            expected = array + np.float32(1)
        found = made[their_name(arch, name)].numpy()
        expert = re.search(r"experts\.(\d+)", name)
        same(found[int(expert[1])] if expert else found, expected)
    back = made.canonical()
    assert set(back) == set(tensors)
    for name, array in tensors.items():
        if kind in GEMMA and name.endswith("norm.weight"):
            np.testing.assert_allclose(back[name].numpy(), array, atol=1e-6)
        else:
            same(back[name].numpy(), array)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_settings_survive(kind, folder, tmp_path):
    path, _ = folder(kind)
    made = to_gguf_file(path, tmp_path / "m.gguf")
    architecture = of_config(made.config)
    assert architecture is not None
    assert architecture.gguf == ARCHITECTURES[kind].gguf
    assert kind == architecture.model_type or (kind, architecture.model_type) == (
        "mistral",
        "llama",
    )
    for setting in ARCHITECTURES[kind].settings:
        if setting.huggingface in config(kind):
            assert made.config[setting.huggingface] == config(kind)[setting.huggingface]
    assert made.config["vocab_size"] == 11
    assert made.config["tie_word_embeddings"] == (kind in TIED)
    keys = {f"{ARCHITECTURES[kind].gguf}.{s.gguf}" for s in ARCHITECTURES[kind].settings}
    known = {
        value.replace("{arch}", ARCHITECTURES[kind].gguf)
        for group in (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope)
        for value in vars(group).values()
        if isinstance(value, str)
    }
    assert keys <= known


def test_every_name_is_one_that_the_package_knows():
    for architecture in ARCHITECTURES.values():
        key = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture.gguf)
        theirs = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[key]}
        ours = {rule.gguf.replace("{layer}", "{bid}") for rule in architecture.rules} - {"output"}
        assert ours <= theirs


def test_what_comes_back_is_not_even_touched(folder, tmp_path):
    """Through Hugging Face's layout and back, recipes cancel, so norms are not rounded."""
    for kind in ("gemma2", "llama", "mixtral"):
        path, _ = folder(kind)
        model = to_gguf_file(path, tmp_path / f"{kind}.gguf")
        again = translate.to_gguf(translate.to_huggingface(model.files), model.config)
        assert {name: again[name] for name in model} == dict(model.files.tensors)


def test_quantized_rows_move_whole(tmp_path, rng):
    """Quantized rows are permuted without decoding: the values are the permuted ones, bit for bit."""
    values = rng.standard_normal((64, 64)).astype(np.float32)
    blocks = gguf.quantize(values, gguf.GGMLQuantizationType.Q4_0)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = lbrx.open_model(tmp_path / "m.gguf").canonical()
    weight = model["model.layers.0.self_attn.q_proj.weight"]
    decoded = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q4_0)
    expected = decoded.reshape(4, 8, 2, 64).swapaxes(1, 2).reshape(64, 64)
    same(weight.numpy(), expected)
    assert weight.metadata.quantization == "q4_0"
    lbrx.save(tmp_path / "q.gguf", {"w": weight})
    (stored,) = gguf.GGUFReader(tmp_path / "q.gguf").tensors
    assert stored.tensor_type == gguf.GGMLQuantizationType.Q4_0
    same(gguf.dequantize(stored.data, stored.tensor_type), expected)


def test_mlx_stacks_experts(folder):
    path, tensors = folder("mixtral")
    model = lbrx.open_model(path)
    stacked = translate.to_mlx(model.recipes, model.config)
    name = "model.layers.1.block_sparse_moe.switch_mlp.down_proj.weight"
    expected = np.stack(
        [tensors[f"model.layers.1.block_sparse_moe.experts.{e}.w2.weight"] for e in range(3)]
    )
    same(lbrx.StoredModel(model.files, stacked)[name].numpy(), expected)
    lbrx.save(path / "mlx", lbrx.StoredModel(model.files, stacked), format="mlx")
    back = lbrx.open_model(path / "mlx").canonical()
    assert set(back) == set(tensors)
    for key, array in tensors.items():
        same(back[key].numpy(), array)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama3_factors(folder, tmp_path):
    """Short waves keep their frequency, long ones are divided by a factor, and the settings are recovered."""
    path, _ = folder(
        "llama", rope_scaling=LLAMA3, rope_theta=500000.0, head_dim=128, hidden_size=512
    )
    model = lbrx.open_model(path)
    factors = rope_scaling.llama3_factors(model.config)
    wave = 2 * np.pi * 500000.0 ** (np.arange(64) / 64)
    smooth = (8192 / wave - 1) / 3
    expected = np.select([wave < 8192 / 4, wave > 8192], [1, 8], 1 / ((1 - smooth) / 8 + smooth))
    np.testing.assert_allclose(factors, expected, rtol=1e-6)
    recipes = translate.to_gguf({}, model.config)
    assert set(recipes) == {"rope_freqs.weight"}
    made = lbrx.StoredModel(model.files, recipes)
    lbrx.save(
        tmp_path / "m.gguf", made, hyperparameters.to_gguf(ARCHITECTURES["llama"], model.config)
    )
    assert lbrx.open_model(tmp_path / "m.gguf").config["rope_scaling"] == LLAMA3


def test_phi3_factors(folder, tmp_path):
    scaling = {"type": "longrope", "long_factor": [1.0, 4.0], "short_factor": [1.0, 1.5]}
    path, tensors = folder("phi3", rope_scaling=scaling, original_max_position_embeddings=32)
    made = to_gguf_file(path, tmp_path / "m.gguf")
    same(made["rope_factors_long.weight"].numpy(), np.array([1, 4], np.float32))
    assert made.metadata["phi3.rope.scaling.attn_factor"] == pytest.approx(
        np.sqrt(1 + np.log(2) / np.log(32))
    )
    assert made.config["rope_scaling"] == scaling
    assert set(made.canonical()) == set(tensors)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_other_scalings(kind, folder, tmp_path):
    scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 16}
    path, _ = folder("qwen2", rope_scaling=scaling)
    assert to_gguf_file(path, tmp_path / "m.gguf").config["rope_scaling"] == scaling


def test_tied_embeddings_are_written_once(folder, tmp_path):
    path, _ = folder("llama", tie_word_embeddings=True)
    made = to_gguf_file(path, tmp_path / "m.gguf")
    assert "output.weight" not in made
    assert made.config["tie_word_embeddings"] is True


def test_the_language_part_of_a_larger_model(folder):
    path, _ = folder("gemma3_text")
    model = lbrx.open_model(path)
    nested = {"model_type": "gemma3", "text_config": dict(model.config)}
    plain = translate.to_gguf(model.recipes, model.config)
    for prefix in ("language_model.", "model.language_model."):
        names = {
            prefix + (n if prefix[0] == "l" else n.removeprefix("model.")): r
            for n, r in model.recipes.items()
        }
        names["vision_tower.x.weight"] = model.recipes["model.norm.weight"]
        assert set(translate.to_gguf(names, nested)) == set(plain)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "model.layers.0.self_attn.z_proj.weight",
            {},
            "llama's table has no .*z_proj.weight'",
        ),
        (
            "model.layers.0.mlp.up_proj.weight_scale_inv",
            {},
            "llama's table has no .*up_proj.weight_scale_inv'",
        ),
        (
            "model.layers.0.self_attn.q_proj.weight",
            {"num_attention_heads": 5},
            "cannot be divided into 5 heads",
        ),
        (
            "model.layers.0.self_attn.q_proj.weight",
            {"num_attention_heads": 0},
            "cannot be divided into 0 heads",
        ),
        (
            "model.norm.weight",
            {"head_dim": 10**12, "rope_scaling": LLAMA3},
            "heads of size 1,000,000,000,000, not of 1 to",
        ),
        (
            "model.norm.weight",
            {"rope_scaling": {**LLAMA3, "factor": "x"}},
            "factor: 'x' is not a positive number",
        ),
        (
            "model.norm.weight",
            {"model_type": "mamba"},
            "model_type 'mamba' of config.json has no table",
        ),
    ],
)
def test_what_does_not_translate(name, settings, message, folder):
    path, _ = folder("llama")
    model = lbrx.open_model(path)
    recipe = model.recipes["model.layers.0.self_attn.q_proj.weight"]
    with pytest.raises(lbrx.FormatError, match=message):
        translate.to_gguf({name: recipe}, {**model.config, **settings})


def test_an_architecture_without_a_table(tmp_path):
    lbrx.save(
        tmp_path / "m.gguf", {"w": lbrx.ones(3, device="cpu")}, {"general.architecture": "mamba"}
    )
    model = lbrx.open_model(tmp_path / "m.gguf")
    assert model.config == {}
    with pytest.raises(
        lbrx.FormatError, match=r"'mamba' has no table of names: the known ones are cohere2, "
    ):
        model.canonical()


def test_the_real_model(smollm2):
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2).tensors}
    model = lbrx.open_model(smollm2)
    canonical = model.canonical()
    assert len(canonical) == len(model) == len(reader)
    name = "model.layers.5.self_attn.k_proj.weight"
    theirs = gguf.dequantize(
        reader["blk.5.attn_k.weight"].data, reader["blk.5.attn_k.weight"].tensor_type
    )
    same(canonical[name].numpy(), theirs.reshape(3, 32, 2, 576).swapaxes(1, 2).reshape(192, 576))
    assert canonical.config["num_attention_heads"] == 9
    assert canonical.config["rms_norm_eps"] == 1e-5
    assert model.tokenizer["tokenizer.ggml.model"] == "gpt2"
    norms = model["output_norm.weight"], canonical["model.norm.weight"]
    assert norms[0].storage.base is norms[1].storage.base


def test_gemma3_may_leave_settings_out():
    short = {"model_type": "gemma3", "text_config": {"hidden_size": 2560, "num_hidden_layers": 34}}
    metadata = hyperparameters.to_gguf(ARCHITECTURES["gemma3_text"], short)
    assert metadata["gemma3.attention.head_count"] == 8
    assert metadata["gemma3.attention.key_length"] == 256
    assert metadata["gemma3.rope.freq_base"] == 1e6


def test_a_layer_under_two_names(tmp_path):
    tensors = {f"blk.{n}.attn_norm.weight": lbrx.ones(3, device="cpu") for n in ("1", "01")}
    lbrx.save(tmp_path / "m.gguf", tensors, {"general.architecture": "llama"})
    with pytest.raises(
        lbrx.FormatError,
        match=r"'blk.01.attn_norm.weight': has the same name as another tensor, model.layers.1.input",
    ):
        lbrx.open_model(tmp_path / "m.gguf").canonical()


@pytest.mark.full
def test_the_real_model_through_a_folder(smollm2, tmp_path):
    """GGUF to Hugging Face's folder and back: every value, every setting, the whole vocabulary."""
    model = lbrx.open_model(smollm2)
    canonical = model.canonical()
    lbrx.save(
        tmp_path / "hf",
        canonical,
        format="safetensors",
        config=canonical.config,
        max_shard_size="200MB",
    )
    for name, content in companions.folder_files(model.files, model.config).items():
        (tmp_path / "hf" / name).write_bytes(content)
    back = to_gguf_file(tmp_path / "hf", tmp_path / "back.gguf")
    assert set(back) == set(model)
    for name in model:
        same(back[name].numpy(), model[name].numpy())
    shared = {
        k for k in back.metadata if k.startswith(("llama.", "tokenizer."))
    } & model.metadata.keys()
    assert len(shared) > 15
    for key in shared:
        assert back.metadata[key] == model.metadata[key], key
