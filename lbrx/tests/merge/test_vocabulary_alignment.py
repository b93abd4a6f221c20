"""Models with different tokenizers: union, base, another model's, rows of single tokens, padding."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest
from merge_checks import linear, mean, merged
from tokenizers import Tokenizer

import lbrx
from lbrx import FormatError

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def with_tokens(tokenizer, *tokens):
    result = Tokenizer.from_str(tokenizer.to_str())
    result.add_tokens(list(tokens))
    return result


@pytest.fixture
def trio(model, with_tokenizer, tokenizer, tmp_path):
    """A base, a model with one token more, and one with two, of which one is another."""
    made = {}
    for name, tokens in (("base", ()), ("one", ("<x>",)), ("two", ("<y>", "<x>"))):
        own = with_tokens(tokenizer, *tokens)
        made[name] = model(name, vocab=own.get_vocab_size())
        with_tokenizer(name, own, bos_token="<|begin|>", chat_template=f"{{{{ {name} }}}}")
    return made, tokenizer.get_vocab_size()


def config(tmp_path, *names, **settings):
    return linear(*((tmp_path / name, 1) for name in names), **settings)


def ids(path):
    return Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab()


def test_union_without_a_base(trio, tmp_path):
    """Rows that a model lacks are the only holder's or the mean of the holders."""
    made, size = trio
    found = merged(
        config(tmp_path, "base", "one", "two", tokenizer_source="union"), tmp_path / "out"
    )
    vocabulary = ids(tmp_path / "out")
    assert len(vocabulary) == size + 2
    assert found.config["vocab_size"] == size + 2
    assert (vocabulary["<x>"], vocabulary["<y>"]) == (size, size + 1)
    for name in (EMBEDDING, OUTPUT):
        base, one, two = (made[model][name].astype(np.float64) for model in ("base", "one", "two"))
        rows = found[name].numpy()
        assert rows.shape == (size + 2, 16)
        expected = (base[:size] + one[:size] + two[:size]) / 3
        np.testing.assert_allclose(rows[:size], expected, atol=1e-6)
        # <x> is row `size` of one and row size + 1 of two: base gets their mean.
        x, y = mean(one[size], two[size + 1]), two[size]
        np.testing.assert_allclose(rows[size], (one[size] + two[size + 1] + x) / 3, atol=1e-6)
        np.testing.assert_allclose(rows[size + 1], y, atol=1e-6)


def test_base_tokenizer_drops_tokens(trio, tmp_path):
    made, size = trio
    settings = config(
        tmp_path, "one", "two", base_model=str(tmp_path / "base"), tokenizer_source="base"
    )
    found = merged(settings, tmp_path / "out")
    assert found[EMBEDDING].shape == (size, 16)
    expected = mean(made["one"][EMBEDDING][:size], made["two"][EMBEDDING][:size])
    np.testing.assert_allclose(found[EMBEDDING].numpy(), expected, atol=1e-6)
    assert ids(tmp_path / "out") == ids(tmp_path / "base")


def test_another_models_tokenizer_and_padding(trio, tmp_path):
    made, size = trio
    tokenizer = {"source": str(tmp_path / "two"), "pad_to_multiple_of": 64}
    found = merged(config(tmp_path, "base", "two", tokenizer=tokenizer), tmp_path / "out")
    rows = found[EMBEDDING].numpy().astype(np.float64)
    assert len(rows) % 64 == 0
    two = made["two"][EMBEDDING]
    np.testing.assert_allclose(rows[size : size + 2], two[size : size + 2], atol=1e-6)
    base = np.concatenate([made["base"][EMBEDDING], two[size:]]).astype(np.float64)
    padding = mean(base.mean(axis=0), two.astype(np.float64).mean(axis=0))
    np.testing.assert_allclose(
        rows[size + 2 :], np.broadcast_to(padding, rows[size + 2 :].shape), atol=1e-6
    )
    assert ids(tmp_path / "out") == ids(tmp_path / "two")


def test_rows_of_single_tokens(trio, tmp_path):
    made, size = trio
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    tokens = {
        "<x>": {"source": one},
        "<y>": {"source": {"kind": "zero"}, "force": True},
        "<new>": {"source": {"kind": "model_token", "model": two, "token": "<y>"}},
        "<user>": {"source": two, "force": True},
        "<|end|>": {"source": {"kind": "model_token", "model": one, "token_id": 3}, "force": True},
    }
    settings = config(tmp_path, "one", "two", tokenizer={"source": "union", "tokens": tokens})
    found = merged(settings, tmp_path / "out")[EMBEDDING].numpy()
    vocabulary = ids(tmp_path / "out")
    a, b = made["one"][EMBEDDING], made["two"][EMBEDDING]
    np.testing.assert_allclose(found[vocabulary["<x>"]], mean(a[size], b[size + 1]), atol=1e-6)
    assert not found[vocabulary["<y>"]].any()
    np.testing.assert_allclose(found[vocabulary["<new>"]], b[size], atol=1e-6)
    user = ids(tmp_path / "two")["<user>"]
    np.testing.assert_allclose(found[vocabulary["<user>"]], b[user], atol=1e-6)
    np.testing.assert_allclose(found[vocabulary["<|end|>"]], a[3], atol=1e-6)


