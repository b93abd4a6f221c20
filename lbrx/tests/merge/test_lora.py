"""Task vectors and LoRA adapters of two models, against numpy, and applied again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import lbrx
from lbrx.cli import main
from lbrx.errors import FormatError
from lbrx.merging.lora import LoraOptions, extract_lora, open_pair

RANK = 3


@pytest.fixture
def pair(model, tmp_path, rng):
    """A model, and one whose matrices differ by products of rank 3."""
    base = model("base", "qwen2", scale=2, vocab=33)
    tuned = {}
    for name, values in base.items():
        change = 0.1 * rng.standard_normal(values.shape)
        if values.ndim == 2:
            change = (
                0.1
                * rng.standard_normal((values.shape[0], RANK))
                @ rng.standard_normal((RANK, values.shape[1]))
            )
        same = "layers.1.mlp" in name or name == "model.norm.weight"
        tuned[name] = values if same else (values + change).astype(np.float32)
    write(tmp_path / "base", tmp_path / "tuned", tuned)
    return base, tuned


def write(base, folder, tensors):
    folder.mkdir()
    (folder / "config.json").write_bytes((base / "config.json").read_bytes())
    lbrx.save(folder / "model.safetensors", tensors)


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_extracted_and_applied(device, pair, tmp_path, capsys):
    _, tuned = pair
    arguments = [str(tmp_path / name) for name in ("base", "tuned")]
    out = ["--out", str(tmp_path / "lora"), "--device", device]
    assert main(["extract-lora", *arguments, "--rank", str(RANK), *out]) == 0
    assert "of rank 3" in capsys.readouterr().out
    assert (
        main(
            [
                "apply-lora",
                arguments[0],
                str(tmp_path / "lora"),
                str(tmp_path / "again"),
                "--device",
                device,
            ]
        )
        == 0
    )
    found = lbrx.open_model(tmp_path / "again")
    for name, values in tuned.items():
        np.testing.assert_allclose(found[name].numpy(), values, atol=2e-5, err_msg=name)


def test_the_adapter_is_pefts(pair, tmp_path):
    base, tuned = pair
    found = extract_lora(
        tmp_path / "base", tmp_path / "tuned", tmp_path / "lora", LoraOptions(40), device="cpu"
    )
    assert found.kept == pytest.approx(1)
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 40, 40)
    assert "down_proj" in config["target_modules"]
    assert config["bias"] == "all"
    tensors = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    at = "base_model.model.model.layers.0.self_attn.k_proj"
    a, b = tensors[f"{at}.lora_A.weight"], tensors[f"{at}.lora_B.weight"]
    # k_proj has 16 rows: its rank is smaller, and so is its alpha.
    assert (a.shape, b.shape) == ((16, 32), (16, 16))
    assert config["rank_pattern"]["model.layers.0.self_attn.k_proj"] == 16
    assert config["alpha_pattern"] == config["rank_pattern"]
    name = "model.layers.0.self_attn.k_proj.weight"
    np.testing.assert_allclose(b @ a, tuned[name] - base[name], atol=1e-5)
    s = np.linalg.svd(tuned[name].astype(np.float64) - base[name])[1]
    np.testing.assert_allclose(np.sum(a[:RANK] ** 2, 1), s[:RANK], rtol=1e-4)
    rows = tensors["base_model.model.model.embed_tokens.lora_embedding_A"]
    assert rows.shape == (32, 33)
    assert not [key for key in tensors if "layers.1.mlp" in key or "model.norm." in key]


def test_a_lower_rank_keeps_the_largest_part(pair, tmp_path):
    one = extract_lora(
        tmp_path / "base", tmp_path / "tuned", tmp_path / "one", LoraOptions(1), device="cpu"
    )
    base, tuned = pair
    changes = [tuned[n].astype(np.float64) - base[n] for n in base if base[n].ndim == 2]
    spectra = [np.linalg.svd(change)[1] ** 2 for change in changes]
    kept = sum(s[0] for s in spectra) / sum(s.sum() for s in spectra)
    assert one.kept == pytest.approx(kept, rel=1e-4)


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_task_vector(dtype, pair, tmp_path):
    base, tuned = pair
    out = tmp_path / "vector"
    arguments = [
        str(tmp_path / "base"),
        str(tmp_path / "tuned"),
        "--out",
        str(out),
        "--device",
        "cpu",
    ]
    assert (
        main(
            [
                "task-vector",
                *arguments,
                *(["--dtype", dtype] if dtype else []),
                "--verify",
                "--quiet",
            ]
        )
        == 0
    )
    found = lbrx.open_model(out)
    for name in base:
        wanted = lbrx.tensor(tuned[name] - base[name], device="cpu").astype(
            "bfloat16" if dtype else "float32"
        )
        np.testing.assert_array_equal(found[name].numpy(), wanted.numpy())
    assert found.config["model_type"] == "qwen2"


def test_refusals(model, pair, tmp_path, capsys):
    base = str(tmp_path / "base")
    model("other", "llama")
    model("larger", "qwen2", scale=2, vocab=34)
    short = dict(pair[0])
    del short["model.layers.0.mlp.up_proj.weight"]
    write(tmp_path / "base", tmp_path / "short", short)
    cases = {
        "other": "merge models of one architecture",
        "larger": r"is \(33, 32\) in .*base and \(34, 32\) in .*larger",
        "short": "up_proj.weight, and .*short does not",
        "nowhere": "does not exist",
    }
    for name, message in cases.items():
        with pytest.raises(lbrx.LbrxError, match=message):
            open_pair(base, str(tmp_path / name))
    with pytest.raises(FormatError, match="does not differ"):
        extract_lora(base, base, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    lora = str(tmp_path / "lora")
    arguments = [
        "extract-lora",
        base,
        str(tmp_path / "tuned"),
        "--out",
        lora,
        "--device",
        "cpu",
        "--quiet",
    ]
    assert main([*arguments, "--rank", "0"]) == 1
    assert "a rank of 0 is too small" in capsys.readouterr().err
    assert main(arguments) == 0
    assert main(arguments) == 1
    assert "has an adapter already" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert [path.name for path in sorted((tmp_path / "lora").iterdir())] == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
