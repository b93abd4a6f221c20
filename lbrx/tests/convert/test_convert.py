"""Conversions between formats, compared with the packages that define them."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc

import gguf
import numpy as np
import pytest
from conversion_checks import contents, gguf_types, gguf_values, in_pairs, relative, to
from safetensors.numpy import load_file, save_file

import lbrx
from lbrx import quant
from lbrx.cli import main
from lbrx.files.formats.translate import unsaid_in_gguf

Q, K = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


def test_around_the_formats(folder, tmp_path):
    """bf16 to GGUF Q8_0 to safetensors to MLX's 4 bits to GGUF Q4_K_M: each step adds the error of
    its own quantization and no other."""
    source, tensors = folder()
    to(source, tmp_path / "a.gguf", quantize="q8_0")
    to(tmp_path / "a.gguf", tmp_path / "b", to="safetensors")
    to(tmp_path / "b", tmp_path / "c", quantize="mlx:4:64", dtype="f16")
    to(tmp_path / "c", tmp_path / "d.gguf", quantize="q4_k_m")

    a, b = gguf_values(tmp_path / "a.gguf"), load_file(tmp_path / "b/model.safetensors")
    assert b.keys() == tensors.keys()
    for name, values in tensors.items():
        if values.ndim == 1:
            assert np.array_equal(b[name], values.astype(np.float32))
        else:
            expected = quant.dequantize(*quant.quantize(values, "q8_0"))
            np.testing.assert_array_equal(b[name], expected)
    np.testing.assert_array_equal(a["blk.1.attn_q.weight"], in_pairs(b[Q], 4))
    np.testing.assert_array_equal(a["blk.1.attn_k.weight"], in_pairs(b[K], 2))
    np.testing.assert_array_equal(a["blk.1.ffn_down.weight"], b[DOWN])

    c = lbrx.open_model(tmp_path / "c").canonical()
    halves = {name: values.astype(np.float16) for name, values in b.items()}
    for name, values in halves.items():
        expected = (
            values if values.ndim == 1 else quant.dequantize(*quant.quantize(values, "mlx:4"))
        )
        np.testing.assert_array_equal(c[name].numpy(), expected)

    d, types = gguf_values(tmp_path / "d.gguf"), gguf_types(tmp_path / "d.gguf")
    assert types["output.weight"] == "Q6_K"
    assert types["blk.0.attn_q.weight"] == "Q4_K"
    assert types["blk.0.ffn_down.weight"] in ("Q5_0", "Q8_0")  # rows of 384
    down = quant.quantize(c[DOWN].numpy(), types["blk.1.ffn_down.weight"].lower())
    np.testing.assert_array_equal(d["blk.1.ffn_down.weight"], quant.dequantize(*down))


def test_tokenizer_and_settings_go_along(folder, tmp_path, tokenizer):
    from tokenizers import Tokenizer

    source, _ = folder()
    to(source, tmp_path / "a.gguf", quantize="q4_0")
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["general.file_type"].contents() == 2
    assert fields["general.quantization_version"].contents() == 2
    assert fields["llama.block_count"].contents() == 2
    assert len(fields["tokenizer.ggml.tokens"].data) == tokenizer.get_vocab_size()
    to(tmp_path / "a.gguf", tmp_path / "b", quantize="f16")
    config = json.loads((tmp_path / "b/config.json").read_text())
    assert (config["hidden_size"], config["torch_dtype"]) == (256, "float16")
    back = Tokenizer.from_file(str(tmp_path / "b/tokenizer.json"))
    assert back.encode("It's 12 o'clock").ids == tokenizer.encode("It's 12 o'clock").ids


@pytest.mark.parametrize(
    ("quantize", "types"),
    [
        (None, {"BF16", "F32"}),
        ("f16", {"F16", "F32"}),
        ("Q8_0", {"Q8_0", "F32"}),
        ("q4_k_s", {"Q4_K", "Q5_0", "Q5_K", "Q6_K", "F32"}),
        ("iq4_xs", {"IQ4_XS", "IQ4_NL", "Q6_K", "Q5_K", "F32"}),
    ],
)
def test_mixtures(folder, tmp_path, quantize, types):
    """Tensors have exactly the types that llama.cpp chooses; only norms are F32."""
    source, tensors = folder()
    to(source, tmp_path / "m.gguf", quantize=quantize)
    found = gguf_types(tmp_path / "m.gguf")
    assert set(found.values()) <= types
    norms = {name for name in found if name.endswith("_norm.weight")}
    assert {name for name, type in found.items() if type == "F32"} == norms
    if quantize is not None:
        choose = quant.mixture(
            "q8_0" if quantize == "f16" else quantize, quant.ModelFacts(2, queries_per_key=2)
        )
        hidden, wide = 256, 384
        for name, columns in (("blk.1.ffn_down.weight", wide), ("blk.0.attn_v.weight", hidden)):
            expected = "f16" if quantize == "f16" else choose(name, (hidden, columns))
            assert found[name].lower() == expected
    rms = relative(gguf_values(tmp_path / "m.gguf")["blk.1.ffn_down.weight"], tensors[DOWN])
    assert rms < 0.1


@pytest.mark.parametrize("kind", ["mixtral", "gemma2", "phi3", "qwen2"])
@pytest.mark.parametrize("middle", ["m.gguf", "mlx"])
def test_without_quantization_nothing_changes(folder, tmp_path, small_pieces, kind, middle):
    """Experts are stacked and split, norms shifted and rows reordered; the way back gives the source."""
    source, tensors = folder(kind, np.float32)
    to(source, tmp_path / middle, to=None if "." in middle else "mlx")
    to(tmp_path / middle, tmp_path / "back", to="safetensors")
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == tensors.keys()
    for name, values in tensors.items():
        if kind == "gemma2" and name.endswith("norm.weight"):
            np.testing.assert_allclose(back[name], values, atol=1e-6)
        else:
            np.testing.assert_array_equal(back[name], values)


def test_blocks_stay_as_they_are(folder, tmp_path):
    """Tensors that have the wanted type already are copied, not encoded again."""
    source, _ = folder()
    to(source, tmp_path / "a.gguf", quantize="q4_k_m")
    result = to(tmp_path / "a.gguf", tmp_path / "b.gguf", quantize="q4_k_m")
    assert all(item.is_kept for item in result.plan.items)
    assert contents(tmp_path / "a.gguf").popitem()[1] == contents(tmp_path / "b.gguf").popitem()[1]


@pytest.mark.parametrize("target", ["m.safetensors", "m.npz", "m.gguf", "shards"])
def test_arrays_without_a_model(tmp_path, rng, target):
    """Deflated, Fortran's order, no config.json, several shards: tensors under their names."""
    arrays = {
        "a": rng.standard_normal((30, 64)).astype(np.float32),
        "b": np.asfortranarray(rng.standard_normal((64, 30)).astype(np.float16)),
        "c": np.arange(7, dtype=np.int32),
        "d": np.float32(1.5),
        "e": np.zeros((0, 3), np.float32),
    }
    np.savez_compressed(tmp_path / "m.npz", **arrays)
    shutil.move(tmp_path / "m.npz", tmp_path / "source")
    to(tmp_path / "source", tmp_path / target, max_shard_size=5000 if target == "shards" else None)
    model = lbrx.open_model(tmp_path / target)
    assert set(model) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(model[name].numpy(), array)
    if target == "m.npz":
        with np.load(tmp_path / target) as loaded:
            assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())
    if target == "shards":
        assert len(list((tmp_path / target).glob("model-*-of-*.safetensors"))) > 1


