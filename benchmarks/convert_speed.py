"""Converting a model of 317 million weights, beside cp of the same traffic and llama.cpp.

python benchmarks/convert_speed.py [--llama PYTHON]   where PYTHON has llama-cpp-python
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

import lbrx

_ROUNDS = 3
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
    """Normal numbers in bfloat16 under Llama's names."""
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


def convert(source: Path, target: Path, *options: str) -> tuple[float, str]:
    """Seconds of the work itself, without Python's start, and the command's own summary."""
    command = [sys.executable, "-m", "lbrx", "convert", str(source), str(target), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    summary = done.stdout.strip().splitlines()[0]
    return float(summary.split(" MB, ")[1].split(" s")[0]), summary


def size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def beside_cp(title: str, source: Path, target: Path, *options: str) -> None:
    """Bytes read and written a second, ours by cp's, in turns."""
    weights = max(source.rglob("*.safetensors"), key=size)
    copy = target.with_name("copy")
    ours, theirs = [], []
    for _ in range(_ROUNDS):
        theirs.append(seconds(lambda: subprocess.run(["cp", str(weights), str(copy)], check=True)))
        took, summary = convert(source, target, *options)
        ours.append(took)
        copy.unlink()
    traffic = size(source) + size(target)
    ratio = traffic / min(ours) / (2 * size(weights) / min(theirs))
    print(f"{title:<28} {traffic / min(ours) / 1e6:8,.0f} MB/s {ratio:6.2f} of cp")
    print(f"    {summary}")


def beside_llama(python: str, source: Path, folder: Path) -> None:
    ours, theirs = [], []
    for _ in range(2):
        took, summary = convert(source, folder / "ours.gguf", "--quantize", "q4_k_m")
        ours.append(took)
        files = [str(source), str(folder / "theirs.gguf"), str(_Q4_K_M), "2"]
        command = [python, "-c", _LLAMA, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        theirs.append(float(done.stdout.split()[-1]))
    ratio = min(theirs) / min(ours)
    print(
        f"GGUF bf16 to Q4_K_M: {min(ours):.1f} s, llama.cpp {min(theirs):.1f} s, ratio {ratio:.2f}"
    )
    print(f"    {summary}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama", help="a Python that has llama-cpp-python")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source"
        make_model(source)
        beside_cp("bf16 to f16 safetensors", source, folder / "f16", "--quantize", "f16")
        beside_cp("bf16 to Q8_0 GGUF", source, folder / "q8.gguf", "--quantize", "q8_0")
        mlx = ("--to", "mlx", "--quantize", "mlx:4:64")
        beside_cp("bf16 to MLX 4-bit", source, folder / "mlx", *mlx)
        if options.llama:
            convert(source, folder / "bf16.gguf")
            beside_llama(options.llama, folder / "bf16.gguf", folder)


if __name__ == "__main__":
    main()
