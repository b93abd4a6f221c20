"""Exported language models against a float64 model: chunks of a prompt, then single tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
import reference_model

import lbrx
from lbrx import cli
from lbrx.errors import LbrxError
from lbrx.models.export.exporter import FEATURES, ExportSettings, export_network
from lbrx.models.export.network_program import CACHES, ProgramStyle
from lbrx.models.loading import language_model
from lbrx.neural_engine.core_ml_model import CoreMLModel, compiled_model, read_state
from lbrx.neural_engine.weight_forms import WeightForm, program_weight

CONTEXT, CHUNK, TOKENS = 64, 16, 35
KINDS = {
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {},
    "phi3": {"partial_rotary_factor": 0.75, "sliding_window": 5},
    "smollm3": {"no_rope_layer_interval": 2},
}
LLAMA3 = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}


def prompt(count=TOKENS):
    return np.random.default_rng(count).integers(2, 600, count).tolist()


def expected(folder, tokens):
    model = lbrx.open_model(folder).canonical()
    weights = {name: model[name].astype("float32").numpy() for name in model}
    return reference_model.logits(model.config, weights, tokens)


def exported(folder, path, form=WeightForm.F16, **changes):
    network = language_model(folder, device="cpu").engine.network
    settings = ExportSettings(**{"context": CONTEXT, "chunk": CHUNK, "form": form, **changes})
    export_network(network, path, settings)
    return compiled_model(path), network


def inputs(tokens, position):
    return {"tokens": np.array([tokens], np.int32), "position": np.array([position], np.int32)}


def run(compiled, tokens):
    """The hidden states of whole chunks, and the logits after each token of the rest."""
    prefill, decode = (CoreMLModel(compiled, name) for name in ("prefill", "decode"))
    state, hidden = prefill.new_state(), []
    whole = len(tokens) // CHUNK * CHUNK
    for first in range(0, whole, CHUNK):
        made = prefill.predict(inputs(tokens[first : first + CHUNK], first), state)["hidden"]
        hidden.append(made[0, :, 0].T)
    logits = [
        decode.predict(inputs([tokens[place]], place), state)["logits"][0]
        for place in range(whole, len(tokens))
    ]
    return np.concatenate(hidden), np.array(logits)


def close(given, wanted, tolerance):
    assert given.shape == wanted.shape
    error = np.abs(given - wanted).max() / np.abs(wanted).max()
    assert error < tolerance, f"differs by {error:.2g}"


def check(folder, path, tolerance=2e-2, **options):
    compiled, network = exported(folder, path, **options)
    tokens = prompt()
    hidden, logits = run(compiled, tokens)
    wanted = expected(folder, tokens)
    close(logits, wanted[-len(logits) :], tolerance)
    head = network.head.astype("float32").numpy()
    close(hidden.astype(np.float32) @ head.T, wanted[: len(hidden)], tolerance)


@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind in ("llama tied", "qwen3", "phi3")
        else pytest.param(kind, marks=pytest.mark.full)
        for kind in KINDS
    ],
)
def test_architectures(kind, make_model, tmp_path):
    check(make_model(kind.split()[0], **KINDS[kind]), tmp_path / "m.mlpackage")


STYLES = [
    ("llama", ProgramStyle(cache="slices")),
    ("qwen3", ProgramStyle(attention="products")),
    ("phi3", ProgramStyle("slices", "products")),
]


@pytest.mark.parametrize(("kind", "style"), STYLES)
def test_other_ways_of_writing_a_program(kind, style, make_model, tmp_path):
    """Against the same float64 model; windows, and states that are updated row by row."""
    check(make_model(kind, **KINDS[kind]), tmp_path / "m.mlpackage", style=style)


@pytest.mark.parametrize("cache", CACHES)
def test_the_most_likely_token(cache, make_model, tmp_path):
    """`greedy` gives the argmax of the logits that the same program gives without it."""
    folder, tokens = make_model("llama"), prompt(CHUNK + 4)
    found = []
    for greedy in (False, True):
        compiled, _ = exported(
            folder, tmp_path / f"{greedy}.mlpackage", style=ProgramStyle(cache, greedy=greedy)
        )
        prefill, decode = (CoreMLModel(compiled, name) for name in ("prefill", "decode"))
        state = prefill.new_state()
        prefill.predict(inputs(tokens[:CHUNK], 0), state)
        made = [
            decode.predict(inputs([token], CHUNK + place), state)
            for place, token in enumerate(tokens[CHUNK:])
        ]
        found.append(made)
    assert all(each.keys() == {"token"} for each in found[1])
    want = [int(each["logits"].argmax()) for each in found[0]]
    assert [int(each["token"][0]) for each in found[1]] == want


def operations(path, function):
    import coremltools

    program = coremltools.utils.load_spec(str(path)).mlProgram
    (block,) = program.functions[function].block_specializations.values()
    return [each.type for each in block.operations]


def test_what_the_styles_are_made_of(make_model, tmp_path):
    folder = make_model("llama")
    kinds = {}
    for style in (ProgramStyle(), ProgramStyle("slices", "products")):
        path = tmp_path / f"{style.cache}.mlpackage"
        exported(folder, path, style=style)
        kinds[style.cache] = operations(path, "decode")
    layers = kinds["masks"].count("scaled_dot_product_attention")
    assert layers >= 2
    assert "slice_update" not in kinds["masks"]
    assert kinds["masks"].count("write_state") == 2
    assert (
        kinds["slices"].count("slice_update") == kinds["slices"].count("write_state") == 2 * layers
    )
    assert kinds["slices"].count("softmax") == layers
    assert "scaled_dot_product_attention" not in kinds["slices"]


def test_styles_that_do_not_exist():
    for name, known in (("cache", "masks or slices"), ("attention", "operation or products")):
        with pytest.raises(LbrxError, match=f"{name}='rows': give {known}"):
            ExportSettings(style=ProgramStyle(**{name: "rows"}))


@pytest.mark.full
def test_scaled_rope(make_model, tmp_path):
    folder = make_model("llama", **LLAMA3)
    compiled, _ = exported(folder, tmp_path / "m.mlpackage")
    from lbrx.files.formats.architecture_tables.rope_scaling import llama3_factors

    model = lbrx.open_model(folder).canonical()
    weights = {name: model[name].astype("float32").numpy() for name in model}
    config = {**model.config, "_factors": llama3_factors(model.config)}
    _, logits = run(compiled, prompt())
    close(logits, reference_model.logits(config, weights, prompt())[-len(logits) :], 2e-2)


def test_compressed_weights_in_a_program(make_model, tmp_path):
    """Against the float64 model with the tables' values; test_weight_forms.py has the other forms."""
    folder = make_model("llama")
    compiled, _ = exported(folder, tmp_path / "m.mlpackage", WeightForm.LUT8)
    model = lbrx.open_model(folder).canonical()
    weights = {name: model[name].numpy() for name in model}
    for name in [name for name in model if weights[name].ndim == 2]:
        parts = program_weight(model[name], WeightForm.LUT8).parts
        weights[name] = parts["lut"].reshape(-1)[parts["indices"][..., 0, 0]]
    _, logits = run(compiled, prompt())
    close(logits, reference_model.logits(model.config, weights, prompt())[-len(logits) :], 2e-2)


