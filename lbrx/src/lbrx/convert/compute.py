"""Values to the bytes of a form: on the Metal device where it has the kernels, else with numpy."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx import quant
from lbrx.convert.source import StoredRows
from lbrx.dtype import Dtype
from lbrx.errors import QuantizationError
from lbrx.tensor.creation import from_numpy
from lbrx.tensor.placement import default_device
from lbrx.tensor.quantized import quantize, stored_parts

# Fewer values than this are cast by numpy before the device would have started.
_WORTHWHILE = 1 << 16
_ON_METAL = (dt.float32, dt.float16, dt.bfloat16)


class Compute(Protocol):
    """Results depend on the values alone, so that work in pieces equals work at once."""

    name: str

    def cast(self, values: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
        """Rounded to the nearest, ties to even."""

    def encode(
        self, values: NDArray[Any], scheme: str, importance: NDArray[Any] | None = None
    ) -> StoredRows:
        """The stored parts of rows."""


class NumpyCompute:
    """The references."""

    name = "cpu"

    def cast(self, values: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype.numpy, copy=False)

    def encode(
        self, values: NDArray[Any], scheme: str, importance: NDArray[Any] | None = None
    ) -> StoredRows:
        data, info = quant.quantize(values, scheme, importance)
        return {"data": data, **info.arrays}


class MetalCompute(NumpyCompute):
    """Casts, and encodings that have kernels, on the device. Decoding stays with the references: it
    is quick, and kernels may round once more."""

    name = "metal"

    def cast(self, values: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
        given = dt.parse(values.dtype)
        if given is dtype or dtype not in _ON_METAL or not _is_worthwhile(values):
            return super().cast(values, dtype)
        return from_numpy(values, "metal").astype(dtype).numpy()

    def encode(
        self, values: NDArray[Any], scheme: str, importance: NDArray[Any] | None = None
    ) -> StoredRows:
        known = importance is None and quant.find(scheme).encoder is not None
        if not known or not _is_worthwhile(values):
            return super().encode(values, scheme, importance)
        try:
            stored = stored_parts(quantize(from_numpy(values, "metal"), scheme))
            assert stored is not None
            return {name: part.numpy() for name, part in stored[1].items()}
        except QuantizationError:
            # It may be about another thread's values, and the reference says which element it is.
            return super().encode(values, scheme)


def _is_worthwhile(values: NDArray[Any]) -> bool:
    return values.size >= _WORTHWHILE and dt.parse(values.dtype) in _ON_METAL


def compute_on(device: str | None) -> Compute:
    """What computes on a device: the default one if none is named."""
    return MetalCompute() if (device or default_device()) == "metal" else NumpyCompute()
