"""A random 4-bit llama on a GPU: a decode step and a prefill, beside their bounds and torch.

SOFTMETAL_DEVICE=cuda:0 python lbrx/benchmarks/llama_steps.py [--scheme q4_0] [--json FILE]

A decode step reads every weight once, so its bound is the bytes of the weights at the bandwidth of
a copy. The prefill is compared with an eager bfloat16 model of the same shapes in torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import lbrx
from lbrx import quant
from lbrx.metal import context
from lbrx.models import architectures
from lbrx.models.config import ModelConfig, RopeSettings
from lbrx.models.engine import Engine
from lbrx.models.kv_cache import CACHE_TYPES, ForwardStep
from lbrx.models.loading import compute_dtype
from lbrx.models.memory_plan import MemoryPlan
from lbrx.models.weights import Weights
from lbrx.quant.scheme import encode
from lbrx.tensors.long_lived import keep
from lbrx.tensors.quantized import pack

Shapes = tuple[int, int, int, int, int, int, int]
# Layers; sizes of hidden states and MLP; heads, heads of keys, and their size; vocabulary.
LARGE: Shapes = (20, 2048, 8192, 32, 8, 64, 128256)  # 1.48 billion parameters
SMALL: Shapes = (2, 256, 512, 4, 2, 64, 1024)
STEPS = 64  # tokens in a measurement
ROUNDS = 5
SCALE = 0.02  # of weights


class RandomWeights(Weights):
    """Normal vectors, and quantized matrices of random codes."""

    interleaved = False

    def __init__(self, scheme: str, seed: int) -> None:
        self.scheme = quant.find(scheme)
        self.device, self.prefix = "metal", ""
        self.dtype = compute_dtype(self.device, architectures.find("llama"))
        self.generator = np.random.default_rng(seed)
        self.sizes: list[int] = []

    def __contains__(self, name: str) -> bool:
        return False

    def vector(self, name: str, size: int) -> lbrx.Tensor:
        return keep(lbrx.ones(size, dtype=self.dtype, device=self.device), self.device)

    def matrix(self, name: str, rows: int, columns: int) -> lbrx.Tensor:
        blocks = rows * columns // self.scheme.elements
        some = self.generator.normal(0, SCALE, (256, self.scheme.elements)).astype(np.float32)
        chosen = self.generator.integers(0, 256, blocks)
        stored = {}
        for part, encoded in encode(some, self.scheme, None).items():
            values = encoded.reshape(256, -1)[chosen].reshape(rows, -1)
            self.sizes.append(values.nbytes)
            stored[part] = lbrx.tensor(values, device=self.device)
        return keep(pack(self.scheme.name, **stored), self.device)


def new_engine(shapes: Shapes, scheme: str, tokens: int) -> tuple[Engine, int]:
    """An engine with random weights, and the bytes of its matrices."""
    size = shapes[5]
    config = ModelConfig(
        "llama", *shapes, 8192, 1e-5, True, RopeSettings(10000.0, size), frozenset(), {}
    )
    weights = RandomWeights(scheme, seed=0)
    network = architectures.find("llama")(config, weights)
    memory = MemoryPlan(0, 0, 0, 1 << 40, tokens)
    return Engine(network, CACHE_TYPES["float16"], memory), sum(weights.sizes)


def copy_bandwidth() -> float:
    """Bytes a second of a copy on the device: read and written."""
    gpu, size = context(), 1 << 28
    source, target = gpu.buffer(size), gpu.buffer(size)
    times = []
    for _ in range(9):
        with lbrx.profile() as seen:
            gpu.queue.copy(source, target)
        times.append(seen.records[0].time)
    return 2 * size / statistics.median(times)


def median_seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def by_kernel(work: Callable[[], object]) -> dict[str, tuple[int, float, int]]:
    """Of each kernel: how often it runs, its device time and the bytes that it moves."""
    with lbrx.profile() as seen:
        work()
        records = seen.records
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for record in records:
        name = f"{record.kernel}:{record.variant}".rstrip(":")
        found[f"{name} {record.shapes}"].append((record.time, record.nbytes))
    totals = {
        name: (len(each), sum(time for time, _ in each), sum(nbytes for _, nbytes in each))
        for name, each in found.items()
    }
    return dict(sorted(totals.items(), key=lambda item: -item[1][1]))


def decode_seconds(engine: Engine, prompt: int) -> tuple[float, float]:
    """Seconds for a token when each step needs the last one's result, and those of the host."""
    prediction = engine.prefill([[1] * prompt], STEPS * (ROUNDS + 2))
    state = [prediction]

    def steps() -> None:
        for _ in range(STEPS):
            last = state[0]
            state[0] = engine.decode(last.best, last.positions)
        encoded.append(time.perf_counter())
        lbrx.eval(state[0].logits)

    encoded: list[float] = []
    steps()
    host = []
    totals = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        steps()
        totals.append(time.perf_counter() - begin)
        host.append(encoded[-1] - begin)
    return statistics.median(totals) / STEPS, statistics.median(host) / STEPS


