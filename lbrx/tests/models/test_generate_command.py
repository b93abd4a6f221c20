"""lbrx generate and lbrx perplexity: output, interrupts and bad input."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli import main
from lbrx.cli.generate import speeds
from lbrx.files.formats import ENCODINGS, Format, Inline, ModelFiles, TensorInfo
from lbrx.merging.lora import applied
from lbrx.metal import context
from lbrx.models import LanguageModel, Stream, memory_plan
from lbrx.models.engine import Engine
from lbrx.models.weights import bytes_in_memory

PLAN = r"weights \d+ MiB, cache of [\d,]+ tokens \d+ MiB, scratch \d+ MiB: \d+ MiB of .+\n"
SPEEDS = re.compile(
    PLAN + r"prefill \d+ tok/s, decode \d+ tok/s, first token \d+\.\d\d s, peak \d+ MB, .+?"
    r"( \(compiled \d+ kernels in \d+\.\d s\))?(, ended by (end|stop|length))?"
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
    assert (
        out
        == lbrx.language_model(folder).generate("Hello", max_tokens=5, ignore_end=True).text + "\n"
    )
    assert SPEEDS.fullmatch(err.strip())


def test_the_command_reads_rules_from_files(folder, tmp_path, capsys):
    (tmp_path / "schema.json").write_text('{"enum": ["é", [3]]}')
    (tmp_path / "grammar.lark").write_text('start: "é" | "[3]"')
    for rule in (
        ["--schema", str(tmp_path / "schema.json")],
        ["--grammar", str(tmp_path / "grammar.lark")],
        ["--regex", "é|\\[3\\]"],
    ):
        status, out, _ = said(capsys, "generate", folder, "-p", "Hello", "--quiet", *rule)
        assert status == 0
        assert out.strip().strip('"') in ("é", "[3]")


def test_a_file_of_weights_and_an_adapter(folder, make_adapter, capsys):
    """The weights' file is the folder's model, and BASE+LORA what merge makes of the two."""
    options = ("-p", "Hello", "-n", 5, "--ignore-end")
    text = said(capsys, "generate", folder, *options)[1]
    assert said(capsys, "generate", folder / "model.safetensors", *options)[1] == text
    lora = make_adapter(folder, "model.layers.1.mlp.down_proj")
    model = lbrx.language_model(lbrx.merge(applied(str(folder), str(lora))))
    wanted = model.generate("Hello", max_tokens=5, ignore_end=True).text + "\n"
    for name in ("", "/", "/adapter_model.safetensors", "/adapter_config.json"):
        assert said(capsys, "generate", f"{folder}+{lora}{name}", *options)[:2] == (0, wanted)
    assert wanted != text


def test_an_adapter_where_a_model_is_wanted(folder, make_adapter, capsys):
    lora = make_adapter(folder, "model.layers.1.mlp.down_proj")
    for name in (lora, lora / "adapter_model.safetensors"):
        status, _, err = said(capsys, "generate", name, "-p", "Hello")
        assert (status, err) == (
            1,
            f"lbrx: {name} is an adapter: give BASE+{name}, with the model that it was made for\n",
        )
    for command in (["inspect"], ["plan"], ["convert", "--to", "gguf"]):
        target = ["out"] if command[0] == "convert" else []
        status, _, err = said(capsys, *command, f"{folder}+{lora}", *target)
        assert status == 1
        assert f"write the model with `lbrx apply-lora {folder} {lora} OUT`" in err


def test_chat_answers_the_prompt(folder, capsys):
    options = ("-n", 5, "--ignore-end")
    status, out, _ = said(capsys, "generate", folder, "--chat", "-p", "Hello", *options)
    wanted = lbrx.language_model(folder).chat(
        [{"role": "user", "content": "Hello"}], max_tokens=5, ignore_end=True
    )
    assert (status, out) == (0, wanted.text + "\n")


def test_a_conversation_has_a_history(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\nmore\n"))
    status, out, err = said(capsys, "generate", folder, "--chat", "-n", 4, "--system", "Be brief.")
    model = lbrx.language_model(folder)
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    first = model.chat(talk, max_tokens=4).text
    talk += [{"role": "assistant", "content": first}, {"role": "user", "content": "more"}]
    assert (status, out) == (0, f"{first}\n{model.chat(talk, max_tokens=4).text}\n")
    assert err.count("prefill") == 2


def test_prompt_from_stdin_and_prompt_cache(folder, capsys, monkeypatch, tmp_path):
    ordinary, restored = LanguageModel.restore_prompt, []

    def counted(self, path):
        restored.append(ordinary(self, path))
        return restored[-1]

    monkeypatch.setattr(LanguageModel, "restore_prompt", counted)
    wanted = lbrx.language_model(folder).generate("Hello there", max_tokens=4)
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello there"))
        saved = ("--prompt-cache", tmp_path / "cache")
        status, out, _ = said(capsys, "generate", folder, "-p", "-", "-n", 4, *saved)
        assert (status, out) == (0, wanted.text + "\n")
    assert restored == [wanted.timing.prompt_tokens + len(wanted.tokens) - 1]


@pytest.mark.parametrize(
    ("read", "meant"),
    [
        *(("Hello", "Hello"), ("Hello\n", "Hello"), ("Hello\n\n", "Hello\n")),
        *(("\nHello ", "\nHello "), ("Hello\r\n", "Hello"), ("Hello\r", "Hello\r")),
    ],
)
def test_a_line_break_at_the_end_of_stdin_is_not_of_the_prompt(
    read, meant, folder, capsys, monkeypatch
):
    prompts, ordinary = [], LanguageModel.stream

    def noted(self, prompt, **options):
        prompts.append(prompt)
        return ordinary(self, prompt, **options)

    monkeypatch.setattr(LanguageModel, "stream", noted)
    monkeypatch.setattr("sys.stdin", io.StringIO(read))
    assert said(capsys, "generate", folder, "-p", "-", "-n", 1)[0] == 0
    assert prompts == [meant]


def interrupted(self, *_):
    yield "some"
    raise KeyboardInterrupt


def test_an_interrupt_ends_it(folder, capsys, monkeypatch):
    monkeypatch.setattr(Stream, "_run", interrupted)
    status, out, err = said(capsys, "generate", folder, "-p", "Hello")
    assert (status, out) == (130, "some\n")
    assert "Traceback" not in err


def test_an_interrupt_ends_an_answer_but_not_the_conversation(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\nmore\n"))
    monkeypatch.setattr(Stream, "_run", interrupted)
    status, out, _ = said(capsys, "generate", folder, "--chat")
    assert (status, out) == (0, "some\nsome\n")


def test_a_conversation_forgets_and_goes_on(folder, capsys, monkeypatch):
    """The context is 64 tokens. A message with an error is dropped, and the next one answered."""
    talk = "Hello\nbad \udcff bytes\n" + "word word word\n" * 6 + "word " * 90 + "\nlast\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(talk))
    options = ("-n", 8, "--ignore-end", "--system", "Be brief.")
    status, _, err = said(capsys, "generate", folder, "--chat", *options)
    assert status == 1
    assert err.count("prefill") == 8
    assert "not valid UTF-8" in err
    assert re.search(r"message has \d+ tokens, and the context is 64: shorten it; the conv", err)
    assert re.search(r"exceeds the context of 64 tokens: the oldest \d exchanges? are forgot", err)


def test_a_message_longer_than_the_context_leaves_the_history(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n" + "word " * 90 + "\nmore\n"))
    status, out, err = said(capsys, "generate", folder, "--chat", "-n", 4, "--ignore-end")
    model = lbrx.language_model(folder)
    talk = [{"role": "user", "content": "Hello"}]
    first = model.chat(talk, max_tokens=4, ignore_end=True).text
    talk += [{"role": "assistant", "content": first}, {"role": "user", "content": "more"}]
    second = model.chat(talk, max_tokens=4, ignore_end=True).text
    assert (status, out) == (1, f"{first}\n{second}\n")
    assert "forgotten" not in err


def test_compiling_is_not_counted_in_the_speeds(folder, monkeypatch):
    """The prompt's pass compiles a kernel that no cache has."""
    model = lbrx.language_model(folder, device="metal")
    model.generate("Hello", max_tokens=2, ignore_end=True)
    text = f"kernel void k(device float* x) {{ x[0] = {time.time_ns() % 10**9}; }}"
    ordinary = Engine.prefill

    def compiling(self, *arguments):
        context().shaders.pipeline("test_compiling", "k", source=text)
        return ordinary(self, *arguments)

    monkeypatch.setattr(Engine, "prefill", compiling)
    timing = model.generate("Hello, world", max_tokens=3, ignore_end=True).timing
    assert timing.compiled_kernels == 1
    assert 0 < timing.compile_seconds < timing.first_token_seconds
    left = timing.first_token_seconds - timing.compile_seconds
    assert timing.prefill_seconds == pytest.approx(left, abs=1e-3)
    shown = speeds(replace(timing, compile_seconds=5.04, compiled_kernels=41), "metal")
    assert shown.endswith(" (compiled 41 kernels in 5.0 s)")
    assert "compiled" not in speeds(replace(timing, compile_seconds=0.01), "metal")


