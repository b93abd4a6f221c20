"""JAX on its default device; every operation is compiled by `jax.jit` before it is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lbrx.bench.peers import Operation, Peer


def load(module: Any, threads: int, gpu: bool) -> Peer:
    """XLA's processor backend takes all cores of the process; it has no setting for threads."""
    n = module.numpy
    return Peer(
        name="jax",
        version=module.__version__,
        dtypes=frozenset({"float32", "float16", "bfloat16"}),
        array=lambda x, dtype: n.asarray(x).astype("int32" if dtype == "int64" else dtype),
        finish=lambda result: result.block_until_ready(),
        operations={name: _jitted(module, made) for name, made in _operations(module).items()},
    )


def _jitted(jax: Any, function: Operation) -> Operation:
    """One compiled function for each set of options, which are constants of it."""
    made: dict[tuple[tuple[str, Any], ...], Callable[..., Any]] = {}

    def call(*arrays: Any, **options: Any) -> Any:
        key = tuple(options.items())
        if key not in made:
            made[key] = jax.jit(lambda *given: function(*given, **options))
        return made[key](*arrays)

    return call


def _operations(jax: Any) -> dict[str, Operation]:
    n, nn = jax.numpy, jax.nn

    def layer_norm(x: Any) -> Any:
        return nn.standardize(x, axis=-1, epsilon=1e-5)

    def rms_norm(x: Any) -> Any:
        return x / n.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def scatter(x: Any, indices: Any, updates: Any) -> Any:
        return x.at[n.arange(x.shape[0])[:, None], indices].add(updates)

    def convolution(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID")

    return {
        "add": lambda x, y: x + y,
        "cast": lambda x, to: x.astype(to),
        "chain": lambda x: x * 0.5 / (1.0 + n.exp(-x)) + x * x * 0.1 - 1.0,
        "conv2d": convolution,
        "cumsum": lambda x: n.cumsum(x, -1),
        "gather": lambda x, indices: n.take_along_axis(x, indices, -1),
        "gelu": lambda x: nn.gelu(x, approximate=True),
        "layer_norm": layer_norm,
        "linear": lambda x, w: x @ w.T,
        "matmul": lambda x, y: x @ y,
        "overwrite": lambda cache, rows, positions: cache.at[positions].set(rows),
        "random": lambda count: jax.random.normal(jax.random.key(0), (count,)),
        "rms_norm": rms_norm,
        "scatter": scatter,
        "softmax": lambda x: nn.softmax(x, -1),
        "sort": lambda x: n.sort(x, -1),
        "sum": lambda x: x.sum(),
        "sum_columns": lambda x: x.sum(0),
        "sum_rows": lambda x: x.sum(-1),
        "take": lambda x, indices: x[indices],
        "topk": lambda x, k: jax.lax.top_k(x, k)[0],
        "transpose": lambda x: x.T + 0,
    }