def prefill_seconds(engine: Engine, tokens: int) -> float:
    generator = np.random.default_rng(1)
    vocabulary = engine.network.config.vocabulary

    def prefill() -> None:
        prompt = generator.integers(0, vocabulary, tokens).tolist()
        lbrx.eval(engine.prefill([prompt], 1).logits)

    prefill()
    return median_seconds(prefill)


def compiled_prefill_seconds(engine: Engine, tokens: int) -> float:
    """The prompt as one step, recorded once and replayed."""
    cache, network = engine.reserve(1, tokens), engine.network

    def step(prompt: lbrx.Tensor, places: lbrx.Tensor, valid: lbrx.Tensor) -> lbrx.Tensor:
        return network.logits(prompt, ForwardStep(cache, places, valid))

    compiled = lbrx.compile(step)
    generator = np.random.default_rng(1)
    prompts = [
        engine._tensor(generator.integers(0, network.config.vocabulary, (1, tokens)))
        for _ in range(2)
    ]
    places = engine._tensor(np.arange(tokens)[None])
    valid = engine._tensor([tokens])
    for prompt in prompts * 2:
        lbrx.eval(compiled(prompt, places, valid))
    return median_seconds(lambda: lbrx.eval(compiled(prompts[0], places, valid)))


def torch_with_gpu() -> ModuleType | None:
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def torch_model(torch: ModuleType, shapes: Shapes, tokens: int) -> Callable[[], Any]:
    """The prefill of a bfloat16 model of the same shapes."""
    layers, hidden, inner, heads, kv_heads, size, vocabulary = shapes
    functional = torch.nn.functional
    options = {"device": "cuda", "dtype": torch.bfloat16}

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, **options) * SCALE

    def layer() -> tuple[Any, ...]:
        width, kv_width = heads * size, kv_heads * size
        rows = (width, kv_width, kv_width)
        return (
            *(matrix(n, hidden) for n in rows),
            matrix(hidden, width),
            *(matrix(inner, hidden) for _ in range(2)),
            matrix(hidden, inner),
        )

    made = [layer() for _ in range(layers)]
    norm = torch.ones(hidden, **options)
    embedding = matrix(vocabulary, hidden)
    angles = torch.outer(
        torch.arange(tokens, device="cuda"),
        10000.0 ** (-torch.arange(0, size, 2, device="cuda") / size),
    )
    angles = torch.cat([angles, angles], -1)
    cosine, sine = angles.cos().bfloat16(), angles.sin().bfloat16()

    def rotated(x: Any) -> Any:
        half = size // 2
        return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine

    def split(x: Any) -> Any:
        return x.view(1, tokens, -1, size).transpose(1, 2)

    @torch.no_grad()
    def prefill() -> Any:
        x = functional.embedding(torch.randint(vocabulary, (1, tokens), device="cuda"), embedding)
        for wq, wk, wv, wo, gate, up, down in made:
            normed = functional.rms_norm(x, (hidden,), norm, 1e-5)
            q, k, v = (split(functional.linear(normed, w)) for w in (wq, wk, wv))
            mixed = functional.scaled_dot_product_attention(
                rotated(q), rotated(k), v, is_causal=True, enable_gqa=True
            )
            x = x + functional.linear(mixed.transpose(1, 2).reshape(1, tokens, -1), wo)
            normed = functional.rms_norm(x, (hidden,), norm, 1e-5)
            gated = functional.silu(functional.linear(normed, gate)) * functional.linear(normed, up)
            x = x + functional.linear(gated, down)
        return functional.linear(functional.rms_norm(x[:, -1], (hidden,), norm, 1e-5), embedding)

    return prefill


