"""`lbrx merge` beside mergekit: whole commands, warm caches, peak memory, and the traffic floor.

python lbrx/benchmarks/merge_speed.py                                  # lbrx and the floor
python lbrx/benchmarks/merge_speed.py --mergekit VENV/bin/mergekit-yaml # and ratios to mergekit
python lbrx/benchmarks/merge_speed.py --sizes                          # 0.1, 0.3 and 1 billion

Three Llama checkpoints of 317 million parameters in bfloat16 are made from a seed: a base and two
models near it. They stay in --cache if it is given. The floor reads two files and copies a third,
which is the traffic of a merge of three.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

HIDDEN, WIDE, VOCABULARY = 1024, 4096, 32000
LAYERS = {"0.1": 2, "0.3": 15, "1": 56}
"""Billions of parameters to layers."""
NAMES = "base", "first", "second"
SAMPLE_SECONDS = 0.005
COPY_BYTES = 8 << 20
WEIGHTS = {"weight": 0.5}
DENSITY = {"weight": 0.5, "density": 0.5}
# Installed packages have their bytecode; a checkout writes it at the first run.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
METHODS: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "linear": ({}, WEIGHTS),
    "slerp": ({"t": 0.4}, {}),
    "task_arithmetic": ({}, WEIGHTS),
    "ties": ({}, DENSITY),
    "dare_ties": ({}, DENSITY),
    "della": ({}, DENSITY),
}
"""Parameters of the merge, and of each model."""


# ---- checkpoints ----


def shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens", (VOCABULARY, HIDDEN)
    for n in range(layers):
        layer = f"model.layers.{n}"
        for part in "qkvo":
            yield f"{layer}.self_attn.{part}_proj", (HIDDEN, HIDDEN)
        for part in ("gate", "up"):
            yield f"{layer}.mlp.{part}_proj", (WIDE, HIDDEN)
        yield f"{layer}.mlp.down_proj", (HIDDEN, WIDE)
        for part in ("input", "post_attention"):
            yield f"{layer}.{part}_layernorm", (HIDDEN,)
    yield "model.norm", (HIDDEN,)
    yield "lm_head", (VOCABULARY, HIDDEN)


def make_models(folder: Path, layers: int) -> list[Path]:
    """The checkpoints, made where they are missing."""
    paths = [folder / name for name in NAMES]
    if all((path / "config.json").is_file() for path in paths):
        return paths
    rng = np.random.default_rng(0)
    models: list[dict[str, np.ndarray]] = [{} for _ in NAMES]
    for name, shape in shapes(layers):
        centre = np.float32(len(shape) == 1)  # norms are near 1
        base = centre + rng.standard_normal(shape, np.float32) * np.float32(0.02)
        for number, model in enumerate(models):
            near = rng.standard_normal(shape, np.float32) * np.float32(0.002) if number else 0
            model[f"{name}.weight"] = (base + near).astype(ml_dtypes.bfloat16)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    for path, model in zip(paths, models, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        save_file(model, path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps(config))
    return paths


def configuration(method: str, paths: Sequence[Path]) -> str:
    """mergekit's YAML; JSON is YAML."""
    parameters, own = METHODS[method]
    base, *others = map(str, paths)
    if method == "slerp":
        others = [base, others[0]]
    models = [{"model": path, **({"parameters": own} if own else {})} for path in others]
    whole: dict[str, object] = {"merge_method": method, "models": models, "dtype": "bfloat16"}
    if method == "linear":
        whole["models"] = [{"model": base, "parameters": own}, *models]
    else:
        whole["base_model"] = base
    if parameters:
        whole["parameters"] = parameters
    return json.dumps(whole)


# ---- runs ----


@dataclass(frozen=True)
class Run:
    seconds: float
    processor_seconds: float
    anonymous: int
    """Peak anonymous memory in bytes."""


def _anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    found = (line.split() for line in lines if line.startswith("RssAnon"))
    return next((int(words[1]) * 1024 for words in found), 0)


def run(command: Sequence[str]) -> Run:
    """A whole command, with its memory sampled."""
    before, start = os.times(), time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
    )
    peak, ended = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(SAMPLE_SECONDS):
            peak = max(peak, _anonymous(process.pid))

    sampling = threading.Thread(target=sample)
    sampling.start()
    output, _ = process.communicate()
    took, after = time.perf_counter() - start, os.times()
    ended.set()
    sampling.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{output[-2000:]}")
    used = sum(after[2:4]) - sum(before[2:4])
    return Run(took, used, peak)


def floor(paths: Sequence[Path], target: Path) -> float:
    """Seconds to read two files and to copy the third."""
    block = bytearray(COPY_BYTES)
    start = time.perf_counter()
    for path in paths[1:]:
        with (path / "model.safetensors").open("rb", buffering=0) as file:
            while file.readinto(block):
                pass
    shutil.copyfile(paths[0] / "model.safetensors", target)
    took = time.perf_counter() - start
    target.unlink()
    return took


def best(command: Sequence[str], target: Path, rounds: int) -> Run:
    """The fastest of several runs, with the most memory of them."""
    runs = []
    for _ in range(rounds):
        shutil.rmtree(target, ignore_errors=True)
        runs.append(run(command))
    shutil.rmtree(target, ignore_errors=True)
    fastest = min(runs, key=lambda done: done.seconds)
    return Run(fastest.seconds, fastest.processor_seconds, max(done.anonymous for done in runs))


def compare(
    folder: Path, layers: int, methods: Sequence[str], rounds: int, mergekit: str | None
) -> None:
    """A line for each method."""
    paths = make_models(folder, layers)
    nbytes = (paths[0] / "model.safetensors").stat().st_size
    lowest = min(floor(paths, folder / "copy") for _ in range(rounds + 1))
    print(f"{nbytes / 1e6:,.1f} MB each; read two files and copy one: {lowest:.2f} s", flush=True)
    for method in methods:
        config, target = folder / f"{method}.yml", folder / "merged"
        config.write_text(configuration(method, paths))
        ours = [sys.executable, "-m", "lbrx", "merge", str(config), str(target), "--quiet"]
        shutil.rmtree(target, ignore_errors=True)
        run(ours)  # compiles kernels that the cache does not have yet
        own = best(ours, target, rounds)
        text = f"{own.seconds:.2f} s ({own.processor_seconds:.2f} s of processors), "
        text += f"{own.anonymous / 1e6:.0f} MB, {own.seconds / lowest:.1f} of the floor"
        if mergekit:
            theirs = best([mergekit, str(config), str(target), "--no-copy-tokenizer"], target, 1)
            ratio = theirs.seconds / own.seconds
            text += (
                f"; mergekit {theirs.seconds:.1f} s, {theirs.anonymous / 1e6:.0f} MB: {ratio:.1f}"
            )
        print(f"{method:<16} {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mergekit", metavar="PATH", help="mergekit-yaml of an environment")
    parser.add_argument("--cache", type=Path, help="the folder of the checkpoints (temporary)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", action="store_true", help="linear and ties at three sizes")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        cache = options.cache or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.sizes:
            for size, layers in LAYERS.items():
                print(f"{size} billion parameters")
                compare(cache / size, layers, ("linear", "ties"), options.rounds, None)
        else:
            chosen = cache / "0.3"
            compare(chosen, LAYERS["0.3"], options.methods, options.rounds, options.mergekit)


if __name__ == "__main__":
    main()
