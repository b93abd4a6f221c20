"""`lbrx train`: the loss, adapters, checkpoints and data, on models of a few thousand weights."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import lbrx
from lbrx import cli
from lbrx.errors import FormatError, LbrxError
from lbrx.files.stored.adapters import read_adapter
from lbrx.merging import merge
from lbrx.merging.lora import applied
from lbrx.train import TrainOptions, train
from lbrx.train.checkpoints import Progress
from lbrx.train.examples import Batch, Example, Reader, batch_of, batches_of, rows_of
from lbrx.train.loss import token_losses
from lbrx.train.run import Run, _opened

SMALL = {"rank": 2, "length": 40, "batch": 2, "scale": 2.0, "rate": 5e-3}
LINES = [{"prompt": f"What is {i}?", "completion": f"It is {i} whales."} for i in range(6)]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    text = "\n".join(map(json.dumps, LINES)) + "\n"
    (folder / "train.jsonl").write_text(text)
    (folder / "valid.jsonl").write_text("\n".join(text.splitlines()[:2]))
    return folder


@pytest.fixture
def preferences(tmp_path):
    folder = tmp_path / "preferences"
    folder.mkdir()
    lines = [
        {"prompt": f"What is {i}?", "chosen": f"It is {i} whales.", "rejected": f"No {i} at all."}
        for i in range(4)
    ]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def losses(out):
    lines = [json.loads(line) for line in (out / "train-log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


FULL = pytest.mark.full
KINDS = ["llama", "mixtral", *(pytest.param(k, marks=FULL) for k in ("qwen3", "gemma2", "phi3"))]


@pytest.mark.parametrize("kind", [*KINDS, pytest.param("deepseek_v2", marks=FULL)])
def test_the_loss_is_that_of_generation_and_falls(kind, make_model, data, tmp_path):
    folder = make_model(kind)
    options = TrainOptions(**SMALL, steps=8, schedule="constant")
    run = Run(str(folder), data, tmp_path / "out", options, device="cpu")
    run.adapter.detach()
    batch = batch_of(run.examples[:2])
    weights = np.ones_like(batch.weights[:1])
    tokens = run.examples[0].tokens
    weights[:, len(tokens) - 1 :] = 0
    own = Batch(batch.tokens[:1], weights)
    found = token_losses(run.network, *run._placed(own)[:2]).sum().item()
    # The model's own scores, token by token through the cache.
    scores = lbrx.language_model(folder, device="cpu", cache_dtype="float32").log_probabilities(
        tokens
    )
    assert found == pytest.approx(-sum(scores), rel=1e-4)
    run.adapter.attach()
    run.finished(False, lambda line: None)
    found = losses(tmp_path / "out")
    assert np.mean(found[-3:]) < np.mean(found[:3])


@pytest.mark.parametrize(
    ("stored", "method"),
    [
        ("folder", "lora"),
        ("gguf", "lora"),
        ("q8_0", "lora"),
        ("folder", "dora"),
        ("gguf", "dora"),
        pytest.param("q8_0", "dora", marks=FULL),
        ("gguf", "full"),
        pytest.param("q8_0", "full", marks=FULL),
    ],
)
def test_an_adapter_gives_the_losses_that_training_ended_with(
    stored, method, make_model, data, tmp_path
):
    """Also where a GGUF has the rows of queries and keys in pairs: the adapter is for the layout of
    Hugging Face, which the reader of adapters applies."""
    folder = make_model("llama", num_key_value_heads=2) if stored != "q8_0" else make_model("llama")
    model = folder
    if stored != "folder":
        model = tmp_path / "model.gguf"
        options = [] if stored == "gguf" else ["--quantize", "q8_0"]
        assert cli.main(["convert", str(folder), str(model), *options]) == 0
    options = TrainOptions(**SMALL, steps=4, method=method)
    run = Run(str(model), data, tmp_path / "out", options, device="cpu")
    batch = run._placed(batch_of(run.examples))[:2]
    base = token_losses(run.network, *batch).sum().item()
    run.finished(False, lambda line: None)
    live = token_losses(run.network, *batch).sum().item()
    merged = _opened(merge(applied(str(model), str(tmp_path / "out"))), 40, "cpu")
    found = token_losses(merged.engine.network, *batch).sum().item()
    assert abs(base - live) > 50 * abs(found - live)
    assert found == pytest.approx(live, rel=1e-3)
    adapter = read_adapter(tmp_path / "out")
    if method == "full":
        assert sorted(adapter.saved) == sorted(lbrx.open_model(str(folder)).canonical())
        return
    tokens = run.examples[0].tokens
    beside = lbrx.language_model(
        str(model), device="cpu", cache_dtype="float32", adapters=[tmp_path / "out"]
    ).log_probabilities(tokens)
    one = batch_of([Example(tokens)])
    alone = token_losses(run.network, *run._placed(one)[:2]).numpy()[0, : len(tokens) - 1]
    np.testing.assert_allclose(-np.array(beside), alone, rtol=2e-3, atol=2e-3)
    assert "model.layers.0.self_attn.q_proj" in adapter.parts
    assert adapter.scale("model.layers.0.self_attn.q_proj") == 2.0


def saved(out):
    return (out / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("device", "how", "kind"),
    [
        ("metal", "killed", ("lora", "sft")),
        ("metal", "interrupted", ("lora", "sft")),
        pytest.param("cpu", "killed", ("lora", "sft"), marks=FULL),
        pytest.param("cpu", "interrupted", ("lora", "sft"), marks=FULL),
        ("cpu", "killed", ("dora", "dpo")),
        pytest.param("metal", "killed", ("full", "dpo"), marks=FULL),
    ],
)
def test_a_resumed_run_has_the_same_bits(
    how, device, kind, make_model, data, preferences, tmp_path
):
    folder = str(make_model("llama"))
    method, objective = kind
    data = preferences if objective == "dpo" else data
    options = TrainOptions(
        **SMALL, method=method, objective=objective, steps=6, save_every=2, accumulate=2, warm_up=2
    )

    class Killed(Exception):
        pass

    def stop(line):
        if line["step"] == 3 and "loss" in line:
            raise Killed if how == "killed" else KeyboardInterrupt

    with lbrx.deterministic():
        train(folder, data, tmp_path / "whole", options, device=device)
        if how == "killed":
            with pytest.raises(Killed):
                train(folder, data, tmp_path / "parts", options, device=device, tell=stop)
        else:
            half = train(folder, data, tmp_path / "parts", options, device=device, tell=stop)
            assert (half.stopped, half.step) == ("interrupted", 3)
        with pytest.raises(LbrxError, match="give --resume"):
            train(folder, data, tmp_path / "parts", options, device=device)
        done = train(folder, data, tmp_path / "parts", options, device=device, resume=True)
    assert done.step == 6
    assert saved(tmp_path / "parts") == saved(tmp_path / "whole")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    names = sorted(each.name for each in (tmp_path / "whole").glob("checkpoint-*"))
    assert names == ["checkpoint-000004", "checkpoint-000006"]
    other = replace(options, rank=3)
    with pytest.raises(FormatError, match="is of a run with options"):
        train(folder, data, tmp_path / "parts", other, device=device, resume=True)
    (tmp_path / "parts" / "checkpoint-000006" / "training.json").write_text("{")
    with pytest.raises(FormatError, match="checkpoint-000006 is damaged"):
        train(folder, data, tmp_path / "parts", options, device=device, resume=True)


def test_layers_computed_again_give_the_same_losses(make_model, data, tmp_path):
    folder = str(make_model("qwen3"))
    for name, again in (("plain", False), ("again", True)):
        options = TrainOptions(**SMALL, steps=3, checkpoint_layers=again)
        train(folder, data, tmp_path / name, options, device="cpu")
    near = pytest.approx(losses(tmp_path / "plain"), rel=1e-6)
    assert losses(tmp_path / "again") == near


def test_logits_in_parts_give_the_same_loss(make_model, data, tmp_path, monkeypatch):
    run = Run(str(make_model("llama")), data, tmp_path, TrainOptions(**SMALL), device="cpu")
    batch = run._placed(batch_of(run.examples))
    whole, gradients = run._gradients(*batch)
    monkeypatch.setattr("lbrx.train.loss.LOGITS", 7 * run.network.config.vocabulary)
    parts, again = run._gradients(*batch)
    assert parts.item() == pytest.approx(whole.item(), rel=1e-6)
    for (path, x), (_, y) in zip(
        lbrx.tree_flatten(gradients), lbrx.tree_flatten(again), strict=True
    ):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-3, atol=1e-4, err_msg=path)


def test_layers_and_targets_are_chosen(make_model, data, tmp_path):
    folder = str(make_model("llama"))
    options = TrainOptions(**SMALL, steps=1, layers=1, targets=("q_proj", "down_proj"))
    train(folder, data, tmp_path / "out", options, device="cpu")
    modules = read_adapter(tmp_path / "out").parts
    last = max(int(name.split(".")[2]) for name in modules)
    assert set(modules) == {
        f"model.layers.{last}.self_attn.q_proj",
        f"model.layers.{last}.mlp.down_proj",
    }
    with pytest.raises(
        LbrxError, match="no linear map 'nothing': give some of down_proj, gate_proj"
    ):
        Run(folder, data, tmp_path, TrainOptions(**SMALL, targets=("nothing",)), device="cpu")
    with pytest.raises(LbrxError, match="has no linear maps that can be trained"):
        Run(str(make_model("gpt2")), data, tmp_path, TrainOptions(**SMALL), device="cpu")


def test_training_stops_early_and_at_what_is_not_a_number(make_model, data, tmp_path):
    folder = str(make_model("llama"))
    options = TrainOptions(**{**SMALL, "rate": 0.0}, steps=50, eval_every=1, patience=2)
    done = train(folder, data, tmp_path / "early", options, device="cpu")
    assert (done.stopped, done.step) == ("early", 3)
    wild = TrainOptions(**{**SMALL, "rate": 1e30}, steps=5, schedule="constant")
    with pytest.raises(LbrxError, match=r"step [2-5]: the loss is .*: lower the learning rate"):
        train(folder, data, tmp_path / "wild", wild, device="cpu")


def test_where_a_loss_is_not_a_number_from(make_model, data, tmp_path):
    run = Run(str(make_model("llama")), data, tmp_path, TrainOptions(**SMALL), device="cpu")
    last = len(run.network.layers) - 1
    broken = run.adapter.factors[-1]
    broken.b = broken.b + np.inf
    batches = batches_of(run.examples, 2, 0).iterate()
    with pytest.raises(LbrxError, match=rf"step 1: the loss is nan, from layer {last} on"):
        run._step(Progress(), batches)


def test_the_report_shows_what_happened(make_model, data, tmp_path):
    options = TrainOptions(**SMALL, steps=3, eval_every=1)
    done = train(str(make_model("llama")), data, tmp_path / "out", options, device="cpu")
    text = done.report.read_text()
    for part in ("Loss of the validation data", "Learning rate", "Samples", "before", "after"):
        assert part in text
    assert "<script" not in text
    assert '"rank": 2' in text.replace("&quot;", '"')
    assert done.valid_loss is not None


# ---- preferences ----


def scores_of(folder, examples, **options):
    """The log probabilities of answers, by the cache of generation."""
    model = lbrx.language_model(folder, device="cpu", cache_dtype="float32", **options)
    return np.array(
        [np.sum(model.log_probabilities(x.tokens)[x.prompt - 1 :], dtype="f8") for x in examples]
    )


@pytest.mark.parametrize("objective", ["dpo", "orpo"])
def test_preferences_follow_the_papers(objective, make_model, preferences, tmp_path):
    folder, out = str(make_model("llama")), tmp_path / "out"
    options = TrainOptions(**SMALL, objective=objective, beta=0.5, steps=10, schedule="constant")
    run = Run(folder, preferences, out, options, device="cpu")
    rows = rows_of(run.examples)
    count = np.array([len(x.tokens) - x.prompt for x in rows], "f8")
    before = scores_of(folder, rows)
    done = run.finished(False, lambda line: None)
    assert done.step == 10
    after = scores_of(folder, rows, adapters=[out])
    half = len(rows) // 2
    ahead = [scores[:half] - scores[half:] for scores in (before, after)]
    assert (ahead[1] > ahead[0]).all()
    batch = run._placed(batch_of(run.examples))
    found = run._loss(*batch).item() / half
    if objective == "dpo":
        wanted = np.log1p(np.exp(-0.5 * (ahead[1] - ahead[0]))).mean()
    else:
        means = after / count
        odds = means - np.log1p(-np.exp(means))
        worse = np.log1p(np.exp(odds[half:] - odds[:half]))
        wanted = (-means[:half] + 0.5 * worse).mean()
    assert found == pytest.approx(wanted, rel=1e-3)
    first = losses(out)[0]
    assert losses(out)[-1] < first
    if objective == "dpo":
        assert first == pytest.approx(np.log(2), rel=1e-4)


def test_a_bad_preference_is_named(make_model, data, tmp_path):
    options = TrainOptions(**SMALL, objective="dpo")
    with pytest.raises(FormatError, match=r'train\.jsonl:1: "chosen" is missing'):
        Run(str(make_model("llama")), data, tmp_path / "out", options, device="cpu")
    with pytest.raises(LbrxError, match="objective='ppo': give one of sft, dpo, orpo"):
        replace(options, objective="ppo")


# ---- data ----


@pytest.fixture
def reader(make_model):
    def make(mask=False, length=40):
        tokenizer = _opened(str(make_model("llama")), 40, "cpu").tokenizer
        return Reader(tokenizer, tokenizer.token_id("<|end|>"), length, mask), tokenizer

    return make


def test_three_kinds_of_examples(reader):
    read, tokenizer = reader()
    text = read.example({"text": "Blue whales"})
    assert text.tokens == (*tokenizer.encode("Blue whales"), tokenizer.token_id("<|end|>"))
    asked = read.example({"prompt": "Who?", "completion": "Whales."})
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Whales."}]
    assert asked == read.example({"messages": messages})
    assert tokenizer.decode(asked.tokens, special=True).count("<|end|>") == 2
    assert len(reader(length=3)[0].example({"text": "a b c d e f g"}).tokens) == 4


def test_prompts_are_masked(reader):
    read, tokenizer = reader(mask=True)
    example = read.example({"prompt": "Who?", "completion": "Whales."})
    answer = tokenizer.decode(example.tokens[example.prompt :], special=True)
    assert "Whales." in answer
    assert "Who" not in answer
    batch = batch_of([example, Example(example.tokens[:5])])
    assert batch.tokens.shape[1] % 32 == 1
    targets = batch.tokens[0, 1:][batch.weights[0] > 0]
    assert targets.tolist() == list(example.tokens[example.prompt :])
    assert batch.weights[1].sum() == 4


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"prompt": no}', "not JSON"),
        ('{"prompt": "a"}', '"completion" is missing'),
        ('{"text": 3}', '"text" is int, not a text'),
        ('{"other": 1}', "'other': give \"text\""),
        ('{"messages": []}', "is not a conversation"),
        ('{"messages": [{"role": "user"}]}', "is not a message"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "the last message is not the"),
    ],
)
def test_a_bad_line_is_named(line, text, reader, tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(f'{{"prompt": "a", "completion": "b"}}\n\n{line}\n')
    with pytest.raises(FormatError) as problem:
        reader(mask=True)[0].file(file)
    assert f"{file}:3: " in str(problem.value)
    assert text in str(problem.value)


# ---- the command ----


def test_the_command(make_model, data, tmp_path, capsys):
    folder, out = str(make_model("llama")), tmp_path / "out"
    options = ["--rank", "2", "--length", "40", "--batch", "2", "--steps", "2"]
    assert cli.main(["train", folder, str(data), "--out", str(out), *options, "--dry-run"]) == 0
    assert "values are trained; memory: weights" in capsys.readouterr().err
    assert not out.exists()
    assert cli.main(["train", folder, str(data), "--out", str(out), *options]) == 0
    said = capsys.readouterr()
    assert "adapter and train-report.html" in said.out
    assert '"valid_loss"' in said.err
    prompt = ["-p", "What is", "--max-tokens", "3", "--quiet"]
    assert cli.main(["generate", folder, "--adapter", str(out), *prompt]) == 0
    with (data / "train.jsonl").open("a") as file:
        file.write('{"prompt": no}\n')
    assert cli.main(["train", folder, str(data), "--out", str(tmp_path / "two"), *options]) == 1
    assert "train.jsonl:7: not JSON" in capsys.readouterr().err
    assert cli.main(["train", folder, str(tmp_path), "--out", str(out), *options]) == 1
    assert "has no train.jsonl" in capsys.readouterr().err
