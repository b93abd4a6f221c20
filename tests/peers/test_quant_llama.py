"""Encoding and mixtures against llama.cpp, from the package llama-cpp-python where it is installed."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_models
import numpy as np
import pytest

from lbrx import quant
from lbrx.quant import gguf as ours

llama_cpp = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python is not installed: it is built from source, see docs"
)
CASES = [(s.name, data) for s in ours.SCHEMES if s.encode for data in ("gaussian", "outliers")]


@pytest.fixture(scope="module")
def ggml_quantize() -> Any:
    """(values, scheme, importance) to bytes."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    library = next(folder.glob("libggml-base.*"))
    function = ctypes.CDLL(str(library)).ggml_quantize_chunk
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    function.restype = ctypes.c_size_t

    def quantize(values: np.ndarray, name: str, importance: np.ndarray | None) -> np.ndarray:
        scheme = quant.find(name)
        data = np.zeros(scheme.nbytes(values.shape), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        pointers = values.ctypes.data, data.ctypes.data
        assert function(scheme.gguf_id, *pointers, 0, *values.shape, weights) == data.size
        return data

    return quantize