@pytest.mark.parametrize(
    ("missing", "note"),
    [
        (
            ["config.json"],
            "there is no config.json: tensors keep their names, and no metadata is written",
        ),
        (["tokenizer.json"], "there is no tokenizer: the GGUF has no vocabulary"),
        ([], None),
    ],
)
def test_what_the_user_should_know(folder, tmp_path, missing, note):
    source, _ = folder()
    for name in missing:
        (source / name).unlink()
    result = to(source, tmp_path / "m.gguf")
    assert result.plan.notes == (() if note is None else (note,))


UNSAID = [
    ("mistral", {"sliding_window": 64, "max_position_embeddings": 256}, ["sliding_window"]),
    ("mistral", {"sliding_window": 256, "max_position_embeddings": 256}, []),
    ("qwen2", {"sliding_window": 64, "use_sliding_window": False}, []),
    ("gemma2", {"sliding_window": 64, "hidden_act": "gelu_pytorch_tanh"}, []),
    ("gemma2", {"hidden_activation": "relu"}, ["hidden_activation"]),
    ("gemma3_text", {"query_pre_attn_scalar": 100}, ["query_pre_attn_scalar"]),
    ("gemma3_text", {"query_pre_attn_scalar": 16}, []),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 0]}, []),
    ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, ["no_rope_layers"]),
    (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 20}},
        ["rope_scaling's beta_fast"],
    ),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, []),
]