@pytest.mark.parametrize("device", ["metal", "cpu"])
def test_a_real_interrupt(device, make_model):
    """SIGINT to another process in the middle of its stream."""
    folder = make_model("llama", max_position_embeddings=8192)
    command = ["generate", str(folder), "-p", "Hello", "-n", "8000", "--ignore-end"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lbrx", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LBRX_DEVICE": device},
    )
    assert process.stdout.read(30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert SPEEDS.fullmatch(err.decode().strip()), err


@pytest.mark.parametrize(
    ("arguments", "redirected", "status", "message"),
    [
        (("-p", "Hello"), ">/dev/full", 1, "No space left on device"),
        (("-p", "Hello"), ">&-", 0, "prefill"),
        (("-p", "Hello", "-n", "60"), "| true", 141, ""),
        (("-p", "-"), "</dev/null", 1, "prompt is empty"),
        (("--chat",), "<&-", 0, ""),
    ],
    ids=str,
)
def test_streams_that_do_not_work(arguments, redirected, status, message, folder):
    command = shlex.join([sys.executable, "-m", "lbrx", "generate", str(folder), *arguments])
    script = f"set -o pipefail; {command} {redirected}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert message in done.stderr


def test_an_output_that_has_no_such_characters(folder, monkeypatch):
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    options = ("-n", "40", "--ignore-end", "--temperature", "2", "--seed", "1")
    assert main(["generate", str(folder), "-p", "naïve café — 漢字", *options]) == 0
    text = sys.stdout.buffer.getvalue().decode("ascii")
    wanted = lbrx.language_model(folder).generate(
        "naïve café — 漢字", max_tokens=40, ignore_end=True, temperature=2, seed=1
    )
    assert text == wanted.text.encode("ascii", "replace").decode() + "\n"


def test_json(folder, capsys):
    """One object with what the text is made of."""
    status, out, err = said(
        capsys,
        *("generate", folder, "-p", "Hello", "-n", 4, "--ignore-end", "--json"),
        *("--top-logprobs", 2),
    )
    wanted = lbrx.language_model(folder).generate(
        "Hello", max_tokens=4, ignore_end=True, top_logprobs=2, logprobs=True
    )
    found = json.loads(out)
    assert status == 0
    assert (found["text"], found["tokens"]) == (wanted.text, wanted.tokens)
    assert found["finish_reason"] == "length"
    assert found["logprobs"] == pytest.approx(wanted.logprobs, abs=1e-5)
    best = [place[0]["token"] for place in found["top_logprobs"]]
    assert best == wanted.tokens
    assert found["timing"]["prompt_tokens"] == wanted.timing.prompt_tokens
    assert err.strip().endswith(", ended by length")


def test_json_is_for_one_answer(folder, capsys):
    status, out, _ = said(capsys, "generate", folder, "--chat", "--json")
    assert status == 1
    assert json.loads(out)["error"]["message"] == "--json is for one answer"


def test_a_pipe_is_the_prompt(folder, capsys, monkeypatch):
    wanted = said(capsys, "generate", folder, "-p", "Hello", "-n", 3, "--quiet")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    assert said(capsys, "generate", folder, "-n", 3, "--quiet") == wanted
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "there is no prompt" in said(capsys, "generate", folder, "-n", 3)[2]


def test_perplexity_against_another_model(folder, make_model, capsys, tmp_path):
    """The divergence from a reference, by the definition in float64."""
    other = make_model("llama", seed=1)
    text = "Hello, world! " * 12
    (tmp_path / "text").write_text(text)
    arguments = ("perplexity", folder, tmp_path / "text", "--context", 32, "--against", other)
    status, out, _ = said(capsys, *arguments, "--cache-type", "f32")
    assert status == 0
    models = [lbrx.language_model(f, context=32, cache_dtype="float32") for f in (folder, other)]
    tokens = models[0].tokenizer.encode(text)
    rows = []
    for model in models:
        pieces = [tokens[i : i + 32] for i in range(0, len(tokens) - 1, 31)]
        logits = [model.engine.all_logits(piece).numpy()[: len(piece) - 1] for piece in pieces]
        wide = np.concatenate(logits).astype(np.float64)
        rows.append(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))
    own, reference = rows
    divergences = (np.exp(reference) * (reference - own)).sum(-1)
    chosen = reference[np.arange(len(tokens) - 1), tokens[1:]]
    same = (own.argmax(-1) == reference.argmax(-1)).mean()
    numbers = [float(x) for x in re.findall(r"[\d.]+\d", out.splitlines()[1].replace("99%", ""))]
    wanted = [
        np.exp(-chosen.mean()),
        divergences.mean(),
        np.median(divergences),
        np.quantile(divergences, 0.99),
        divergences.max(),
        100 * same,
    ]
    np.testing.assert_allclose(numbers, wanted, rtol=1e-3, atol=0.01)


