"""Conversion of a model of 319 million weights, compared with cp of the same traffic and llama.cpp.

python lbrx/benchmarks/convert_speed.py     # llama.cpp where llama-cpp-python is installed
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np

import lbrx
from lbrx.convert import Settings, convert

_ROUNDS = 9
_HIDDEN, _WIDE, _LAYERS, _VOCABULARY = 1024, 4096, 16, 24576
_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": _LAYERS,
    "hidden_size": _HIDDEN,
    "intermediate_size": _WIDE,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "vocab_size": _VOCABULARY,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
# The output is Python's last line; the arguments are source, target and llama.cpp's file type.
_LLAMA = """
import sys, time, llama_cpp as l
options = l.llama_model_quantize_default_params()
options.ftype, options.nthread = int(sys.argv[3]), int(sys.argv[4])
start = time.perf_counter()
assert l.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), options) == 0
print(time.perf_counter() - start)
"""
_Q4_K_M = 15


def make_model(folder: Path) -> None:
    """Normally distributed bfloat16 values under Llama's names."""
    rng = np.random.default_rng(0)
    square, wide = (_HIDDEN, _HIDDEN), (_WIDE, _HIDDEN)
    shapes = {"model.embed_tokens": (_VOCABULARY, _HIDDEN), "lm_head": (_VOCABULARY, _HIDDEN)}
    shapes |= {"model.norm": (_HIDDEN,)}
    for n in range(_LAYERS):
        layer = f"model.layers.{n}"
        shapes |= {f"{layer}.self_attn.{p}_proj": square for p in "qkvo"}
        shapes |= {f"{layer}.mlp.{p}_proj": wide for p in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": wide[::-1]}
        shapes |= {f"{layer}.{p}_layernorm": (_HIDDEN,) for p in ("input", "post_attention")}
    tensors = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
        array = values.astype(ml_dtypes.bfloat16)
        tensors[f"{name}.weight"] = lbrx.tensor(array, device="cpu")
    lbrx.save(folder, tensors, format="safetensors", config=_CONFIG)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def command(source: Path, target: Path, *options: str) -> str:
    """The summary of `lbrx convert` in a new process, which also starts the device."""
    replacing = ("--force", "--no-durable")
    given = [sys.executable, "-m", "lbrx", "convert", str(source), str(target), *replacing]
    given += options
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0].partition(": ")[2]


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*")) or path.stat().st_size


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def beside_cp(title: str, source: Path, target: Path, settings: Settings, *options: str) -> None:
    """The ratio of lbrx's bytes per second, read and written, to those of cp; runs alternate."""
    weights, copy = source / "model.safetensors", target.with_name("copy")
    ours, copied = [], []
    convert(source, target, settings)
    for _ in range(_ROUNDS):
        copied.append(seconds(lambda: subprocess.run(["cp", str(weights), str(copy)], check=True)))
        remove(target)  # like the copy: removing old pages is not part of the work
        ours.append(seconds(lambda: convert(source, target, settings)))
        remove(copy)
    speed = (size(source) + size(target)) / min(ours)
    beside = 2 * size(weights) / min(copied)
    print(f"{title:<26} {speed / 1e6:8,.0f} MB/s, {speed / beside:.2f} of cp")
    print(f"    as a command: {command(source, target, *options)}", flush=True)


def beside_llama(source: Path, folder: Path) -> None:
    """The ratio of speeds for Q4_K_M in separate processes, without their start."""
    ours, theirs, settings = [], [], Settings(quantize="q4_k_m")
    target = folder / "ours.gguf"
    convert(source, target, settings)
    for _ in range(2):
        remove(target)
        ours.append(seconds(lambda: convert(source, target, settings)))
        files = [str(source), str(folder / "theirs.gguf"), str(_Q4_K_M), str(os.cpu_count())]
        done = subprocess.run(
            [sys.executable, "-c", _LLAMA, *files], capture_output=True, text=True, check=True
        )
        theirs.append(float(done.stdout.split()[-1]))
    ratio = min(theirs) / min(ours)
    print(
        f"bf16 GGUF to Q4_K_M        {min(ours):.1f} s, llama.cpp {min(theirs):.1f} s: {ratio:.1f}"
    )
    print(f"    as a command: {command(source, target, '--quantize', 'q4_k_m')}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source"
        make_model(source)
        f16, q8, mlx = "f16", "q8_0", "mlx:4:64"
        q = "--quantize"
        beside_cp("bf16 to f16 safetensors", source, folder / "f16", Settings(quantize=f16), q, f16)
        beside_cp("bf16 to Q8_0 GGUF", source, folder / "q.gguf", Settings(quantize=q8), q, q8)
        beside_cp("bf16 to MLX 4-bit", source, folder / "mlx", Settings(quantize=mlx), q, mlx)
        if find_spec("llama_cpp"):
            convert(source, folder / "bf16.gguf")
            beside_llama(folder / "bf16.gguf", folder)


if __name__ == "__main__":
    main()