def torch_seconds(shapes: Shapes, tokens: int) -> float | None:
    torch = torch_with_gpu()
    if torch is None:
        return None
    prefill = torch_model(torch, shapes, tokens)

    def run() -> None:
        prefill()
        torch.cuda.synchronize()

    run()
    return median_seconds(run)


def show(title: str, kernels: dict[str, tuple[int, float, int]], bandwidth: float) -> float:
    """Print a breakdown; the sum of the kernels' times."""
    total = sum(seconds for _, seconds, _ in kernels.values())
    count = sum(number for number, _, _ in kernels.values())
    print(f"{title}: {count} kernels take {total * 1e6:,.0f} us on the device")
    for name, (number, seconds, nbytes) in list(kernels.items())[:16]:
        share = nbytes / seconds / bandwidth if seconds else 0.0
        each = seconds / number * 1e6
        print(f"  {seconds / total:6.1%} {number:5} x {each:8.2f} us  {share:5.2f}  {name[:90]}")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--scheme", default="q4_0")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shapes, tokens = (SMALL, 64) if arguments.small else (LARGE, arguments.prompt)
    engine, nbytes = new_engine(shapes, arguments.scheme, tokens + STEPS * (ROUNDS + 3))
    bandwidth = copy_bandwidth()
    results: dict[str, Any] = {"scheme": arguments.scheme, "bytes": nbytes, "copy": bandwidth}
    print(
        f"{context().info.name}: copy {bandwidth / 1e9:,.0f} GB/s, weights {nbytes / 1e6:,.0f} MB"
    )
    step, host = decode_seconds(engine, 64)
    bound = nbytes / bandwidth
    results |= {"decode_s": step, "decode_host_s": host, "decode_share": bound / step}
    print(
        f"decode: {1 / step:,.0f} tokens/s, {step * 1e6:,.0f} us a token, {bound / step:.2f} of "
        f"the bandwidth bound of {bound * 1e6:,.0f} us; the host needs {host * 1e6:,.0f} us"
    )
    last = engine.prefill([[1] * 64], 1)
    lbrx.eval(engine.decode(last.best, last.positions).logits)
    kernels = by_kernel(lambda: lbrx.eval(engine.decode(last.best, last.positions).logits))
    total = show("decode", kernels, bandwidth)
    count = sum(number for number, _, _ in kernels.values())
    print(f"  gaps between kernels: {(step - total) / count * 1e6:.2f} us each")
    seconds = prefill_seconds(engine, tokens)
    results |= {"decode_kernels_s": total, "prefill_s": seconds}
    print(f"prefill of {tokens}: {seconds * 1e3:.2f} ms, {tokens / seconds:,.0f} tokens/s")
    compiled = compiled_prefill_seconds(engine, tokens)
    results["prefill_compiled_s"] = compiled
    print(f"  by lbrx.compile: {compiled * 1e3:.2f} ms, {tokens / compiled:,.0f} tokens/s")
    prompt = np.random.default_rng(2).integers(0, shapes[-1], tokens).tolist()
    show("prefill", by_kernel(lambda: lbrx.eval(engine.prefill([prompt], 1).logits)), bandwidth)
    if peer := torch_seconds(shapes, tokens):
        results["torch_prefill_s"] = peer
        ratio = peer / min(seconds, compiled)
        print(f"torch, eager bfloat16: {peer * 1e3:.2f} ms; lbrx is {ratio:.2f} as fast")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
