"""Opening and copying models, compared with the gguf package and cp.

python lbrx/benchmarks/formats_speed.py
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

import lbrx

_TOKENS = 150_000
_TENSORS, _ROWS = 16, (2048, 4096)
_ROUNDS = 5


def best(work: Callable[[], object]) -> float:
    """Seconds of the best of several rounds."""
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def vocabulary(path: Path) -> None:
    tokens = [f"token{i}" for i in range(_TOKENS)]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * _TOKENS,
        "tokenizer.ggml.merges": [f"{token} x" for token in tokens],
    }
    lbrx.save(path, {"w": lbrx.ones(32, device="cpu")}, metadata)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary(folder / "v.gguf")
        ours = best(lambda: lbrx.open_model(folder / "v.gguf"))
        start = time.perf_counter()
        gguf.GGUFReader(folder / "v.gguf")
        theirs = time.perf_counter() - start
        print(f"open a GGUF with {_TOKENS:,} tokens: {ours:.3f} s, gguf package {theirs:.2f} s")

        values = np.random.default_rng(0).standard_normal(_ROWS).astype(np.float32)
        tensors = {f"t{i}": lbrx.tensor(values, device="cpu") for i in range(_TENSORS)}
        source, copy = folder / "a.safetensors", folder / "b.safetensors"
        lbrx.save(source, tensors)
        del tensors
        model = lbrx.open_model(source)
        ours = best(lambda: lbrx.save(copy, model))
        theirs = best(lambda: shutil.copyfile(source, copy))
        size = source.stat().st_size / 1e9
        print(f"copy {size:.2f} GB of safetensors: {theirs / ours:.2f} of cp's speed")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory {peak:.0f} MiB, mapped pages included")


if __name__ == "__main__":
    main()
