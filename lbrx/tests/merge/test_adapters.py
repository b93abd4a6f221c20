"""LoRA adapters in PEFT's layout, against numpy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from merge_checks import linear, mean, merged
from safetensors.numpy import save_file

import lbrx
from lbrx import FormatError

RANK = 3
Q = "model.layers.0.self_attn.q_proj"
EMBEDDING = "model.embed_tokens"


@pytest.fixture
def adapter(tmp_path, rng):
    """Writes an adapter of some modules and gives its tensors."""

    def make(name, modules, extra=None, **settings):
        tensors = {}
        for module, (rows, columns) in modules.items():
            rank = dict(settings.get("rank_pattern", {})).get(module, RANK)
            kinds = (
                ("lora_embedding_A", "lora_embedding_B")
                if module == EMBEDDING
                else ("lora_A.weight", "lora_B.weight")
            )
            for kind, shape in zip(kinds, ((rank, columns), (rows, rank)), strict=True):
                tensors[f"base_model.model.{module}.{kind}"] = rng.standard_normal(shape).astype(
                    np.float32
                )
        tensors |= {f"base_model.model.{n}": t for n, t in (extra or {}).items()}
        path = tmp_path / name
        path.mkdir()
        usual = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6}
        (path / "adapter_config.json").write_text(json.dumps({**usual, **settings}))
        save_file(tensors, path / "adapter_model.safetensors")
        return {n.removeprefix("base_model.model."): t for n, t in tensors.items()}

    return make


def applied(weight, tensors, module, scale):
    a, b = (tensors[f"{module}.lora_{part}.weight"].astype(np.float64) for part in "AB")
    return weight + scale * (b @ a)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 6 / np.sqrt(3)),
        ({"alpha_pattern": {"q_proj": 9}}, 3.0),
        ({"alpha_pattern": {"o_proj": 9}, "rank_pattern": {Q: 2}}, 3.0),
    ],
    ids=str,
)
def test_applied_on_the_fly(model, adapter, tmp_path, settings, scale):
    weights, other = model("a"), model("b")
    lora = adapter("lora", {Q: (16, 16), "model.layers.1.mlp.up_proj": (24, 16)}, **settings)
    config = linear((f"{tmp_path / 'a'}+{tmp_path / 'lora'}", 1), (tmp_path / "b", 1))
    found = merged(config, tmp_path / "out")
    name = f"{Q}.weight"
    expected = mean(applied(weights[name], lora, Q, scale), other[name])
    np.testing.assert_allclose(found[name].numpy(), expected, atol=1e-5)
    plain = "model.layers.0.mlp.up_proj.weight"
    np.testing.assert_allclose(found[plain].numpy(), mean(weights[plain], other[plain]), atol=1e-6)


def test_one_model_with_its_adapter_has_its_type(model, adapter, tmp_path):
    weights = model("a", dtype=np.float16)
    lora = adapter("lora", {Q: (16, 16)})
    reference = {"model": str(tmp_path / "a"), "lora": str(tmp_path / "lora")}
    config = {"merge_method": "passthrough", "models": [{"model": reference}]}
    found = merged(config, tmp_path / "out")
    changed = found[f"{Q}.weight"].numpy()
    assert changed.dtype == np.float16
    expected = applied(weights[f"{Q}.weight"].astype(np.float64), lora, Q, 2.0)
    np.testing.assert_allclose(changed, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(found["lm_head.weight"].numpy(), weights["lm_head.weight"])


def passthrough(folder):
    reference = f"{folder / 'a'}+{folder / 'lora'}"
    return {"merge_method": "passthrough", "models": [{"model": reference}]}


def test_embeddings_and_saved_modules(model, adapter, tmp_path, rng):
    """Embeddings are transposed, and whole tensors replace those of the model."""
    model("a")
    embedding = rng.standard_normal((11, 16)).astype(np.float32)
    norm = rng.standard_normal(16).astype(np.float32)
    extra = {"model.norm.modules_to_save.weight": norm}
    extra[f"{EMBEDDING}.base_layer.weight"] = embedding
    lora = adapter("lora", {EMBEDDING: (16, 11)}, extra)
    found = merged(passthrough(tmp_path), tmp_path / "out")
    np.testing.assert_array_equal(found["model.norm.weight"].numpy(), norm)
    a, b = (lora[f"{EMBEDDING}.lora_embedding_{part}"].astype(np.float64) for part in "AB")
    expected = embedding + 2.0 * (b @ a).T
    np.testing.assert_allclose(found[f"{EMBEDDING}.weight"].numpy(), expected, atol=1e-5)


def test_magnitudes_scale_rows(model, adapter, tmp_path, rng):
    weights = model("a")
    magnitudes = rng.random(16).astype(np.float32) + 0.5
    lora = adapter("lora", {Q: (16, 16)}, {f"{Q}.lora_magnitude_vector": magnitudes}, use_dora=True)
    found = merged(passthrough(tmp_path), tmp_path / "out")
    updated = applied(weights[f"{Q}.weight"].astype(np.float64), lora, Q, 2.0)
    expected = magnitudes[:, None] * updated / np.linalg.norm(updated, axis=1, keepdims=True)
    np.testing.assert_allclose(found[f"{Q}.weight"].numpy(), expected, atol=1e-5)


HUGE = 10**400
MAGNITUDES = {f"{Q}.lora_magnitude_vector": np.ones(16, np.float32)}
SETTINGS = {
    "no rank": ({"r": None}, "r: None is not a number"),
    "no scale": ({"lora_alpha": None}, "lora_alpha: None is not a number"),
    "infinity": ({"lora_alpha": float("inf")}, "lora_alpha: inf is not a number"),
    "NaN": ({"lora_alpha": float("nan")}, "lora_alpha: nan is not a number"),
    "400 digits": ({"lora_alpha": HUGE}, "lora_alpha: an integer of 1,329 bits"),
    "more than float32 holds": ({"lora_alpha": 1e39}, r"lora_alpha: 1e\+39 is not a number"),
    "more than weights take": ({"lora_alpha": -1e30}, "-1e.30 multiplies the adapter by"),
    "text": ({"lora_alpha": "8"}, "lora_alpha: '8' is not a number"),
    "another rank": ({"r": 4}, "r: 4, and the matrices of .*q_proj have the rank 3"),
    "a rank of 400 digits": ({"r": HUGE}, "r: an integer of 1,329 bits"),
    "a rank that is true": ({"r": True}, "r: True is not a number"),
    "another rank of a pattern": (
        {"rank_pattern": {"q_proj": 4}},
        "rank_pattern: 'q_proj': 4, and the matrices",
    ),
    "a scale of a pattern": (
        {"alpha_pattern": {"q_proj": float("inf")}},
        "alpha_pattern: 'q_proj': inf is not a number",
    ),
    "a pattern for nothing": (
        {"alpha_pattern": {"o_proj": "x"}},
        "alpha_pattern: 'o_proj': 'x' is not a number",
    ),
    "patterns that are a list": ({"rank_pattern": []}, "rank_pattern: a list: write names"),
    "a regular expression": ({"rank_pattern": {"(a+)+": 2}}, "give names of modules"),
    "a switch that is text": ({"use_rslora": "false"}, "use_rslora: 'false': write true or"),
    "weights that PEFT changes": (
        {"init_lora_weights": "pissa_niter_16"},
        "init_lora_weights: 'pissa_niter_16': the adapter is for weights that PEFT computes",
    ),
    "layers that are repeated": (
        {"layer_replication": [[0, 1], [0, 1]]},
        "layer_replication is set, which lbrx does not apply",
    ),
    "DoRA without magnitudes": ({"use_dora": True}, "has no magnitudes, and use_dora is True"),
    "magnitudes without DoRA": (
        {"extra": MAGNITUDES},
        "has magnitudes, and use_dora is None: give the adapter_config.json",
    ),
    "magnitudes of another size": (
        {"use_dora": True, "extra": {f"{Q}.lora_magnitude_vector": np.ones(15, np.float32)}},
        r"magnitudes of \(15,\) for 16 rows",
    ),
}

REFUSED = {
    "another kind": ({"modules": {}, "peft_type": "IA3"}, "'IA3' adapters cannot be merged"),
    "another size": (
        {"modules": {Q: (32, 16)}},
        r"a matrix of \(32, 16\), and the model's is \(16, 16\)",
    ),
    "embeddings of another size": (
        {"modules": {EMBEDDING: (32, 11)}},
        r"a matrix of \(11, 32\), and the model's is \(11, 16\)",
    ),
    "another model": (
        {"modules": {"model.layers.9.mlp.up_proj": (24, 16)}},
        "which the model does not have",
    ),
    "half of it": (
        {"modules": {}, "extra": {f"{Q}.lora_A.weight": np.zeros((3, 16), np.float32)}},
        "it is incomplete",
    ),
    "no tensors": ({"modules": {}}, "has no tensors: the adapter is incomplete"),
    "integers": (
        {"modules": {}, "extra": {"model.norm.weight": np.zeros(16, np.int8)}},
        "I8 is not a type of floats",
    ),
    "a tensor twice": (
        {
            "modules": {},
            "extra": {f"model.norm.{n}weight": np.zeros(16) for n in ("", "default.")},
        },
        "another tensor has the same place",
    ),
    "another tensor": (
        {"modules": {}, "extra": {"x.lora_C": np.zeros(3, np.float32)}},
        "is not one of a LoRA",
    ),
    **{
        name: ({"modules": {Q: (16, 16)}, **given}, text)
        for name, (given, text) in SETTINGS.items()
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(model, adapter, tmp_path, case):
    settings, problem = REFUSED[case]
    model("a")
    adapter("lora", **settings)
    with pytest.raises(FormatError, match=problem) as found:
        lbrx.merge(linear((f"{tmp_path / 'a'}+{tmp_path / 'lora'}", 1)))
    assert "\n" not in str(found.value)


def test_a_folder_that_is_not_an_adapter(model, tmp_path):
    model("a")
    (tmp_path / "lora").mkdir()
    with pytest.raises(FormatError, match=r"has no adapter_config\.json"):
        lbrx.merge(linear((f"{tmp_path / 'a'}+{tmp_path / 'lora'}", 1)))
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    with pytest.raises(FormatError, match=r"has none of adapter_model\.safetensors"):
        lbrx.merge(linear((f"{tmp_path / 'a'}+{tmp_path / 'lora'}", 1)))
