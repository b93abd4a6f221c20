"""mergekit's YAML, and what is refused."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx import FormatError
from lbrx.merging.config import (
    Filtered,
    ModelReference,
    TokenRow,
    documents,
    dump,
    load,
    parse,
    parse_model,
)

LINEAR = "merge_method: linear\nmodels:\n- model: a\n  parameters: {weight: 1}\n"


def read(text):
    return parse(documents(text, "test")[0])


def test_everything_a_configuration_can_have():
    config = read("""
merge_method: ties
base_model: base
dtype: float32
out_dtype: bfloat16
chat_template: auto
parameters:
  normalize: true
  density: [0, 0.5, 1]
  weight:
  - {filter: self_attn, value: [0, 1]}
  - value: 0.5
tokenizer:
  source: union
  pad_to_multiple_of: 64
  tokens:
    <|im_start|>: {source: b, force: true}
    <|x|>: {source: {kind: model_token, model: b, token: y}}
    <|z|>: {source: {kind: zero}}
slices:
- sources:
  - {model: a, layer_range: [0, 4], parameters: {weight: 1}}
  - {model: {model: b, lora: c}, layer_range: [4, 8]}
  parameters: {density: 0.25}
- sources: [{model: base+lora, layer_range: [0, 1]}]
""")
    assert config.method == "ties"
    assert config.base_model == ModelReference("base")
    assert (config.dtype, config.out_dtype, config.chat_template) == (
        "float32",
        "bfloat16",
        "auto",
    )
    assert config.parameters["density"] == (0, 0.5, 1)
    assert config.parameters["weight"] == (Filtered("self_attn", (0, 1)), Filtered(None, 0.5))
    first, second = config.body.slices
    assert first.sources[1].model == ModelReference("b", "c")
    assert first.sources[0].layer_range == (0, 4)
    assert second.sources[0].model == ModelReference("base", "lora")
    assert config.tokenizer is not None
    assert config.tokenizer.pad_to_multiple_of == 64
    rows = config.tokenizer.tokens
    assert rows["<|im_start|>"].source == TokenRow(ModelReference("b"))
    assert rows["<|im_start|>"].force
    assert rows["<|x|>"].source == TokenRow(ModelReference("b"), "y")
    assert rows["<|z|>"].source == TokenRow(None)


def test_modules_and_short_tokenizer_source():
    config = read("""
merge_method: linear
tokenizer_source: base
modules:
  default:
    parameters: {weight: 2}
    models: [{model: a}, {model: b}]
