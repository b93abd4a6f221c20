"""Record the results of MLX's quantizer for a few rows, for the default tests to compare with.

python lbrx/scripts/mlx_vectors.py     # where `mlx` is installed
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

TESTS = Path(__file__).parent.parent / "tests"
VECTORS = TESTS / "quant" / "mlx_vectors.npz"
sys.path += [str(VECTORS.parent), str(TESTS / "peers")]
from mlx_quantizer import mlx_parts  # noqa: E402
from mlx_rows import DTYPES, NAMES, rows  # noqa: E402


def main() -> None:
    vectors = {"version": np.array(mx.__version__)}
    for dtype in DTYPES:
        for name in NAMES:
            parts = mlx_parts(rows(dtype), name)
            vectors[f"{name} {dtype}"] = np.concatenate([p.view(np.uint8).ravel() for p in parts])
    np.savez_compressed(VECTORS, **vectors)


if __name__ == "__main__":
    main()
