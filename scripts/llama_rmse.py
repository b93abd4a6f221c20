"""Record llama.cpp's quantization errors, for the default tests to compare ours with.

python scripts/llama_rmse.py LIBRARY VERSION

LIBRARY is libggml-base of a llama.cpp build, such as `llama_cpp/lib/libggml-base.so` in the wheel
of llama-cpp-python; VERSION is what the table says it is.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import quant

TESTS = Path(__file__).parent.parent / "tests" / "lbrx" / "quant"
sys.path.append(str(TESTS))
from quant_data import make, rmse  # noqa: E402

SEED = 20
SHAPE = (48, 1024)
DATA = ("gaussian", "weights", "outliers", "laplace")
SCHEMES = "q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs nvfp4".split()


def ggml_quantizer(library: str) -> Any:
    """(values, scheme, importance) to bytes, by ggml."""
    function = ctypes.CDLL(library).ggml_quantize_chunk
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    function.restype = ctypes.c_size_t

    def quantize(
        values: NDArray[np.float32], name: str, importance: NDArray[np.float32] | None
    ) -> NDArray[np.uint8]:
        scheme = quant.find(name)
        data = np.zeros(scheme.nbytes(values.shape), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        rows, columns = values.shape
        buffers = values.ctypes.data, data.ctypes.data
        written = function(scheme.gguf_id, *buffers, 0, rows, columns, weights)
        assert written == data.size, (name, written, data.size)
        return data

    return quantize


def case(quantize: Any, scheme: str, data: str, with_importance: bool) -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    values = make(data, rng, SHAPE)
    importance = rng.standard_normal(SHAPE[-1]).astype(np.float32) ** 2
    stored = quantize(values, scheme, importance if with_importance else None)
    back = quant.dequantize(stored, scheme, SHAPE)
    error = rmse(values, back, importance if with_importance else 1.0)
    settings = {"scheme": scheme, "data": data, "importance": with_importance}
    return {**settings, "rmse": float(f"{error:.6g}")}


def main(library: str, version: str) -> None:
    quantize = ggml_quantizer(library)
    cases = [case(quantize, scheme, data, False) for scheme in SCHEMES for data in DATA]
    weighted = [scheme for scheme in SCHEMES if scheme != "nvfp4"]
    cases += [case(quantize, scheme, "gaussian", True) for scheme in weighted]
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    head = json.dumps({"llama.cpp": version, "seed": SEED, "shape": SHAPE})[1:-1]
    (TESTS / "llama_rmse.json").write_text(f'{{{head}, "cases": [\n  {lines}\n]}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