def test_perplexity_against_itself(folder, capsys, tmp_path):
    (tmp_path / "text").write_text("Hello, world!")
    out = said(capsys, "perplexity", folder, tmp_path / "text", "--against", folder)[1]
    assert "KL divergence from it 0.000000" in out
    assert out.endswith("same most likely token 100.00%\n")


def test_perplexity(folder, capsys, tmp_path):
    text = "Hello, world! It's 12345 o'clock.\n" * 8
    (tmp_path / "text").write_text(text)
    status, out, _ = said(capsys, "perplexity", folder, tmp_path / "text", "--context", 64)
    assert status == 0
    found = re.fullmatch(r"perplexity (\d+\.\d{4}), (\d+) tokens, \d+\.\d s\n", out)
    model = lbrx.language_model(folder, context=64)
    tokens = model.tokenizer.encode(text)
    assert int(found[2]) == len(tokens) > 64
    scores = model.log_probabilities(tokens)
    assert len(scores) == len(tokens) - 1
    assert float(found[1]) == pytest.approx(np.exp(-np.mean(scores)), abs=1e-3)


def changed(folder, tmp_path, **settings):
    """A copy of the model with changes to config.json."""
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **settings}))
    return target


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model_type": "unheard_of"},
            "architecture 'unheard_of' is unknown: lbrx runs bitnet, .*llama",
        ),
        ({"num_hidden_layers": 3}, r"no tensor model\.layers\.2\..*incomplete, or config.json"),
        ({"hidden_size": 32}, r"has shape \(620, 64\), and config.json says \(620, 32\)"),
        (
            {"num_attention_heads": 3},
            "num_attention_heads: 3 is not a multiple of num_key_value_heads: 2",
        ),
        ({"vocab_size": "many"}, "vocab_size: 'many' is not a size: it has to be an integer"),
        ({"rope_scaling": {"type": "magic", "factor": 2}}, "'magic' is unknown: lbrx has linear"),
    ],
    ids=str,
)
def test_an_invalid_config(settings, message, folder, tmp_path, capsys):
    target = changed(folder, tmp_path, **settings)
    status, out, err = said(capsys, "generate", target, "-p", "Hello")
    assert (status, out) == (1, "")
    assert re.search(message, err), err
    assert re.fullmatch(f"({PLAN})?lbrx: .+\n", err)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bert", "n_head": 4}, "'bert' is unknown: lbrx runs bitnet, .*llama"),
        ({"architectures": ["UnheardOf"]}, "'UnheardOf' is unknown: lbrx runs bitnet, .*llama"),
        ({}, "no config.json that names a model_type: give"),
    ],
    ids=str,
)
def test_a_config_of_another_kind_of_model(config, message, folder, tmp_path, capsys):
    target = changed(folder, tmp_path)
    (target / "config.json").write_text(json.dumps(config))
    status, _, err = said(capsys, "generate", target, "-p", "Hello")
    assert status == 1
    assert re.search(message, err), err