def test_functions_share_their_weights(make_model, tmp_path):
    """A second function adds the output matrix and operations, not the layers' weights again."""
    network = language_model(make_model("llama"), device="cpu").engine.network
    settings = ExportSettings(CONTEXT, CHUNK)
    sizes = {}
    for names in (("prefill",), ("prefill", "decode")):
        path = tmp_path / f"{len(names)}.mlpackage"
        export_network(network, path, settings, functions=names)
        sizes[names] = (path / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    head = 2 * network.head.shape[0] * network.head.shape[1]
    added = sizes["prefill", "decode"] - sizes["prefill",]
    assert head <= added < head + 20_000


def test_a_package_that_is_written_again_is_compiled_again(make_model, tmp_path):
    path, network = tmp_path / "m.mlpackage", language_model(make_model("llama"), device="cpu")
    for context in (32, 64):
        export_network(network.engine.network, path, ExportSettings(context, CHUNK))
        state = CoreMLModel(compiled_model(path), "decode").new_state()
        assert read_state(state, "keys").shape == (2, 2, context, 32)
    made = compiled_model(path).stat()
    assert compiled_model(path).stat().st_ino == made.st_ino


def test_the_package_says_what_it_is(make_model, tmp_path):
    path = tmp_path / "m.mlpackage"
    exported(make_model("llama"), path)
    from coremltools.proto.Model_pb2 import Model

    model = Model()
    model.ParseFromString((path / "Data/com.apple.CoreML/model.mlmodel").read_bytes())
    functions = {function.name: function for function in model.description.functions}
    assert set(functions) == {"prefill", "decode"}
    assert model.description.defaultFunctionName == "prefill"
    shown = {
        feature.name: feature.shortDescription
        for function in functions.values()
        for feature in (*function.input, *function.output, *function.state)
    }
    assert shown == {name: text for name, text in FEATURES.items() if name != "token"}
    notes = dict(model.description.metadata.userDefined)
    assert (notes["lbrx.context"], notes["lbrx.chunk"]) == (str(CONTEXT), str(CHUNK))
    assert json.loads(notes["lbrx.end_tokens"]) == [1]


def test_layers_are_placed_on_the_neural_engine(make_model, tmp_path):
    """By softcoreml's model of Core ML's rules: no operation of a layer is refused, and the few that
    are refused come before the first layer."""
    pytest.importorskip("softcoreml", reason="a Mac has Core ML itself")
    from softcoreml.format.read import read_model
    from softcoreml.placement import Names, is_constant, refusal

    path = tmp_path / "m.mlpackage"
    exported(make_model("qwen3"), path)
    for function in read_model(path).program.functions.values():
        names = Names(function)
        operations = [one for one in function.block.operations if not is_constant(one)]
        refused = [at for at, one in enumerate(operations) if refusal(one, names)]
        first_layer = next(at for at, one in enumerate(operations) if one.type == "layer_norm")
        assert max(refused) < first_layer, operations[max(refused)]


REFUSED = {
    "gemma2": "scaled embeddings",
    "mixtral": "experts are chosen while it runs",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_networks_that_are_not_of_the_family(kind, make_model, tmp_path):
    with pytest.raises(LbrxError, match=REFUSED[kind]):
        exported(make_model(kind), tmp_path / "m.mlpackage")
    assert not (tmp_path / "m.mlpackage").exists()


def test_every_refusal_is_named_at_once(make_model, tmp_path):
    folder = make_model("gemma2", attn_logit_softcapping=3.0, final_logit_softcapping=8.0)
    with pytest.raises(LbrxError) as problem:
        exported(folder, tmp_path / "m.mlpackage")
    for part in ("fp16", "scaled embeddings", "capped logits", "layers of type"):
        assert part in str(problem.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk": 4}, "chunk=4: give a number of tokens from 16"),
        ({"context": 1 << 20}, "context=1048576"),
        ({"context": 8}, "context=8"),
    ],
)
def test_bad_sizes(settings, message):
    with pytest.raises(LbrxError, match=message):
        ExportSettings(**settings)


def test_context_is_a_whole_number_of_chunks():
    assert ExportSettings(100, 64).context == 128
    assert ExportSettings(48, 64).chunk == 48


def test_the_command(make_model, tmp_path, capsys):
    folder, path = make_model("llama"), tmp_path / "out" / "m.mlpackage"
    options = ["--context", "32", "--chunk", "16", "--quantize", "lut8"]
    assert cli.main(["export", str(folder), str(path), *options]) == 0
    assert "context 32, chunk 16, weights lut8" in capsys.readouterr().out
    assert (path / "Manifest.json").exists()
    (path / "note").touch()
    assert cli.main(["export", str(folder), str(path), *options]) == 1
    assert capsys.readouterr().err == f"lbrx: {path} exists: add --force to replace it\n"
    assert cli.main(["export", str(folder), str(path), *options, "--force"]) == 0
    assert not (path / "note").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.bin"], "m.bin is not a path of a package: give a name that ends in .mlpackage"),
        (["m.mlpackage", "--quantize", "q4"], "'q4' is not a form of weights: give f16, int8"),
        (["m.mlpackage", "--context", "4096"], "the model was trained for 64 tokens"),
    ],
)
def test_bad_arguments_of_the_command(
    arguments, message, make_model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", str(make_model("llama")), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
