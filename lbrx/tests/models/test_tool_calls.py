"""Calls of tools: grammars of every form, and the reader that splits answers as they are generated."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from lbrx.errors import LbrxError
from lbrx.models.constraints import RuledVocabulary
from lbrx.models.language_model import read_options
from lbrx.models.tokenizer import TextStream, Tokenizer
from lbrx.models.tool_calls import (
    GRANITE,
    HERMES,
    LLAMA,
    MISTRAL,
    PHI,
    AnswerRules,
    Thought,
    form_of,
    thought_of,
    with_system_tools,
)
from lbrx.serve.answer_reader import AnswerReader
from lbrx.serve.chat_request import Said

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")

FORMS = {"hermes": HERMES, "mistral": MISTRAL, "phi": PHI, "granite": GRANITE, "llama": LLAMA}
TOOLS = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", 'a "quoted" } one']}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {
                "numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}
            },
            "required": ["numbers"],
            "additionalProperties": False,
        },
    },
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """With the markers as texts, as visible tokens and as special tokens."""
    import tiny_tokenizers

    made = {}
    for kind in ("text", "visible", "special"):
        inner = tiny_tokenizers.byte_level("smollm")
        markers = ["<think>", "</think>", *(form.begin for form in FORMS.values() if form.begin)]
        markers += [form.end for form in FORMS.values() if form.end]
        if kind == "visible":
            inner.add_tokens(markers)
        elif kind == "special":
            inner.add_special_tokens(markers)
        folder = tmp_path_factory.mktemp(kind)
        inner.save(str(folder / "tokenizer.json"))
        template = "{{ messages }}{{ '</think>' }}"
        made[kind] = Tokenizer(folder / "tokenizer.json", {"chat_template": template})
    return made


@cache
def vocabulary(tokenizer: Tokenizer) -> RuledVocabulary:
    return RuledVocabulary(tokenizer, tokenizer.size, frozenset([1]))


def random_answer(tokenizer: Tokenizer, rules: AnswerRules, seed: int) -> str:
    """Random tokens that obey the rules; the end becomes likelier with time. A thought whose end
    is no token may be cut."""
    rng = np.random.default_rng(seed)
    constraint = vocabulary(tokenizer).constraint(read_options({"grammar": rules.lark()}).rules)
    stream, said = TextStream(tokenizer, special=True), ""
    for place in range(120):
        constraint.prepare()
        logits = rng.standard_normal(tokenizer.size).astype(np.float32)
        logits[1] += place / 10
        logits[tokenizer.encode(f'"}}]{rules.form.begin}</think>', special=False)] += 3
        token = int(np.argmax(constraint.masked(logits)))
        if token == 1:
            break
        ended = constraint.accept(token)
        said += stream.add(token)
        if ended:
            break
    else:
        assert rules.thought is Thought.BEGUN
        assert tokenizer.added_token_id("</think>") is None
    return said + stream.end()


def read(text: str, reader: AnswerReader, sizes) -> Said:
    """What the reader makes of a text that arrives in pieces of random sizes."""
    said, rest = Said(), text
    while rest:
        size = int(sizes.integers(1, 9))
        for part in reader.feed(rest[:size]):
            said.add(part)
        rest = rest[size:]
    for part in reader.end():
        said.add(part)
    return said


def check_calls(said: Said) -> None:
    schemas = {tool["name"]: tool["parameters"] for tool in TOOLS}
    for call in said.calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


@pytest.mark.parametrize("kind", ["text", "visible", "special"])
@pytest.mark.parametrize("name", FORMS)
def test_required_calls_are_read(tokenizers, name, kind):
    """Whatever a model writes, a required call is one of the tools' with arguments of its schema."""
    form, tokenizer = FORMS[name], tokenizers[kind]
    counts = set()
    for seed in range(6):
        rules = AnswerRules(tokenizer, form=form, tools=TOOLS, required=True, parallel=seed > 2)
        text = random_answer(tokenizer, rules, seed)
        said = read(text, AnswerReader(Thought.NEVER, form), np.random.default_rng(seed))
        check_calls(said)
        assert said.text == said.reasoning == ""
        assert len(said.calls) == 1 or (seed > 2 and form.begin)
        counts.add(len(said.calls))
    assert counts == {1} or form.begin