@pytest.mark.parametrize(("model_type", "settings", "lost"), UNSAID)
def test_settings_that_a_gguf_does_not_keep(model_type, settings, lost):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "num_hidden_layers": 4}
    config = {"model_type": model_type, **sizes, **settings}
    assert unsaid_in_gguf(config) == lost


@pytest.mark.parametrize("quantize", ["f16", "q8_0", "mlx:4:64"])
def test_pieces_and_devices_do_not_matter(folder, tmp_path, monkeypatch, quantize):
    """Many pieces on the Metal device give the bytes of one piece on the CPU."""
    source, _ = folder()
    suffix = ".gguf" if quantize == "q8_0" else ""
    to(source, tmp_path / f"whole{suffix}", quantize=quantize)
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 4096)
    monkeypatch.setattr("lbrx.convert.compute._WORTHWHILE", 0)
    settings = lbrx.convert.Settings(quantize=quantize)
    before = lbrx.metal.stats()["dispatches"]
    lbrx.convert.convert(source, tmp_path / f"parts{suffix}", settings, device="metal")
    assert lbrx.metal.stats()["dispatches"] > before
    whole, parts = contents(tmp_path / f"whole{suffix}"), contents(tmp_path / f"parts{suffix}")
    assert list(whole.values()) == list(parts.values())


def test_one_pattern_may_be_a_string(tmp_path):
    lbrx.save(tmp_path / "a.npz", {"x.weight": lbrx.ones(2), "y.bias": lbrx.ones(2)})
    result = to(tmp_path / "a.npz", tmp_path / "b.npz", include="x*")
    assert list(lbrx.load(tmp_path / "b.npz")) == ["x.weight"]
    assert len(repr(result)) < 100
    assert lbrx.convert.Settings(exclude=["a", "b"]) == lbrx.convert.Settings(exclude=("a", "b"))
    with pytest.raises(TypeError, match=r"exclude=\[3\]: give patterns of names, such as"):
        lbrx.convert.Settings(exclude=[3])


def test_patterns(folder, tmp_path):
    source, tensors = folder()
    to(source, tmp_path / "a", include=("*.layers.0.*",), exclude=("*norm*", "*.mlp.*"))
    found = load_file(tmp_path / "a/model.safetensors")
    wanted = re.compile(r"model\.layers\.0\.self_attn.*")
    assert found.keys() == {name for name in tensors if wanted.fullmatch(name)}
    # The target's names are matched too.
    to(source, tmp_path / "b.gguf", include=("blk.1.attn_q.*",))
    assert gguf_types(tmp_path / "b.gguf").keys() == {"blk.1.attn_q.weight"}


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        ("m.bin", {}, "does not end in .gguf, .npz, .safetensors: give --to"),
        ("m.gguf", {"quantize": "mlx:4:64"}, "gguf cannot store mlx:4:64: write MLX"),
        ("m.gguf", {"quantize": "q9"}, "'q9' is not a mixture: give one of q4_0"),
        ("m.gguf", {"quantize": "iq2_xs"}, "'iq2_xs' is not a mixture"),
        ("m.safetensors", {"quantize": "q8_0"}, "no type for 'q8_0': give one of f32, f16, bf16"),
        ("m", {"to": "mlx", "quantize": "mlx:7:64"}, "not a quantization scheme"),
        ("m", {"to": "mlx", "dtype": "int8"}, "'int8' is not a floating type: give f32"),
        ("m", {"include": ("nothing*",)}, "no tensor is left by --include and --exclude"),
        ("llama", {}, "is also the source"),
        ("llama/model.safetensors", {}, "is also the source"),
        ("nowhere", {}, "is a broken link"),
        ("file/m.gguf", {}, "cannot be written: Not a directory"),
        ("m", {"quantize": "f16", "dtype": "f32"}, "f16 and float32 are both given"),
        (
            "m.gguf",
            {"quantize": "q8_0", "dtype": "f16"},
            "tensors that q8_0 does not quantize are f32",
        ),
        ("m.gguf", {"max_shard_size": "1KB"}, "shards of 1,000 bytes need a folder"),
        ("there", {"to": "gguf"}, "is a folder, and gguf is written as a file"),
        ("file", {"to": "mlx"}, "is a file, and mlx is written as a folder"),
    ],
)
def test_refused(folder, tmp_path, target, settings, message):
    source, _ = folder()
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("as it was")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(lbrx.LbrxError, match=re.escape(message)):
        to(source, tmp_path / target, **settings)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("target", "quantize"), [("m.gguf", "q8_0"), ("m", "mlx:4:32")])
