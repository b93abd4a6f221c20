"""Mixtures against the types that llama.cpp chose."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

from lbrx import quant
from lbrx.errors import QuantizationError
from lbrx.quant import ModelFacts

RECORDED = json.loads((Path(__file__).parent / "llama_choices.json").read_text())


def along_layers(runs: str) -> list[str | None]:
    """The types that a record such as `q6_k*2 q4_k*14` stands for."""
    pairs = (run.split("*") for run in runs.split())
    types = [kind for kind, count in pairs for _ in range(int(count))]
    return [None if kind == "None" else kind for kind in types]


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda c: f"{c['model']}-{c['mixture']}")
def test_types_are_those_of_llama_cpp(case):
    """lbrx/scripts/llama_records.py wrote them, with llama.cpp's own quantizer."""
    model = RECORDED["models"][case["model"]]
    choose = quant.mixture(case["mixture"], ModelFacts(**model["facts"]))
    for name, shape in model["shapes"].items():
        layers = model["facts"]["layers"] if "*" in name else 1
        chosen = [choose(name.replace("*", str(i)), tuple(shape)) for i in range(layers)]
        assert chosen == along_layers(case["others"].get(name, case["most"])), name


def test_every_mixture_was_recorded():
    assert {case["mixture"] for case in RECORDED["cases"]} == quant.MIXTURES.keys()


def test_file_types_are_the_packages():
    for mixture in quant.MIXTURES.values():
        assert gguf.LlamaFileType(mixture.file_type).name == f"MOSTLY_{mixture.name.upper()}"


def test_every_chosen_type_can_be_encoded():
    for mixture in quant.MIXTURES.values():
        for name in (mixture.base, *(rule.type for rule in mixture.rules)):
            assert quant.find(name).encode is not None


@pytest.mark.parametrize(
    "tensor",
    [
        *("blk.0.attn_norm.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight"),
        *("position_embd.weight", "token_types.weight", "blk.0.ssm_conv1d.weight"),
    ],
)
def test_what_is_never_quantized(tensor):
    assert quant.mixture("q4_k_m", ModelFacts(4))(tensor, (256, 256)) is None
    assert quant.mixture("q4_k_m", ModelFacts(4))("blk.0.attn_q.weight", (256,)) is None


def test_names():
    assert quant.find_mixture("Q4_K").name == "q4_k_m"
    with pytest.raises(
        QuantizationError, match=r"'q4_k_x' is not a mixture: give one of q4_0, .*q4_k_m"
    ):
        quant.find_mixture("q4_k_x")
