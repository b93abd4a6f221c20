"""Language models as folders of packages: the same values as one package, and what is in them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_language_program import CHUNK, KINDS, close, expected, inputs, prompt

from lbrx import cli
from lbrx.errors import LbrxError
from lbrx.models.export.exporter import PART_FEATURES, ExportSettings, export_network
from lbrx.models.export.network_parts import PartsReader
from lbrx.models.export.network_program import ProgramStyle
from lbrx.models.export.program_parts import groups, open_program
from lbrx.models.loading import language_model
from lbrx.neural_engine.weight_forms import WeightForm

CONTEXT = 64
STYLES = [
    ("llama", ProgramStyle()),
    ("qwen3", ProgramStyle(attention="products")),
    ("phi3", ProgramStyle("slices")),
]


def exported(folder, path, **changes):
    network = language_model(folder, device="cpu").engine.network
    export_network(network, path, ExportSettings(CONTEXT, CHUNK, **changes))
    return network


def logits(path, tokens):
    """A chunk by `prefill`, and the logits after each token of the rest."""
    prefill, decode = (open_program(path, name) for name in ("prefill", "decode"))
    states = prefill.new_state()
    prefill.predict(inputs(tokens[:CHUNK], 0), states)
    states += [None] * (len(decode.models) - len(states))  # of the head
    steps = enumerate(tokens[CHUNK:], CHUNK)
    return np.array([decode.predict(inputs([t], i), states)["logits"][0] for i, t in steps])


def part_bytes(folder):
    """Enough for each layer and the output matrix, and too few for two layers."""
    network = language_model(folder, device="cpu").engine.network
    reader = PartsReader(network, WeightForm.F16)
    layers = [reader.layer(index).nbytes for index in range(network.config.layers)]
    head = (reader.head() or reader.embedding()).nbytes
    assert max(head, *layers) < sum(layers)
    return max(head, *layers)


@pytest.mark.parametrize(("kind", "style"), STYLES)
def test_parts_give_what_one_package_gives(kind, style, make_model, tmp_path):
    folder, tokens = make_model(kind, **KINDS[kind]), prompt(CHUNK + 5)
    exported(folder, tmp_path / "parts", style=style, part_bytes=part_bytes(folder))
    exported(folder, tmp_path / "whole.mlpackage", style=style)
    found = logits(tmp_path / "parts", tokens)
    # A sum's order depends on how its operands lie in memory.
    close(found, logits(tmp_path / "whole.mlpackage", tokens), 3e-3)
    close(found, expected(folder, tokens)[CHUNK:], 2e-2)


def test_what_is_in_the_parts(make_model, tmp_path):
    """No package is larger than it may be, and what they take and give is described. By softcoreml's
    model of Core ML's rules the Neural Engine takes every operation behind the embedding."""
    pytest.importorskip("softcoreml", reason="a Mac has Core ML itself")
    from softcoreml.format.read import read_model
    from softcoreml.placement import Names, is_constant, refusal

    folder, path = make_model("llama"), tmp_path / "parts"
    limit = part_bytes(folder)
    network = exported(folder, path, part_bytes=limit)
    facts = json.loads((path / "parts.json").read_text())
    names = [part["package"] for part in facts["parts"]]
    layers = [f"layers-{number}.mlpackage" for number in range(1, network.config.layers + 1)]
    assert names == ["embedding.mlpackage", *layers, "head.mlpackage"]
    assert facts["lbrx.context"] == str(CONTEXT)
    assert facts["parts"][-1]["functions"] == ["decode"]
    for name in names:
        weights = path / name / "Data/com.apple.CoreML/weights/weight.bin"
        assert weights.stat().st_size <= limit + 20_000  # norms and records
        model = read_model(path / name)
        for kind, function in model.program.functions.items():
            known = Names(function)
            operations = [one for one in function.block.operations if not is_constant(one)]
            refused = [one.type for one in operations if refusal(one, known)]
            assert bool(refused) == (name == names[0]), (name, refused)
            described = model.description.function(kind)
            for feature in (*described.inputs, *described.outputs, *described.states):
                assert feature.name in PART_FEATURES or feature.name.startswith("hidden")


def test_layers_are_grouped():
    class Layer:
        def __init__(self, nbytes):
            self.nbytes = nbytes

    layers = [Layer(nbytes) for nbytes in (4, 4, 4, 9, 1, 10, 2)]
    found = [[layer.nbytes for layer in group] for group in groups(layers, 10)]
    assert found == [[4, 4], [4], [9, 1], [10], [2]]
    with pytest.raises(
        LbrxError, match=r"layer 3 alone has 9 bytes of weights, more than a part's 8"
    ):
        list(groups(layers, 8))


def test_parts_that_are_too_small(make_model, tmp_path):
    with pytest.raises(LbrxError, match="the output matrix alone has"):
        exported(make_model("llama"), tmp_path / "parts", part_bytes=1000)
    assert list(tmp_path.iterdir()) == []


def test_the_command(make_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LBRX_DEVICE", "cpu")
    folder, path = str(make_model("llama")), tmp_path / "parts"
    options = ["--context", "32", "--chunk", "16"]
    assert cli.main(["export", folder, str(path), *options, "--part-size", "1MB"]) == 0
    assert len(list(path.glob("*.mlpackage"))) == 3
    assert cli.main(["export", folder, f"{path}.mlpackage", *options, "--part-size", "1MB"]) == 1
    assert "is the path of one package: give the name of a folder" in capsys.readouterr().err
    assert cli.main(["export", folder, str(path), *options, "--part-size", "1", "--force"]) == 1
    assert "'1' is not a size: write it like '5GB'" in capsys.readouterr().err


def test_a_package_that_the_neural_engine_does_not_take(make_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LBRX_DEVICE", "cpu")
    monkeypatch.setattr("lbrx.cli.export.LARGEST_PACKAGE", 1000)
    folder, path = str(make_model("llama")), tmp_path / "m.mlpackage"
    assert cli.main(["export", folder, str(path), "--context", "32", "--chunk", "16"]) == 0
    assert "takes packages up to about 2 GB: add --part-size 1GB" in capsys.readouterr().err