def test_values_that_a_scheme_cannot_hold(tmp_path, rng, target, quantize):
    """The error says which tensor and element, and nothing is left."""
    values = rng.standard_normal((40, 64)).astype(np.float32)
    values[17, 5] = np.nan
    save_file({"fine.weight": abs(values[:5]), "w.weight": values}, tmp_path / "s.safetensors")
    message = r"tensor 'w.weight', counted from row 0: element \(17, 5\) is nan"
    with pytest.raises(lbrx.QuantizationError, match=message):
        to(tmp_path / "s.safetensors", tmp_path / target, quantize=quantize)
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def test_memory_is_that_of_some_rows(tmp_path, rng, monkeypatch):
    """Of a model of 48 MiB with tensors of 12 MiB, only pieces are in memory."""
    monkeypatch.setattr("lbrx.convert.pieces.PIECE", 1 << 16)
    monkeypatch.setattr("lbrx.convert.pieces.THREADS", 3)
    rows = rng.standard_normal((3072, 1024)).astype(np.float32)
    save_file({f"t{i}.weight": rows + i for i in range(4)}, tmp_path / "s.safetensors")
    tracemalloc.start()
    try:
        to(tmp_path / "s.safetensors", tmp_path / "m.gguf", quantize="q8_0")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20


@pytest.mark.parametrize("limit", [None, 400_000])
def test_the_source_is_not_replaced(folder, tmp_path, limit):
    """The source's file or index is in the target folder."""
    source, _ = folder()
    to(source, tmp_path / "m", max_shard_size=limit)
    before = contents(tmp_path / "m")
    given = next((tmp_path / "m").glob("*.index.json"), tmp_path / "m/model.safetensors")
    with pytest.raises(lbrx.FormatError, match="belongs to the source and would be replaced"):
        to(given, tmp_path / "m", quantize="f16")
    assert contents(tmp_path / "m") == before


def test_a_folder_that_cannot_be_filled(folder, tmp_path, monkeypatch):
    """Everything but the renaming was done: no piece is converted again."""
    source, _ = folder()
    to(source, tmp_path / "whole", quantize="f16")
    (tmp_path / "m").mkdir()

    def refuse(*_):
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse)
        with pytest.raises(PermissionError):
            to(source, tmp_path / "m", quantize="f16")
    result = to(source, tmp_path / "m", quantize="f16", resume=True)
    assert result.reused == result.plan.nbytes
    assert contents(tmp_path / "m") == contents(tmp_path / "whole")


def test_names_that_share_a_tensor(tmp_path):
    """A pattern matches a tensor's name, not the name of another tensor with the same bytes."""
    from test_containers import torch_save, torch_view

    view = torch_view("0", "float32", (2, 3), (3, 1), 0, 6)
    torch_save(tmp_path / "a.pt", {"a": view, "b": view}, {"0": bytes(24)})
    to(tmp_path / "a.pt", tmp_path / "b.safetensors", exclude=("b",))
    assert load_file(tmp_path / "b.safetensors").keys() == {"a"}


