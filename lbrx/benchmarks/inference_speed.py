"""Speed of a language model, compared with llama.cpp in the same run if that is installed.

    python lbrx/benchmarks/inference_speed.py [MODEL] [--prompt N] [--new N] [--rounds N]

Rounds alternate, and the best of each counts: other work on the machine can only slow them down.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lbrx.models import LanguageModel
from lbrx.models.loading import language_model, model_path
from lbrx.process import peak_memory

TEXT = "The history of science is the study of the development of science and knowledge. " * 64


class Speed(NamedTuple):
    """Tokens per second."""

    prefill: float
    decode: float


def ours(model: LanguageModel, tokens: list[int], new: int) -> Speed:
    model.engine.cached_tokens = []
    stream = model.stream(tokens, max_tokens=new + 1, ignore_end=True)
    for _ in stream:
        pass
    return Speed(stream.timing.prefill_speed, stream.timing.decode_speed)


def theirs(model: Any, tokens: list[int], new: int) -> Speed:
    """llama.cpp's evaluation calls, without its sampling loop in Python."""
    model.reset()
    began = time.perf_counter()
    model.eval(tokens)
    read = time.perf_counter()
    for token in tokens[:new]:
        model.eval([token])
    ended = time.perf_counter()
    return Speed(len(tokens) / (read - began), new / (ended - read))


def runners(path: Path, count: int, new: int) -> dict[str, Callable[[], Speed]]:
    model = language_model(path)
    tokens = model.tokenizer.encode(TEXT)[:count]
    result: dict[str, Callable[[], Speed]] = {"lbrx": lambda: ours(model, tokens, new)}
    if find_spec("llama_cpp") is not None and path.suffix == ".gguf":
        library = import_module("llama_cpp")
        settings = {"n_ctx": count + new, "n_batch": 512, "n_threads": 2, "n_threads_batch": 2}
        peer = library.Llama(str(path), verbose=False, **settings)
        result[f"llama.cpp ({library.__version__})"] = lambda: theirs(peer, tokens, new)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (512)")
    parser.add_argument("--new", type=int, default=64, help="generated tokens (64)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one more (5)")
    options = parser.parse_args()
    running = runners(model_path(options.model), options.prompt, options.new)
    best = dict.fromkeys(running, Speed(0, 0))
    for _ in range(options.rounds + 1):
        for name, run in running.items():
            best[name] = Speed(*map(max, best[name], run()))
    for name, speed in best.items():
        print(f"{name:<24} prefill {speed.prefill:7.1f} tok/s   decode {speed.decode:6.1f} tok/s")
    own, *others = best.values()
    if others:
        ratios = Speed(own.prefill / others[0].prefill, own.decode / others[0].decode)
        print(f"{'ratio':<24} prefill {ratios.prefill:7.2f}         decode {ratios.decode:6.2f}")
    print(f"peak memory of the process: {peak_memory() / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
