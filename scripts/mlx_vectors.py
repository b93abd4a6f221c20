"""Record what MLX's own quantizer makes of a few rows, for the default tests to compare with.

PYTHONPATH=src python scripts/mlx_vectors.py     # where `mlx` is installed
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from lbrx import quant

TESTS = Path(__file__).parent.parent / "tests" / "lbrx" / "quant"
sys.path.append(str(TESTS))
from mlx_rows import DTYPES, NAMES, rows  # noqa: E402

_TYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


def numpy_of(array: Any) -> NDArray[Any]:
    """numpy has no bfloat16 of its own to take MLX's with."""
    if array.dtype == mx.bfloat16:
        return np.array(array.astype(mx.float32)).astype(ml_dtypes.bfloat16)
    return np.array(array)


def mlx_parts(values: NDArray[Any], name: str) -> list[NDArray[Any]]:
    """Weight, scales, and biases where there are any, by MLX."""
    _, mode, *rest = name.split(":")
    settings = {"bits": int(mode), "group_size": int(rest[0])} if rest else {"mode": mode}
    array = mx.array(values.astype(np.float32)).astype(_TYPES[values.dtype.name])
    return [numpy_of(part) for part in mx.quantize(array, **settings)]


def main() -> None:
    vectors = {"version": np.array(mx.__version__)}
    for dtype in DTYPES:
        for name in NAMES:
            parts = mlx_parts(rows(dtype), name)
            raw = [np.ascontiguousarray(part).view(np.uint8).reshape(-1) for part in parts]
            vectors[f"{name} {dtype}"] = np.concatenate(raw)
    np.savez_compressed(TESTS / "mlx_vectors.npz", **vectors)
    assert {quant.find(name).planar for name in NAMES} == {True}


if __name__ == "__main__":
    main()