def test_a_file_that_is_cut_short(folder, tmp_path, capsys):
    target = changed(folder, tmp_path)
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    status, _, err = said(capsys, "generate", target, "-p", "Hello")
    assert status == 1
    assert re.fullmatch(r"lbrx: .*model\.safetensors.*\n", err), err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("nowhere", "-p", "x"),
            "nowhere does not exist: give a model's file or folder, or the name of a packaged model (smollm2)",
        ),
        (("{}", "-p", ""), "prompt is empty"),
        (("{}", "-p", "x", "--top-logprobs", "3"), "--top-logprobs is for --json"),
        (("{}", "-p", "x", "--system", "y"), "--system is a chat message: give --chat"),
        (("{}", "-p", "x", "--seed", "-1"), "seed=-1: give an integer, 0 or more"),
        (
            ("{}", "-p", "x", "--prompt-cache", "{}"),
            "a folder or a device: give the name of an ordinary file",
        ),
        (("x" * 5000, "-p", "x"), "xxx does not exist: give a model's file"),
        (("{}", "-p", "x", "--top-p", "7"), "top_p=7.0: give a number, 0 to 1"),
        (("{}", "-p", "x", "--context", "100000"), "context=100000: give an integer, 2 to 64"),
        (
            ("{}", "-p", "x", "--cache-type", "int8"),
            "int8 is not a type of cache: choose one of float16 (f16)",
        ),
        (
            ("{}", "-p", "x", "--cache-type", "q8_0"),
            "a head size that is a multiple of 32, and the model's is 16: choose float16",
        ),
        (("{}", "-p", "x", "--prompt-cache", "{}/config.json"), "config.json"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, message, folder, capsys):
    given = [argument.replace("{}", str(folder)) for argument in arguments]
    status, _, err = said(capsys, "generate", *given)
    assert status == 1
    assert message in err


def test_8_bit_floats_are_counted_as_float16():
    tensors = {
        name: TensorInfo(name, ENCODINGS[name], (4, 8), Inline(b""))
        for name in ("F8_E4M3", "F32", "Q8_0")
    }
    files = ModelFiles(Path("model"), Format.SAFETENSORS, tensors)
    assert bytes_in_memory(files) == files.nbytes + 4 * 8


def test_a_model_that_does_not_fit_is_refused(folder):
    config = lbrx.language_model(folder).config
    memory = memory_plan.plan_memory(config, 10 << 30, 8192, 2, 11 << 30)
    memory.check()
    assert str(memory).startswith("weights 10.00 GiB, cache of 8,192 tokens ")
    with pytest.raises(
        lbrx.LbrxError, match=r"does not fit.*smaller model, or one quantized to fewer bits"
    ):
        memory_plan.plan_memory(config, 12 << 30, 8192, 2, 11 << 30).check()
    room = (10 << 30) + memory.scratch + config.cache_bytes(1000, 2)
    with pytest.raises(lbrx.LbrxError, match="a context of 768 tokens fits"):
        memory_plan.plan_memory(config, 10 << 30, 8192, 2, room).check()
