"""lbrx generate and lbrx perplexity: what they print, and what they say of bad input."""

from __future__ import annotations

import io
import json
import re
import shutil

import numpy as np
import pytest

import lbrx
from lbrx.cli import main
from lbrx.models import Stream, engine, load, plan

SPEEDS = re.compile(
    r"prefill \d+ tok/s, decode \d+ tok/s, first token \d+\.\d\d s, peak \d+ MB, .+"
)


@pytest.fixture(scope="module")
def folder(make_model):
    return make_model("llama")


def said(capsys, *arguments) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_completes_and_reports(folder, capsys):
    status, out, err = said(capsys, "generate", folder, "-p", "Hello", "-n", 5, "--ignore-end")
    assert status == 0
    assert out == load(folder).generate("Hello", max_tokens=5, ignore_end=True).text + "\n"
    assert SPEEDS.fullmatch(err.strip())


def test_chat_answers_the_prompt(folder, capsys):
    options = ("-n", 5, "--ignore-end")
    status, out, _ = said(capsys, "generate", folder, "--chat", "-p", "Hello", *options)
    wanted = load(folder).chat(
        [{"role": "user", "content": "Hello"}], max_tokens=5, ignore_end=True
    )
    assert (status, out) == (0, wanted.text + "\n")


def test_a_conversation_has_a_history(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\nmore\n"))
    status, out, err = said(capsys, "generate", folder, "--chat", "-n", 4, "--system", "Be brief.")
    model = load(folder)
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    first = model.chat(talk, max_tokens=4).text
    talk += [{"role": "assistant", "content": first}, {"role": "user", "content": "more"}]
    assert (status, out) == (0, f"{first}\n{model.chat(talk, max_tokens=4).text}\n")
    assert err.count("prefill") == 2


def test_prompt_from_stdin_and_prompt_cache(folder, capsys, monkeypatch, tmp_path):
    texts = []
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello there"))
        saved = ("--prompt-cache", tmp_path / "cache")
        status, out, _ = said(capsys, "generate", folder, "-p", "-", "-n", 4, *saved)
        texts.append(out)
        assert status == 0
    assert texts[0] == texts[1]


def test_an_interrupt_ends_it(folder, capsys, monkeypatch):
    def interrupted(self, *_):
        yield "some"
        raise KeyboardInterrupt

    monkeypatch.setattr(Stream, "_run", interrupted)
    status, out, err = said(capsys, "generate", folder, "-p", "Hello")
    assert (status, out) == (130, "some\n")
    assert "Traceback" not in err


def test_perplexity(folder, capsys, tmp_path):
    text = "Hello, world! It's 12345 o'clock.\n" * 8
    (tmp_path / "text").write_text(text)
    status, out, _ = said(capsys, "perplexity", folder, tmp_path / "text", "--context", 64)
    assert status == 0
    found = re.fullmatch(r"perplexity (\d+\.\d{4}), (\d+) tokens, \d+\.\d s\n", out)
    model = load(folder, context=64)
    tokens = model.tokenizer.encode(text)
    assert int(found[2]) == len(tokens) > 64
    scores = model.log_probabilities(tokens)
    assert len(scores) == len(tokens) - -(-len(tokens) // 64)
    assert float(found[1]) == pytest.approx(np.exp(-np.mean(scores)), abs=1e-3)


def changed(folder, tmp_path, **settings):
    """A copy of the model with another config.json."""
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **settings}))
    return target


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "nobody"}, "architecture 'nobody' is unknown: lbrx runs gemma2, .*llama"),
        ({"num_hidden_layers": 3}, r"no tensor model\.layers\.2\..*incomplete, or config.json"),
        ({"hidden_size": 32}, r"has shape \(620, 64\), and config.json says \(620, 32\)"),
        ({"num_attention_heads": 3}, "3 heads do not divide among 2"),
        ({"vocab_size": "many"}, "vocab_size: 'many' is no size"),
        ({"rope_scaling": {"type": "magic", "factor": 2}}, "'magic' is unknown: lbrx has linear"),
    ],
    ids=str,
)
def test_a_config_that_makes_no_sense(settings, message, folder, tmp_path, capsys):
    target = changed(folder, tmp_path, **settings)
    status, out, err = said(capsys, "generate", target, "-p", "Hello")
    assert (status, out) == (1, "")
    assert re.search(message, err), err
    assert err.startswith("lbrx: ")
    assert err.count("\n") == 1


def test_a_file_that_is_cut_short(folder, tmp_path, capsys):
    target = changed(folder, tmp_path)
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    status, _, err = said(capsys, "generate", target, "-p", "Hello")
    assert status == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "-p", "x"), "nowhere is no file or folder, and no packaged model: smollm2"),
        (("{}",), "there is no prompt: give -p TEXT"),
        (("{}", "-p", ""), "prompt is empty"),
        (("{}", "-p", "x", "--top-p", "7"), "top_p=7.0: give a number, 0 to 1"),
        (("{}", "-p", "x", "--context", "100000"), "context=100000: give a whole number, 2 to 64"),
        (("{}", "-p", "x", "--cache-type", "int8"), "a cache of int8 is not possible"),
        (("{}", "-p", "x", "--cache-type", "q8_0"), "heads of 16 features are no whole blocks"),
        (("{}", "-p", "x", "--prompt-cache", "{}/config.json"), "config.json"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, message, folder, capsys):
    given = [argument.replace("{}", str(folder)) for argument in arguments]
    status, _, err = said(capsys, "generate", *given)
    assert status == 1
    assert message in err


def test_a_model_that_does_not_fit_is_refused(folder):
    config = load(folder).config
    memory = plan.plan(config, 10 << 30, 8192, 2, engine.CHUNK, 11 << 30)
    memory.check()
    assert str(memory).startswith("weights 10.00 GiB, cache of 8,192 tokens ")
    with pytest.raises(lbrx.LbrxError, match=r"does not fit.*smaller or a more strongly quantized"):
        plan.plan(config, 12 << 30, 8192, 2, engine.CHUNK, 11 << 30).check()
    room = (10 << 30) + memory.scratch + config.cache_bytes(1000, 2)
    with pytest.raises(lbrx.LbrxError, match="a context of 768 tokens fits"):
        plan.plan(config, 10 << 30, 8192, 2, engine.CHUNK, room).check()
