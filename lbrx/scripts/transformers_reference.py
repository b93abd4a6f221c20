"""Record what transformers computes with seeded weights, for the tests to compare with.

    python lbrx/scripts/transformers_reference.py > lbrx/tests/models/data/transformers.json

Needs torch and transformers. For each case of lbrx/tests/models/stored_cases.py: config.json, the
names and shapes of the tensors, and the log-probabilities of a text's tokens in float32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))
import seeded_weights
import stored_cases


def described(folder: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(folder / "model.safetensors", "np") as file:
        names = file.keys()
        return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def record(case: str, folder: Path) -> dict[str, Any]:
    kind, settings = stored_cases.kind_of(case), stored_cases.settings_of(case)
    config = transformers.AutoConfig.for_model(kind, **settings)
    network = transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    network.from_config(config).save_pretrained(folder)
    shapes = described(folder)
    tensors = {name: seeded_weights.values(name, shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model, loading = network.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not loading["missing_keys"], loading["missing_keys"]
    tokens = torch.tensor([stored_cases.TEXT])
    with torch.no_grad():
        logits = model.eval()(tokens).logits[0, :-1].double()
    chosen = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    written = json.loads((folder / "config.json").read_text())
    return {
        "config": written,
        "shapes": shapes,
        "log_probabilities": [round(value, 7) for value in chosen.tolist()],
    }


def main() -> None:
    torch.set_num_threads(1)
    result = {}
    for case in stored_cases.CASES:
        with tempfile.TemporaryDirectory() as folder:
            result[case] = record(case, Path(folder))
    json.dump(result, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
