"""Tokenizers through GGUF's metadata and back, compared with the tokenizers package."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from tiny_tokenizers import CORPUS, byte_level, sentencepiece, write
from tokenizers import Tokenizer

import lbrx
from lbrx.files.formats import companions
from lbrx.files.formats.tokenizers import pretokenizers, vocabulary
from lbrx.files.formats.tokenizers.sentencepiece import LONGEST, merges_of
from lbrx.files.formats.tokenizers.sentencepiece import read as read_pieces
from lbrx.files.formats.tokenizers.tokenizer_files import tokenizer_files

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def through_gguf(folder: Path, target: Path, config=None) -> tuple[Tokenizer, dict]:
    """The tokenizer after a trip through a GGUF file, and its other settings."""
    lbrx.save(target, {}, vocabulary.to_gguf(folder, config or {}))
    files = tokenizer_files(lbrx.open_model(target).metadata)
    return Tokenizer.from_str(files["tokenizer.json"].decode()), json.loads(
        files["tokenizer_config.json"]
    )


def check(before: Tokenizer, after: Tokenizer) -> None:
    for text in CORPUS:
        ids = before.encode(text).ids
        assert after.encode(text).ids == ids
        assert after.decode(ids) == before.decode(ids)


@pytest.mark.parametrize("rule", pretokenizers.RULES)
def test_byte_level(rule, tmp_path):
    before = byte_level(rule)
    write(
        tmp_path,
        before,
        eos_token="<|end|>",
        bos_token={"content": "<|begin|>"},
        chat_template=TEMPLATE,
    )
    after, settings = through_gguf(tmp_path, tmp_path / "m.gguf")
    check(before, after)
    metadata = lbrx.open_model(tmp_path / "m.gguf").metadata
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    # llama-bpe and dbrx split alike; they differ in whether merges are ignored.
    expected = "dbrx" if rule == "llama-bpe" else rule
    assert metadata["tokenizer.ggml.pre"] == expected
    assert metadata["tokenizer.ggml.add_bos_token"] == (rule == "llama-bpe")
    assert (settings["bos_token"], settings["eos_token"]) == ("<|begin|>", "<|end|>")
    assert settings["chat_template"] == TEMPLATE
    assert after.token_to_id("<user>") == before.token_to_id("<user>")


def test_sentencepiece(tmp_path):
    before = sentencepiece()
    write(
        tmp_path, before, bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=True
    )
    after, settings = through_gguf(tmp_path, tmp_path / "m.gguf")
    check(before, after)
    metadata = lbrx.open_model(tmp_path / "m.gguf").metadata
    assert metadata["tokenizer.ggml.model"] == "llama"
    assert metadata["tokenizer.ggml.token_type"][:4] == [2, 3, 3, 6]
    assert settings["add_bos_token"] is True
    merges = [json.loads(t.to_str())["model"]["merges"] for t in (before, after)]
    assert {tuple(m) for m in merges[0]} <= {tuple(m) for m in merges[1]}


def test_a_sentencepiece_model_file_has_the_scores(tmp_path):
    before = sentencepiece()
    write(tmp_path, before)
    vocab = sorted(before.get_vocab().items(), key=lambda item: item[1])
    pieces = b""
    for text, number in vocab:
        data = text.encode()
        body = (
            b"\x0a" + bytes([len(data)]) + data + b"\x15" + struct.pack("<f", -number) + b"\x18\x01"
        )
        pieces += b"\x0a" + bytes([len(body)]) + body
    (tmp_path / "tokenizer.model").write_bytes(pieces)
    assert [piece.text for piece in read_pieces(tmp_path / "tokenizer.model")] == [
        t for t, _ in vocab
    ]
    assert vocabulary.to_gguf(tmp_path, {})["tokenizer.ggml.scores"] == [-n for _, n in vocab]
    (tmp_path / "tokenizer.model").write_bytes(pieces[:-3])
    with pytest.raises(lbrx.FormatError, match=r"tokenizer.model: protobuf message: is damaged"):
        vocabulary.to_gguf(tmp_path, {})


@pytest.mark.parametrize("levels", [3, 10**6])
def test_scores_as_merges(levels, rng):
    """Compared with all pairs of tokens. With few distinct scores some are equal."""
    for _ in range(30):
        texts = ["".join(rng.choice(list("ab▁"), rng.integers(1, 6))) for _ in range(50)]
        tokens = list(dict.fromkeys(texts))
        scores = {text: -float(rng.integers(levels)) for text in tokens if len(text) > 1}
        joined = [(a, b) for a in tokens for b in tokens if a + b in scores]
        merges = merges_of(tokens, scores)
        assert sorted(merges) == sorted(joined)
        keys = [(-scores[a + b], -len(a), -len(b)) for a, b in merges]
        assert keys == sorted(keys)
    longer = {"a" * size: 0.0 for size in (LONGEST - 1, LONGEST, LONGEST + 1)}
    assert merges_of(["a", *longer], longer) == [
        ("a" * (LONGEST - 1), "a"),
        ("a", "a" * (LONGEST - 1)),
    ]


def test_several_chat_templates(tmp_path):
    templates = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write(tmp_path, byte_level("gpt-2"), chat_template=templates)
    assert through_gguf(tmp_path, tmp_path / "m.gguf")[1]["chat_template"] == templates
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert vocabulary.to_gguf(tmp_path, {})["tokenizer.chat_template"] == "from the file"


def test_numbers_without_a_token(tmp_path):
    """An embedding may have more rows than the tokenizer has tokens."""
    tokenizer = byte_level("gpt-2")
    write(tmp_path, tokenizer)
    count = tokenizer.get_vocab_size() + 3
    metadata = vocabulary.to_gguf(tmp_path, {"vocab_size": count})
    assert len(metadata["tokenizer.ggml.tokens"]) == count
    assert metadata["tokenizer.ggml.token_type"][-4:] == [4, 5, 5, 5]
    check(tokenizer, through_gguf(tmp_path, tmp_path / "m.gguf", {"vocab_size": count})[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": {"type": "Unigram", "vocab": {}}, "decoder": None, "pre_tokenizer": None},
            "neither byte-level",
        ),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "x": 1, "use_regex": False}},
            "pre_tokenizer: .* has no name",
        ),
        ({"model": None}, "model: is not a model with a vocabulary"),
        (
            {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
            "vocab: a token's id is not",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 2**60}, "merges": []}},
            "vocab: a token's id is not",
        ),
        (
            {"added_tokens": [{"id": 10**12, "content": "<s>"}, {"id": 3, "content": "<s>"}]},
            "vocab: a token's id is not",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b c"]}},
            "merges: 'a b c' is not a pair",
        ),
    ],
)
def test_what_has_no_gguf_form(change, message, tmp_path):
    write(tmp_path, byte_level("gpt-2"))
    whole = json.loads((tmp_path / "tokenizer.json").read_text()) | change
    if isinstance(change.get("model"), dict):
        whole["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(lbrx.FormatError, match=message):
        vocabulary.to_gguf(tmp_path, {})


def test_the_real_tokenizer(smollm2, tmp_path):
    """The metadata of the packaged model after conversion to files and back."""
    model = lbrx.open_model(smollm2)
    for name, content in companions.folder_files(model.files, model.config).items():
        (tmp_path / name).write_bytes(content)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    prompt = "<|im_start|>user\nWhat's 12 + 30?<|im_end|>\n"
    assert tokenizer.encode(prompt).ids[:2] == [1, 4093]
    assert tokenizer.decode(tokenizer.encode(prompt).ids, skip_special_tokens=False) == prompt
    back = vocabulary.to_gguf(tmp_path, model.config)
    for key, value in back.items():
        if key != "tokenizer.ggml.add_eos_token":
            assert value == model.metadata[key], key
