"""PyTorch on the same kind of device as lbrx: a GPU if lbrx runs on one, else the processor."""

from __future__ import annotations

from typing import Any

from lbrx.bench.peers import Operation, Peer


def load(module: Any, threads: int, gpu: bool) -> Peer:
    module.set_num_threads(threads)
    module.set_grad_enabled(False)
    device = _device(module) if gpu else "cpu"
    waits = {"cuda": module.cuda.synchronize, "mps": module.mps.synchronize}
    wait = waits.get(device, lambda: None)
    return Peer(
        name="torch",
        version=f"{module.__version__} on {device}",
        dtypes=frozenset({"float32", "float16", "bfloat16"}),
        array=lambda x, dtype: module.tensor(x, dtype=getattr(module, dtype), device=device),
        finish=lambda result: wait(),
        operations=_operations(module, device),
    )


def _device(module: Any) -> str:
    if module.cuda.is_available():
        return "cuda"
    return "mps" if module.backends.mps.is_available() else "cpu"


def _operations(t: Any, device: str) -> dict[str, Operation]:
    functional = t.nn.functional

    def chain(x: Any) -> Any:
        return x * 0.5 / (1.0 + t.exp(-x)) + x * x * 0.1 - 1.0

    def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    def rope(x: Any, positions: Any) -> Any:
        half = x.shape[-1] // 2
        angles = positions[:, None] * 10000.0 ** (-t.arange(half, device=device) / half)
        cos, sin = t.cos(angles).to(x.dtype), t.sin(angles).to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return t.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def network(x: Any, weights: Any) -> Any:
        for w in weights:
            x = functional.gelu(x @ w, approximate="tanh") + x
        return x

    return {
        "add": lambda x, y: x + y,
        "attention": attention,
        "cast": lambda x, to: x.to(getattr(t, to)),
        "chain": chain,
        "conv2d": functional.conv2d,
        "cumsum": lambda x: t.cumsum(x, -1),
        "gather": lambda x, indices: t.gather(x, -1, indices),
        "gelu": lambda x: functional.gelu(x, approximate="tanh"),
        "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
        "linear": functional.linear,
        "matmul": lambda x, y: x @ y,
        "max_pool2d": lambda x, size: functional.max_pool2d(x, size),
        "network": network,
        "overwrite": lambda cache, rows, positions: cache.index_copy(0, positions, rows),
        "random": lambda count: t.randn(count, device=device),
        "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:], eps=1e-5),
        "rope": rope,
        "scatter": lambda x, indices, updates: x.scatter_add(-1, indices, updates),
        "softmax": lambda x: t.softmax(x, -1),
        "sort": lambda x: t.sort(x, -1).values,
        "sum": lambda x: x.sum(),
        "sum_columns": lambda x: x.sum(0),
        "sum_rows": lambda x: x.sum(-1),
        "take": lambda x, indices: x[indices],
        "topk": lambda x, k: t.topk(x, k).values,
        "transpose": lambda x: x.T.contiguous(),
    }