def test_same_tokens_need_no_alignment(trio, tmp_path, model, with_tokenizer, tokenizer):
    """Equal vocabularies stay stored tensors, so that a copy is one bit for bit."""
    made, _ = trio
    settings = {
        "merge_method": "passthrough",
        "models": [{"model": str(tmp_path / "one")}],
        "tokenizer_source": "base",
    }
    found = merged(settings, tmp_path / "out")
    np.testing.assert_array_equal(found[EMBEDDING].numpy(), made["one"][EMBEDDING])


def test_refusals(trio, tmp_path, model):
    with pytest.raises(FormatError, match=r"the vocabularies differ: .* add tokenizer_source"):
        lbrx.merge(config(tmp_path, "base", "one"))
    model("bare", vocab=17)
    with pytest.raises(FormatError, match="bare has no tokenizer, so its vocabulary cannot be"):
        lbrx.merge(config(tmp_path, "base", "bare", tokenizer_source="union"))
    tokens = {
        "<x>": {"source": {"kind": "model_token", "model": str(tmp_path / "one"), "token": "<zz>"}}
    }
    with pytest.raises(FormatError, match=r"token '<x>': .*one has no token '<zz>'"):
        lbrx.merge(config(tmp_path, "base", "one", tokenizer={"tokens": tokens}))
    tokens = {"<x>": {"source": str(tmp_path / "two")}}
    with pytest.raises(FormatError, match="does not take part"):
        lbrx.merge(config(tmp_path, "base", "one", tokenizer={"tokens": tokens}))


def test_tokenizers_of_one_size_that_differ(model, with_tokenizer, tokenizer, tmp_path):
    """A few renamed tokens are noted; another vocabulary of the same size is refused."""
    size = tokenizer.get_vocab_size()
    whole = json.loads(tokenizer.to_str())
    renamed = json.loads(json.dumps(whole).replace("<user>", "<person>"))
    shuffled = json.loads(json.dumps(whole))
    words = shuffled["model"]["vocab"]
    words |= dict(zip(list(words)[300:], reversed(list(words.values())[300:]), strict=True))
    for name, document in (("a", whole), ("b", renamed), ("c", shuffled)):
        model(name, vocab=size)
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(document))
    (note,) = lbrx.merging.prepare(config(tmp_path, "a", "b"), tmp_path / "out").merge.notes
    assert note.startswith("1 tokens of ")
    assert "<person>" in note
    with pytest.raises(FormatError, match=r"tokens of .*c have other ids in .*a: add"):
        lbrx.merge(config(tmp_path, "a", "c"))


@pytest.mark.parametrize(
    ("template", "expected"),
    [("{{ mine }}", "{{ mine }}"), ("auto", "{{ base }}"), ("chatml", "<|im_start|>")],
)
def test_chat_templates(trio, tmp_path, template, expected):
    settings = config(tmp_path, "base", "one", tokenizer_source="union", chat_template=template)
    lbrx.merge(settings, tmp_path / "out", device="cpu")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert expected in written["chat_template"]
    assert written["bos_token"] == "<|begin|>"
    assert expected in (tmp_path / "out" / "chat_template.jinja").read_text()


def test_an_unknown_chat_template(trio, tmp_path):
    with pytest.raises(
        FormatError, match=r"'chatlm' is not the text or name .* did you mean chatml"
    ):
        lbrx.merge(config(tmp_path, "base", chat_template="chatlm"))


def test_the_union_becomes_a_gguf_and_runs(trio, tmp_path):
    """The merged vocabulary is in the GGUF, and the unwritten model generates text."""
    _, size = trio
    settings = config(tmp_path, "base", "one", tokenizer_source="union")
    lbrx.merge(settings, tmp_path / "out.gguf", device="cpu")
    metadata = lbrx.open_model(tmp_path / "out.gguf").metadata
    assert len(metadata["tokenizer.ggml.tokens"]) == size + 1
    assert metadata["tokenizer.ggml.tokens"][-1] == "<x>"
    assert metadata["general.name"] == "out"
    model = lbrx.merge(settings)
    folder = model.files.tokenizer.parent
    llm = lbrx.language_model(model, device="cpu")
    same = lbrx.language_model(tmp_path / "out.gguf", device="cpu")
    texts = [m.generate("Hello", max_tokens=4).text for m in (llm, same)]
    assert texts[0] == texts[1]
    assert folder.exists()
    del model, llm
    gc.collect()
    assert not folder.exists(), "the temporary tokenizer is removed with its model"