@pytest.mark.parametrize("kind", ["text", "visible", "special"])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("thought", [Thought.MAYBE, Thought.BEGUN])
def test_free_answers_are_read(tokenizers, name, kind, thought):
    """Thoughts, text and calls of free answers are told apart, and the pieces' sizes do not
    matter."""
    form, tokenizer = FORMS[name], tokenizers[kind]
    for seed in range(6):
        rules = AnswerRules(tokenizer, thought, form, TOOLS)
        text = random_answer(tokenizer, rules, seed)
        pieces = [
            read(text, AnswerReader(thought, form), np.random.default_rng(number))
            for number in range(3)
        ]
        whole = [
            (said.reasoning, said.text, [(call.name, call.arguments) for call in said.calls])
            for said in pieces
        ]
        assert whole[1:] == whole[:1] * 2
        check_calls(pieces[0])
        assert form.begin == "" or form.begin not in pieces[0].text


@pytest.mark.parametrize(
    ("form", "thought", "text", "reasoning", "shown", "calls"),
    [
        (HERMES, "never", "  plain < text", "", "  plain < text", []),
        (None, "maybe", "<think>why</think>\n\nSo.", "why", "So.", []),
        (None, "begun", "why</thin</think>So.", "why</thin", "So.", []),
        (None, "begun", "cut", "cut", "", []),
        (
            HERMES,
            "never",
            'I ask.\n<tool_call>\n{"name": "f", "arguments": {"x": "}\\"{"}}\n</tool_call>\n'
            '<tool_call>{"name":"g","arguments":[1]}</tool_call> ',
            "",
            "I ask.",
            [("f", '{"x": "}\\"{"}'), ("g", "[1]")],
        ),
        (
            HERMES,
            "never",
            '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>',
            "",
            "",
            [("f", '{"x": 1}')],
        ),
        (HERMES, "never", "<tool_call>rubbish", "", "<tool_call>rubbish", []),
        (
            HERMES,
            "never",
            '<tool_call>{"name": "f", "argum',
            "",
            '<tool_call>{"name": "f", "argum',
            [],
        ),
        (HERMES, "never", '<tool_call>{"name": "f", "arguments": {"x', "", "", [("f", '{"x')]),
        (HERMES, "never", "<tool_call>" + "[" * 100_000, "", "<tool_call>" + "[" * 100_000, []),
        (
            MISTRAL,
            "never",
            '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": []}}]',
            "",
            "",
            [("f", "{}"), ("g", '{"a": []}')],
        ),
        (LLAMA, "never", ' {"name": "f", "parameters": {"x": 1}}', "", "", [("f", '{"x": 1}')]),
        (LLAMA, "never", "{curly} text", "", "{curly} text", []),
    ],
)
def test_reading(form, thought, text, reasoning, shown, calls):
    for seed in range(5):
        said = read(text, AnswerReader(Thought(thought), form), np.random.default_rng(seed))
        assert (said.reasoning, said.text) == (reasoning, shown)
        assert [(call.name, call.arguments) for call in said.calls] == calls


def test_forms_of_templates(tokenizers):
    def tokenizer(template):
        made = Tokenizer.__new__(Tokenizer)
        made.settings = {"chat_template": template}
        return made

    for template, form in (
        ("{{ messages }}", HERMES),
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", MISTRAL),
        ("{% if tools %}<|tool_call|><|/tool_call|>{% endif %}", PHI),
        ("{% if tools %}<|tool_call|>{% endif %}", GRANITE),
        ("{% if tools %}<|python_tag|>{% endif %}", LLAMA),
        ([{"name": "default", "template": ""}, {"name": "tool_use", "template": "tools[TOOL_CALLS]"}],
         MISTRAL),
    ):  # fmt: skip
        assert form_of(tokenizer(template)) is form
    for template in ("{{ tools }}<tool_call><function=", "{{ tools }}"):
        with pytest.raises(LbrxError, match="form that is not known"):
            form_of(tokenizer(template))
    assert thought_of(tokenizers["visible"], tokenizers["visible"].encode("x<think>\n")) is (
        Thought.BEGUN
    )
    assert thought_of(tokenizers["text"], tokenizers["text"].encode("x")) is Thought.MAYBE


def test_tools_of_a_template_that_knows_none():
    call = {"function": {"name": "f", "arguments": {"x": "é"}}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    written = with_system_tools(messages, TOOLS)
    assert [each["role"] for each in written] == ["system", "user", "assistant", "user"]
    assert written[0]["content"].startswith("Be kind.\n\nYou may call these tools:")
    assert json.dumps(TOOLS[1]) in written[0]["content"]
    assert written[2]["content"] == (
        '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
    )
    assert "42" in written[3]["content"]
    assert with_system_tools(messages[1:2], []) == messages[1:2]
