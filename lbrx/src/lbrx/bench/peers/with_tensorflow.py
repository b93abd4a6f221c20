"""TensorFlow on the processor; every operation is a `tf.function`."""

from __future__ import annotations

from typing import Any

from lbrx.bench.peers import Operation, Peer


def load(module: Any, threads: int, gpu: bool) -> Peer:
    module.config.set_visible_devices([], "GPU")
    module.config.threading.set_intra_op_parallelism_threads(threads)
    operations = _operations(module)
    return Peer(
        name="tensorflow",
        version=module.__version__,
        dtypes=frozenset({"float32", "float16", "bfloat16"}),
        array=lambda x, dtype: module.cast(module.constant(x), dtype),
        finish=lambda result: result,  # eager results on the processor are computed already
        operations={name: module.function(made) for name, made in operations.items()},
    )


def _operations(tf: Any) -> dict[str, Operation]:
    def layer_norm(x: Any) -> Any:
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5)

    def rms_norm(x: Any) -> Any:
        return x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-5)

    return {
        "add": lambda x, y: x + y,
        "cast": lambda x, to: tf.cast(x, to),
        "chain": lambda x: x * 0.5 / (1.0 + tf.exp(-x)) + x * x * 0.1 - 1.0,
        "cumsum": lambda x: tf.cumsum(x, -1),
        "gather": lambda x, indices: tf.gather(x, indices, axis=-1, batch_dims=1),
        "gelu": lambda x: tf.nn.gelu(x, approximate=True),
        "layer_norm": layer_norm,
        "linear": lambda x, w: tf.matmul(x, w, transpose_b=True),
        "matmul": tf.matmul,
        "rms_norm": rms_norm,
        "softmax": tf.nn.softmax,
        "sort": lambda x: tf.sort(x, -1),
        "sum": tf.reduce_sum,
        "sum_columns": lambda x: tf.reduce_sum(x, 0),
        "sum_rows": lambda x: tf.reduce_sum(x, -1),
        "take": tf.gather,
        "topk": lambda x, k: tf.math.top_k(x, k).values,
        "transpose": tf.transpose,
    }
