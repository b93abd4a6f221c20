"""MLX: Apple's GPU on a Mac, the processor elsewhere."""

from __future__ import annotations

from typing import Any

from lbrx.bench.peers import Operation, Peer


def load(module: Any, threads: int, gpu: bool) -> Peer:
    """MLX chooses its number of threads itself."""
    return Peer(
        name="mlx",
        version=module.__version__,
        dtypes=frozenset({"float32", "float16", "bfloat16"}),
        array=lambda x, dtype: module.array(x).astype(getattr(module, dtype)),
        finish=module.eval,
        operations=_operations(module),
    )


def _operations(m: Any) -> dict[str, Operation]:
    def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
        mask = "causal" if causal else None
        scale = q.shape[-1] ** -0.5
        return m.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)

    def chain(x: Any) -> Any:
        return x * 0.5 / (1.0 + m.exp(-x)) + x * x * 0.1 - 1.0

    return {
        "add": lambda x, y: x + y,
        "attention": attention,
        "cast": lambda x, to: x.astype(getattr(m, to)),
        "chain": m.compile(chain),
        "cumsum": lambda x: m.cumsum(x, -1),
        "gather": lambda x, indices: m.take_along_axis(x, indices, -1),
        "layer_norm": lambda x: m.fast.layer_norm(x, None, None, 1e-5),
        "linear": lambda x, w: x @ w.T,
        "matmul": lambda x, y: x @ y,
        "random": lambda count: m.random.normal((count,)),
        "rms_norm": lambda x: m.fast.rms_norm(x, None, 1e-5),
        "softmax": lambda x: m.softmax(x, -1),
        "sort": lambda x: m.sort(x, -1),
        "sum": lambda x: x.sum(),
        "sum_columns": lambda x: x.sum(0),
        "sum_rows": lambda x: x.sum(-1),
        "take": lambda x, indices: x[indices],
        "transpose": lambda x: m.contiguous(x.T),
    }
