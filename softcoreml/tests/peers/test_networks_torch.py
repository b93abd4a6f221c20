"""Torch networks of random sizes, converted by coremltools for every target, against torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from seeds import SEED

pytest.importorskip("torch", reason="the peer: make test-peers")
pytest.importorskip("coremltools", reason="the converter: pip install coremltools")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import conversion
import networks
from mil_run import close

import softcoreml

STATELESS = [name for name in networks.NAMES if name != "llama"]  # states are float16 only


def _compare(
    folder: Path, model: Any, network: networks.Network, precision: str, tolerance: float
) -> None:
    model.save(str(folder / "network.mlpackage"))
    loaded = softcoreml.load(folder / "network.mlpackage", precision=precision)
    states = loaded.new_states()
    for call, expected in zip(network.calls, networks.outputs(network), strict=True):
        found = loaded.predict(call, states if len(states) else None)
        for place, one in enumerate(expected):
            close(found[f"y{place}"], one, tolerance)


@pytest.mark.parametrize("target", conversion.TARGETS)
@pytest.mark.parametrize("name", STATELESS)
def test_float32_programs(name: str, target: str, tmp_path: Path) -> None:
    network = networks.make(name, SEED * 100 + 1)
    model = conversion.convert(network, target, half=False)
    _compare(tmp_path, model, network, "declared", 3e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", networks.NAMES)
def test_float16_programs(name: str, seed: int, tmp_path: Path) -> None:
    network = networks.make(name, SEED * 100 + seed)
    _compare(tmp_path, conversion.convert(network), network, "declared", 2e-2)


@pytest.mark.parametrize("name", conversion.COMPRESSIONS)
def test_compressed_weights(name: str, tmp_path: Path) -> None:
    target, compress = conversion.COMPRESSIONS[name]
    network = networks.make("perceptron", SEED * 100 + 5)
    model = compress(conversion.convert(network, target))
    _compare(tmp_path, model, conversion.decompressed(model, network), "float32", 1e-4)
