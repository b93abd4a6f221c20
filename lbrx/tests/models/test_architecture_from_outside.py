"""A network that another distribution adds, from its wheel."""

from __future__ import annotations

import json

import numpy as np
import reference_model
from device_memory import tolerance
from with_toy import run

import lbrx

PROGRAM = """
import sys
import numpy as np
import lbrx

folder, tokens, out = sys.argv[1:]
model = lbrx.language_model(folder, cache_dtype="float32")
np.save(out, model.engine.all_logits(list(map(int, tokens.split(",")))).numpy())
"""


def test_its_logits(make_model, toy_folder, tmp_path):
    """Llama's, with embeddings that are multiplied by a setting."""
    folder = make_model("llama", tie_word_embeddings=False)
    config = json.loads((folder / "config.json").read_text())
    changed = {**config, "model_type": "toy", "embedding_factor": 3.0}
    (folder / "config.json").write_text(json.dumps(changed))
    stored = lbrx.open_model(folder)
    weights = {name: stored[name].numpy() for name in stored}
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"] * 3
    tokens = list(range(7, 16))
    wanted = reference_model.logits(config, weights, tokens)
    given = (str(folder), ",".join(map(str, tokens)), str(tmp_path / "logits.npy"))
    done = run(toy_folder, "-c", PROGRAM, *given)
    assert done.returncode == 0, done.stderr
    most = tolerance(1e-4, 2e-2) * np.abs(wanted).max()
    np.testing.assert_allclose(np.load(given[2]), wanted, atol=most)
    done = run(None, "-c", PROGRAM, *given)
    assert "the architecture 'toy' is unknown: lbrx runs " in done.stderr
