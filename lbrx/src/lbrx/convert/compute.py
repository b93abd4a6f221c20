"""Casting and encoding of values: on the Metal device if it has the kernels, otherwise in numpy."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.convert.source import StoredRows
from lbrx.errors import QuantizationError
from lbrx.tensors.creation import from_numpy
from lbrx.tensors.placement import default_device
from lbrx.tensors.quantized import quantize, stored_parts

# Numpy casts fewer values than this in less time than a launch takes.
_WORTHWHILE = 1 << 16
_ON_METAL = (dt.float32, dt.float16, dt.bfloat16)


class Compute(Protocol):
    """Casts and encodes rows. Each result depends on its own row only, so pieces of a tensor give
    the same bytes as the whole."""

    name: str

    def cast(self, values: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
        """The values in another type, rounded to nearest, ties to even."""

    def encode(
        self, values: NDArray[Any], scheme: str, importance: NDArray[Any] | None = None
    ) -> StoredRows:
        """The stored parts of rows in a quantization scheme."""


class NumpyCompute:
    """The numpy references."""

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
    """Casts and encodes on the device. The host decodes: that is fast, and kernels may round once
    more."""

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
            # The error may be about another thread's values; the reference names the element.
            return super().encode(values, scheme)


def _is_worthwhile(values: NDArray[Any]) -> bool:
    return values.size >= _WORTHWHILE and dt.parse(values.dtype) in _ON_METAL


def compute_on(device: str | None) -> Compute:
    """The implementation for a device; None means the default device."""
    return MetalCompute() if (device or default_device()) == "metal" else NumpyCompute()