""")
    assert [entry.model.path for entry in config.body.models] == ["a", "b"]
    assert config.body.parameters == {"weight": 2}
    assert config.tokenizer is not None
    assert config.tokenizer.source == "base"


def test_documents_survive_dump():
    document = documents(LINEAR, "test")[0]
    assert documents(dump(document), "test") == [document]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", ModelReference("a")),
        ("a+b", ModelReference("a", "b")),
        ("x/y+z/w", ModelReference("x/y", "z/w")),
        ({"model": "a", "lora": "b"}, ModelReference("a", "b")),
        ({"model": {"path": "a", "revision": None}}, ModelReference("a")),
        ({"model": {"path": "a/b", "revision": "v1"}}, ModelReference("a/b@v1")),
    ],
)
def test_model_references(value, expected):
    assert parse_model(value) == expected


def test_a_path_with_a_plus_sign(tmp_path):
    folder = tmp_path / "a+b"
    folder.mkdir()
    assert parse_model(str(folder)) == ModelReference(str(folder))
    assert parse_model(f"{folder}+lora") == ModelReference(str(folder), "lora")


BAD = {
    "models: [{model: a}]": "merge_method is missing",
    "merge_method: linear": "give exactly one of models, slices, modules",
    f"{LINEAR}slices: []": "has models and slices",
    f"{LINEAR}base_modell: a": "base_modell is not a key .*: did you mean base_model",
    f"{LINEAR}zzz: a": "the known ones are merge_method",
    "merge_method: linear\nmodels: a": "models is 'a': give a list",
    "merge_method: linear\nmodels: []": r"models is \[\]: give a list",
    "merge_method: linear\nmodels: [a]": r"models\[0\] is 'a': give keys and values",
    "merge_method: linear\nmodels: [{model: }]": r"models\[0\].model is missing",
    "merge_method: linear\nmodels: [{model: a, weight: 1}]": r"models\[0\].weight is not a key",
    "merge_method: 5\nmodels: [{model: a}]": "merge_method is 5: give text",
    f"{LINEAR}parameters: {{t: }}": "parameters.t is missing: give a number",
    f"{LINEAR}parameters: {{t: [[1]]}}": r"parameters.t is \[\[1\]\]",
    f"{LINEAR}parameters: {{t: [{{filter: a}}]}}": r"parameters.t\[0\].value is missing",
    f"{LINEAR}parameters: {{t: [1, {{value: 2}}]}}": r"parameters.t\[0\] is 1: give keys",
    f"{LINEAR}parameters: {{1: 2}}": "is 1: give text",
    f"{LINEAR}tokenizer: {{}}\ntokenizer_source: base": "both given",
    f"{LINEAR}tokenizer: {{pad_to_multiple_of: 0}}": "pad_to_multiple_of is 0",
    f"{LINEAR}tokenizer: {{tokens: {{a: {{source: {{kind: q}}}}}}}}": "kind is 'q'",
    f"{LINEAR}tokenizer: {{tokens: {{a: {{source: {{kind: model_token, model: b}}}}}}}}": (
        "token and token_id, or neither"
    ),
    "merge_method: passthrough\nslices: [{sources: [{model: a}]}]": "layer_range is missing",
    "merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [2, 1]}]}]": (
        r"layer_range is \[2, 1\]: give a range of layers"
    ),
    "merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [0, 1e9]}]}]": (
        "layer_range"
    ),
    "merge_method: linear\nmodels: [{model: {model: {path: a, revision: b}}}]": "a local folder",
    "merge_method: linear\nmodels: [{model: {model: a, override_architecture: b}}]": "model_type",
    "merge_method: linear\nmodules: {a: {models: [{model: a}]}, b: {}}": "one module",
    "- a\n- b": "a document that is a list",
    "a: [": "is not YAML",
    "": "has no document",
    "a: &a [*a]\nmerge_method: x": "line 1: .* is used inside itself",
    "!!python/object/apply:os.system [ls]": "the tag .* is not used here",
}


@pytest.mark.parametrize("text", BAD)
def test_refused(text):
    with pytest.raises(FormatError, match=BAD[text]):
        read(text)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(
    "merge_method models slices modules base_model parameters tokenizer sources model lora "
    "layer_range weight filter value tokens source kind force name x".split()
)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5)
)


@given(st.dictionaries(KEYS, DOCUMENTS, max_size=8))
@settings(deadline=None, database=None, max_examples=40)
def test_any_document_is_read_or_refused(document):
    with suppress(FormatError):
        parse({"merge_method": "linear", **document})


def test_without_pyyaml(monkeypatch):
    """A dictionary needs none; a file says what to install."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert dump({"merge_method": "linear"}) == '{\n  "merge_method": "linear"\n}\n'
    with pytest.raises(FormatError, match=r"pip install pyyaml \(the extra lbrx\[merge\]\)"):
        documents(LINEAR, "test")


NOT_CONFIGURATIONS = {
    "a number": (5, "the configuration is a int: give a YAML file"),
    "a list of text": (["a"], "the configuration is a list: give a YAML file"),
    "nothing": ([], "the configuration is empty"),
    "a path": ({"merge_method": Path("a")}, "not YAML .*PosixPath.*: give text, numbers, lists"),
    "an array": ({"parameters": {"t": np.float32(1)}}, "is not YAML .*: give text, numbers"),
}


@pytest.mark.parametrize("without_pyyaml", [False, True])
@pytest.mark.parametrize("case", NOT_CONFIGURATIONS)
def test_objects_that_are_not_configurations(monkeypatch, case, without_pyyaml):
    if without_pyyaml:
        monkeypatch.setitem(sys.modules, "yaml", None)
    given, problem = NOT_CONFIGURATIONS[case]
    with pytest.raises(FormatError, match=problem):
        lbrx.merge(given)


def test_files_that_are_not_yaml(tmp_path):
    for content, problem in ((b"\xff\xfe\x00", "not UTF-8"), (b"#" * (1 << 21), "bytes")):
        (tmp_path / "c.yml").write_bytes(content)
        with pytest.raises(FormatError, match=problem):
            load(tmp_path / "c.yml")
    with pytest.raises(FormatError, match="No such file"):
        load(tmp_path / "none.yml")
    with pytest.raises(FormatError, match="has more than 1,048,576 bytes"):
        load("/dev/zero")


def test_a_byte_order_mark_and_a_pipe(tmp_path):
    (tmp_path / "c.yml").write_bytes(b"\xef\xbb\xbf" + LINEAR.encode())
    assert load(tmp_path / "c.yml")[1] == LINEAR
    reading, writing = os.pipe()
    with open(writing, "w") as file:
        file.write(LINEAR)
    assert load(f"/dev/fd/{reading}")[1] == LINEAR
    os.close(reading)