def test_an_old_model_in_the_folder_goes(folder, tmp_path):
    source, tensors = folder()
    to(source, tmp_path / "a", max_shard_size=400_000)
    (tmp_path / "a/notes.txt").write_text("mine")
    assert (tmp_path / "a/model.safetensors.index.json").exists()
    to(source, tmp_path / "a", quantize="f16", force=True)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert {"model.safetensors", "notes.txt", "config.json"} <= names
    assert not [name for name in names if "-of-" in name or "index" in name]
    assert load_file(tmp_path / "a/model.safetensors").keys() == tensors.keys()


VISION = ["vision_tower.encoder.layers.0.fc1.weight", "vision_tower.post_layernorm.bias"]
PROJECTOR = "multi_modal_projector.mm_input_projection_weight"


@pytest.fixture
def multimodal(folder):
    """A tiny Gemma 3 with a vision tower, with either way of naming its parts."""

    def make(inner, outer):
        source, tensors = folder("gemma3_text")
        config = json.loads((source / "config.json").read_text())
        whole = {"model_type": "gemma3", "text_config": config, "vision_config": {"layers": 1}}
        (source / "config.json").write_text(json.dumps(whole))
        named = {name.replace("model.", inner, 1): values for name, values in tensors.items()}
        others = {f"{outer}{name}": np.ones((3, 4), np.float32) for name in (*VISION, PROJECTOR)}
        save_file(named | others, source / "model.safetensors")
        return source, tensors

    return make


@pytest.mark.parametrize(
    ("inner", "outer"), [("language_model.model.", ""), ("model.language_model.", "model.")]
)
@pytest.mark.parametrize("target", ["m.gguf", "mlx"])
def test_parts_that_are_left_out_are_told(multimodal, tmp_path, capsys, inner, outer, target):
    source, tensors = multimodal(inner, outer)
    form = "gguf" if "." in target else "mlx"
    arguments = ["convert", str(source), str(tmp_path / target), "--to", form, "--device", "cpu"]
    assert main(arguments) == 0
    told = capsys.readouterr().err
    assert f"3 tensors are left out, as {form} has no names for them: " in told
    assert f"{outer}vision_tower.* (2), {outer}multi_modal_projector.* (1)" in told
    found = lbrx.open_model(tmp_path / target)
    assert len(found) == len(tensors)
    if form == "mlx":
        expected = {f"language_model.{name}" for name in tensors}
        assert load_file(tmp_path / "mlx/model.safetensors").keys() == expected


def test_nothing_is_left_out_of_a_usual_model(folder, tmp_path):
    source, _ = folder()
    for target, form in (("m.gguf", "gguf"), ("mlx", "mlx"), ("hf", "safetensors")):
        assert to(source, tmp_path / target, to=form).plan.notes == ()
    assert to(tmp_path / "m.gguf", tmp_path / "back", to="safetensors").plan.notes == ()


def test_a_copy_of_the_embedding_is_told(folder, tmp_path):
    source, _ = folder()
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    for target in ("m.gguf", "mlx"):
        (note,) = to(source, tmp_path / target, to="gguf" if "." in target else "mlx").plan.notes
        assert note.startswith("1 tensor is left out")
        assert note.endswith("lm_head.weight (1)")


@pytest.mark.parametrize("target", ["gguf", "mlx"])
def test_architectures_that_a_target_cannot_name(folder, tmp_path, target):
    source, _ = folder()
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    with pytest.raises(lbrx.FormatError, match=r"model_type 'bert' .* has no table"):
        to(source, tmp_path / f"m.{target}", to=target)
    save_file({"embeddings.LayerNorm.gamma": np.ones(4, np.float32)}, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(lbrx.FormatError, match=r"llama's table has no .*gamma'"):
        to(source, tmp_path / f"m.{target}", to=target)


def test_a_gguf_that_mlx_cannot_name(tmp_path):
    metadata = {"general.architecture": "mamba"}
    lbrx.save(tmp_path / "a.gguf", {"blk.0.ssm_a": lbrx.ones(32, device="cpu")}, metadata)
    with pytest.raises(lbrx.FormatError, match="'mamba' has no table of names"):
        to(tmp_path / "a.gguf", tmp_path / "m", to="mlx")
    (note,) = to(tmp_path / "a.gguf", tmp_path / "m", to="safetensors").plan.notes
    assert note == "architecture 'mamba' has no table: tensors keep GGUF's names"
