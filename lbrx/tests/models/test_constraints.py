"""Texts that have to obey a schema, a regular expression or a grammar: whatever the weights are, the
output does, and the choice among what is allowed is that of the logits."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import lbrx
from lbrx.errors import LbrxError
from lbrx.models.batch_engine import BatchEngine, Job
from lbrx.models.constraints import RuledVocabulary
from lbrx.models.generation import FinishReason
from lbrx.models.language_model import read_options
from lbrx.models.tokenizer import Tokenizer

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")

SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"enum": ["a", "é", 3, None]}, "minItems": 2, "maxItems": 4},
    "choice": {"anyOf": [{"const": {"x": [1, 2]}}, {"type": "boolean"}]},
    "reference": {
        "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1}},
        "$ref": "#/$defs/node",
    },
}
SAMPLERS = ({}, {"temperature": 1.5, "seed": 3}, {"temperature": 1.0, "top_k": 3, "seed": 4})


@pytest.fixture(scope="module")
def model(make_model):
    return lbrx.language_model(make_model("llama", max_position_embeddings=1024), context=1024)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("options", SAMPLERS, ids=str)
def test_json_of_a_schema(model, name, options):
    """Random weights write JSON of the schema to its end, or a beginning of it."""
    made = model.generate("Hello", schema=SCHEMAS[name], max_tokens=400, **options)
    if made.finish_reason == FinishReason.END:
        jsonschema.validate(json.loads(made.text), SCHEMAS[name])
    assert made.finish_reason == FinishReason.END or name == "reference"


@pytest.mark.parametrize(
    ("rule", "pattern"),
    [
        ({"regex": "[a-c]{3,5}é?(x|yy)"}, "[a-c]{3,5}é?(x|yy)"),
        ({"grammar": 'start: "yes" | "no" | NUMBER\nNUMBER: /[0-9]{2}/'}, "yes|no|[0-9]{2}"),
        ({"grammar": 'root ::= ("ab" | "c")  "!"'}, "(ab|c)!"),
    ],
    ids=["regex", "lark", "gbnf"],
)
def test_texts_of_a_pattern(model, rule, pattern):
    for options in SAMPLERS:
        made = model.generate("Hello", ignore_end=True, max_tokens=30, **rule, **options)
        assert made.finish_reason == FinishReason.END
        assert re.fullmatch(pattern, made.text)


def test_the_most_likely_allowed_token_is_chosen(model):
    """An oracle over all tokens: of those that keep to "[ab]+", the one with the largest logit."""
    tokens = model.prompt_tokens("Hello")
    made = model.generate(tokens, regex="[ab]{6}", max_tokens=6)
    said = ""
    for token in made.tokens:
        scores = model.engine.all_logits(tokens).numpy()[-1]
        words = [model.tokenizer.decode([each], special=True) for each in range(len(scores))]
        fits = [bool(word and re.fullmatch("[ab]{1,6}", said + word)) for word in words]
        assert token == int(np.argmax(np.where(fits, scores, -np.inf)))
        tokens, said = [*tokens, token], said + words[token]
    assert said == made.text


def test_other_texts_of_the_batch_have_no_rules(model):
    """A constrained text beside others: each is as alone."""
    engine = BatchEngine(model.engine, 3, deterministic=True)
    shown: dict[str, str] = {"rule": "", "free": "", "greedy": ""}
    kinds = {
        "rule": {"schema": SCHEMAS["person"], "temperature": 1.0, "seed": 1},
        "free": {"temperature": 1.0, "seed": 1},
        "greedy": {},
    }

    def start(name: str, engine: BatchEngine) -> None:
        def listen(piece):
            assert piece.error is None
            shown[name] += piece.shown

        options = read_options({"max_tokens": 60, **kinds[name]})
        text = model.new_text(model.prompt_tokens("Hello"), options, 1024)
        engine.submit(Job(text, model.end_tokens, listen))

    for name in kinds:
        start(name, engine)
    while engine.step():
        pass
    together, shown = shown, dict.fromkeys(shown, "")
    for name in kinds:
        start(name, engine)
        while engine.step():
            pass
    assert shown == together
    jsonschema.validate(json.loads(shown["rule"]), SCHEMAS["person"])


@pytest.mark.parametrize("maker", ["byte_level", "sentencepiece"])
def test_tokenizers_of_both_kinds(maker, tmp_path):
    import tiny_tokenizers

    inner = {
        "byte_level": lambda: tiny_tokenizers.byte_level("gpt-2"),
        "sentencepiece": tiny_tokenizers.sentencepiece,
    }[maker]()
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", {})
    vocabulary = RuledVocabulary(tokenizer, tokenizer.size, frozenset([1]))
    rules = read_options({"regex": "naïve 漢字!"}).rules
    constraint = vocabulary.constraint(rules)
    logits = np.zeros(tokenizer.size, np.float32)
    tokens = []
    while True:
        constraint.prepare()
        tokens.append(int(np.argmax(constraint.masked(logits))))
        if constraint.accept(tokens[-1]):
            break
    assert tokenizer.decode(tokens).strip() == "naïve 漢字!"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": {"type": "word"}}, "schema cannot be followed"),
        ({"schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"schema": {"$ref": "http://127.0.0.1/x"}}, "schema cannot be followed"),
        ({"schema": 3}, "give a JSON schema as a mapping"),
        ({"schema": {"x": object()}}, "schema cannot be followed"),
        ({"regex": "("}, "cannot be followed"),
        ({"regex": ""}, "give a string"),
        ({"grammar": "start: nothing"}, "cannot be followed"),
        ({"grammar": 3}, "give a string"),
        ({"schema": {}, "regex": "a"}, "give only one of them"),
    ],
)
def test_bad_rules(model, options, message):
    with pytest.raises(LbrxError, match=message):
        model.generate("Hello", **options)


def test_a_rule_that_no_token_obeys(model):
    """It ends the text with an error instead of leaving the rule."""
    options = read_options({"regex": "[a-z]+"})
    text = model.new_text(model.prompt_tokens("Hello"), options, 1024)
    logits = np.zeros(model.config.vocabulary, np.float32)
    text.accept(text.choose(logits), logits, model.end_tokens)
    wrong = model.prompt_tokens("3")[-1]
    with pytest.raises(LbrxError, match="rules of the output failed"):
        text.accept(wrong, logits, model.end_tokens)


def test_without_the_package(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(LbrxError, match="pip install llguidance"):
        model.generate("Hello", regex="a")
