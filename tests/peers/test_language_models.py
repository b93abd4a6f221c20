"""Random tiny models of every architecture against transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.models import architectures, load

pytest.importorskip("torch", reason="transformers needs torch: make test-peers")
pytest.importorskip("transformers", reason="the peer: make test-peers")
sys.path.insert(0, str(Path(__file__).parents[1] / "lbrx" / "formats"))
import peer_models

SEEDS = (5, 6)


def close(given: np.ndarray, wanted: np.ndarray, tolerance: float = 2e-4) -> None:
    assert given.shape == wanted.shape
    error = np.abs(given - wanted).max() / np.abs(wanted).max()
    assert error < tolerance, f"differs by {error:.2g}"


def check(path: Path, tokens: list[int], wanted: np.ndarray, tolerance: float = 2e-4) -> None:
    """All at once, then the second half token by token."""
    # As long as to need the factors for long texts, where a model has them.
    model = load(path, context=len(tokens) + 1, cache_dtype="float32")
    close(model.engine.all_logits(tokens).numpy(), wanted, tolerance)
    half = len(tokens) // 2
    state = model.engine.prefill([tokens[:half]], len(tokens) - half)
    for place in range(half, len(tokens)):
        close(state.logits.numpy()[0], wanted[place - 1], tolerance)
        state = model.engine.decode(lbrx.tensor([[tokens[place]]]), state.positions)
    close(state.logits.numpy()[0], wanted[-1], tolerance)


def test_every_architecture_is_here():
    assert (
        sorted({peer_models.kind_of(case) for case in peer_models.CASES}) == architectures.known()
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", peer_models.CASES)
def test_logits(case, seed, tmp_path):
    peer, tokens = peer_models.make(case, seed), peer_models.prompt(seed)
    folder = peer_models.write(peer, tmp_path)
    check(folder, tokens, peer_models.logits(peer, tokens))
