"""Every refusal is one line with the remedy, and nothing is written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from merge_checks import linear, stacked
from safetensors.numpy import load_file, save_file

import lbrx
from lbrx import LbrxError


@pytest.fixture
def models(model, tmp_path):
    """Models of several kinds, by the name of their folder."""
    model("a")
    model("b")
    model("wide", scale=2)
    model("qwen", "qwen2")
    model("vocab", vocab=13)
    model("incomplete")
    path = tmp_path / "incomplete" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    model("more")
    more = tmp_path / "more" / "model.safetensors"
    bias = {"model.layers.1.self_attn.q_proj.bias": np.zeros(16, np.float32)}
    save_file(load_file(more) | bias, more)
    model("deep")
    deep = tmp_path / "deep" / "model.safetensors"
    tensors = load_file(deep)
    save_file(tensors | {n.replace("layers.1", "layers.2"): t for n, t in tensors.items()}, deep)
    return lambda name: str(tmp_path / name)


CASES = {
    "another architecture": (
        lambda m: linear((m("a"), 1), (m("qwen"), 1)),
        "is a llama and .* a qwen2: merge models of one architecture",
    ),
    "another size": (
        lambda m: linear((m("a"), 1), (m("wide"), 1)),
        r"\(11, 16\) in .* and \(11, 32\) in .*wide: merge models of one size",
    ),
    "another vocabulary": (
        lambda m: linear((m("a"), 1), (m("vocab"), 1)),
        "the vocabularies differ: .* 11 rows .* 13: add tokenizer_source",
    ),
    "a missing tensor": (
        lambda m: linear((m("a"), 1), (m("incomplete"), 1)),
        r"has no tensor model\.layers\.1\.mlp\.up_proj\.weight",
    ),
    "a tensor more": (
        lambda m: linear((m("a"), 1), (m("more"), 1)),
        r"more has self_attn\.q_proj\.bias, which .*a does not have",
    ),
    "other layers": (
        lambda m: linear((m("a"), 1), (m("deep"), 1)),
        "2 layers and .* has 3: choose layers with slices",
    ),
    "no weight": (
        lambda m: linear((m("a"), 1)) | {"models": [{"model": m("a")}]},
        "weight has no value for",
    ),
    "weights of 0": (lambda m: linear((m("a"), 1), (m("b"), -1)), "add up to 0"),
    "an unknown method": (
        lambda m: linear((m("a"), 1)) | {"merge_method": "lineer"},
        "did you mean linear",
    ),
    "an unknown parameter": (
        lambda m: linear((m("a"), 1), parameters={"normalise": 1}),
        "did you mean normalize",
    ),
    "a value of the wrong kind": (
        lambda m: linear((m("a"), 1), parameters={"normalize": "maybe"}),
        "normalize is 'maybe': give true or false",
    ),
    "a model that does not exist": (lambda m: linear((m("none"), 1)), "does not exist: give"),
    "a name on a hub": (
        lambda m: linear(("someone/model", 1)),
        "someone/model is not in the cache .* and cannot be downloaded",
    ),
    "a type": (
        lambda m: linear((m("a"), 1), dtype="bfloat"),
        "dtype 'bfloat' is not a floating type: did you mean bfloat16",
    ),
    "too many models": (
        lambda m: linear((m("a"), 1), (m("b"), 1)) | {"merge_method": "passthrough"},
        "passthrough merges 1 model: the merge has 2",
    ),
    "layers beyond the last": (
        lambda m: stacked((m("a"), 0, 2), (m("b"), 1, 3)),
        r"slices\[1\]: .* has 2 layers: layer_range \[1, 3\]",
    ),
    "more layers than a model has": (
        lambda m: stacked((m("a"), 0, 2), (m("a"), 0, 20_000)),
        "20,002 layers of its sources: give slices and models with at most 20,000",
    ),
    "layers of different number": (
        lambda m: {
            "merge_method": "linear",
            "slices": [
                {
                    "sources": [
                        {"model": m("a"), "layer_range": [0, 2]},
                        {"model": m("b"), "layer_range": [0, 1]},
                    ]
                }
            ],
        },
        r"different numbers of layers: \[0, 2\], \[0, 1\]",
    ),
    "a chat template": (lambda m: linear((m("a"), 1), chat_template="chatlm"), None),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_before_anything_is_written(models, tmp_path, case):
    make, problem = CASES[case]
    before = sorted(path.name for path in tmp_path.iterdir())
    if problem is None:  # there is no tokenizer that could have a template
        assert lbrx.merge(make(models)).config
        return
    with pytest.raises(LbrxError, match=problem) as found:
        lbrx.merge(make(models), tmp_path / "out", device="cpu")
    assert "\n" not in str(found.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_model_of_the_merge_is_not_replaced(models, tmp_path):
    with pytest.raises(LbrxError, match="is a model of the merge"):
        lbrx.merge(linear((models("a"), 1)), tmp_path / "a", device="cpu", force=True)
    with pytest.raises(LbrxError, match="exists: add --force"):
        lbrx.merge(linear((models("a"), 1)), tmp_path / "b", device="cpu")
    file = tmp_path / "a" / "model.safetensors"
    with pytest.raises(LbrxError, match="is also the source"):
        lbrx.merge(linear((models("a"), 1)), file, device="cpu", force=True)


def test_not_enough_disk(models, tmp_path, monkeypatch):
    class Disk:
        f_bavail, f_frsize, f_blocks = 1, 512, 100

    monkeypatch.setattr("lbrx.convert.output_checks.os.statvfs", lambda path: Disk)
    with pytest.raises(LbrxError, match=r"needs [\d,]+ bytes, and 512 are free"):
        lbrx.merge(linear((models("a"), 1)), tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_source_that_vanishes_in_the_middle(models, tmp_path):
    """The plan stands, the file is gone: an error, and no output."""
    prepared = lbrx.merging.prepare(linear((models("a"), 1), (models("b"), 1)), tmp_path / "out")
    (tmp_path / "b" / "model.safetensors").unlink()
    with pytest.raises((LbrxError, OSError), match=r"model\.safetensors"):
        lbrx.convert.perform(prepared.conversion, device="cpu")
    assert not (tmp_path / "out").exists()


def test_settings_that_differ_are_noted(model, tmp_path):
    model("a", rope_theta=10000.0)
    model("b", rope_theta=500000.0)
    config = linear((tmp_path / "a", 1), (tmp_path / "b", 1))
    (note,) = lbrx.merging.prepare(config, tmp_path / "out").merge.notes
    assert note.startswith("rope_theta is 500000.0 in ")


def test_models_without_config(tmp_path):
    """Plain files of tensors are merged by name."""
    for name, value in (("a", 1.0), ("b", 3.0)):
        save_file({"w": np.full((4, 4), value, np.float32)}, tmp_path / f"{name}.safetensors")
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    lbrx.merge(linear((files[0], 1), (files[1], 1)), tmp_path / "out.safetensors", device="cpu")
    assert (load_file(tmp_path / "out.safetensors")["w"] == 2).all()
    assert json.dumps(lbrx.open_model(tmp_path / "out.safetensors").config) == "{}"
