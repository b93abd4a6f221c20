"""Quantized tensors: made, looked at, and used as weights.

A quantized tensor shows its values' shape and float32, and keeps them packed. It can be sliced by
rows, moved between devices and saved as it is; `linear` and `embedding` compute with the packed
values, any other operation with those of a copy that it expands first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lbrx import dtype as dt
from lbrx import quant
from lbrx.dtype import DtypeLike
from lbrx.errors import QuantizationError
from lbrx.ops.quantized import has_encoder, stored_names, values_shape
from lbrx.quant import QuantizationInfo
from lbrx.tensor import derived
from lbrx.tensor.core import Metadata, Tensor, call, calls
from lbrx.tensor.creation import from_numpy


def pack(scheme: str, data: Tensor, **beside: Tensor) -> Tensor:
    """A quantized tensor over what is stored: GGUF's rows of bytes, or words with their `scales`
    and their `zero_points` or `biases`. Nothing is copied."""
    found = quant.find(scheme)
    parts = {"data": data, **beside}
    names = stored_names(found)
    if set(parts) != set(names):
        raise QuantizationError(f"{found.name} is stored as {', '.join(names)}: give these")
    arrays = {name: parts[name].contiguous().array for name in names}
    shape = values_shape(found, data.shape)
    return Tensor(derived.packed(found.name, arrays, shape), Metadata(quantization=found.name))


def stored_parts(tensor: Tensor) -> tuple[str, dict[str, Tensor]] | None:
    """The scheme of a tensor and what its rows are stored as; None if it is not quantized, or a
    view of which rows are not whole."""
    scheme, parts = derived.packed_scheme(tensor.array), derived.packed_rows(tensor.array)
    if scheme is None or parts is None:
        return None
    return scheme, {name: Tensor(parts[name]) for name in stored_names(quant.find(scheme))}


def quantization(tensor: Tensor) -> QuantizationInfo[Tensor] | None:
    """How a tensor's values are stored, with its scales, zero points or biases."""
    stored = stored_parts(tensor)
    if stored is None:
        return None
    scheme, parts = stored
    return quant.describe(scheme, **{n: part for n, part in parts.items() if n != "data"})


def quantize(tensor: Tensor, scheme: str, importance: Any = None) -> Tensor:
    """A floating tensor in a quantization scheme, on the same device.

    Schemes that no kernel encodes, and those given an importance (see `lbrx.quant.quantize`), are
    encoded by the host.
    """
    found = quant.find(scheme)
    if importance is None and has_encoder(found):
        encoded = calls("encode_blocks", tensor, scheme=found.name)
    else:
        weights = None if importance is None else np.asarray(importance)
        data, info = quant.quantize(tensor.numpy(), found, weights)
        arrays = (data, *(info.arrays[name] for name in stored_names(found)[1:]))
        encoded = tuple(from_numpy(array, tensor.device) for array in arrays)
    named: Mapping[str, Tensor] = dict(zip(stored_names(found), encoded, strict=True))
    return pack(found.name, **named)


def dequantize(tensor: Tensor, dtype: DtypeLike = dt.float32) -> Tensor:
    """The values of a quantized tensor; any other is cast."""
    stored = stored_parts(tensor)
    if stored is None:
        return call("cast", tensor, dtype=dtype)
    scheme, parts = stored
    return call("decode_blocks", *parts.values(), scheme=scheme, dtype=dtype)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """activation(x @ weight.T + bias), as layers of models use it: the weight has a row for each
    column of the result. A quantized weight stays packed, and the result has the type of x."""
    stored = stored_parts(weight)
    if stored is None:
        return call("matmul", x, weight.mT, bias, activation=activation)
    scheme, parts = stored
    result = call("quantized_matmul", x, *parts.values(), scheme=scheme)
    if bias is not None:
        result = result + bias
    return result if activation is None else _activated(result, activation)


def linears(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """`linear` of x with each weight. Those quantized alike are multiplied together, which spares
    a device some work on x."""
    stored = [stored_parts(weight) for weight in weights]
    schemes = {None if each is None else each[0] for each in stored}
    if len(weights) < 2 or len(schemes) > 1 or None in schemes:
        return [linear(x, weight) for weight in weights]
    (scheme,) = schemes
    parts = [part for each in stored if each is not None for part in each[1].values()]
    return list(calls("quantized_matmul", x, *parts, scheme=scheme, count=len(weights)))


def _activated(x: Tensor, activation: str) -> Tensor:
    if activation == "gelu_tanh":
        return call("gelu", x, approximate="tanh")
    return call(activation, x)


def embedding(
    weight: Tensor, indices: Tensor, dtype: DtypeLike | None = None, beyond: str = "raise"
) -> Tensor:
    """Rows of a matrix by their indices; of a quantized one those rows alone are expanded.

    An index beyond the rows raises; with beyond="zeros" it gives what zeros mean in that scheme.
    """
    stored = stored_parts(weight)
    if stored is None:
        rows = call("take", weight, indices, axis=0, beyond=beyond)
        return rows if dtype is None else rows.astype(dtype)
    scheme, parts = stored
    taken = [call("take", part, indices, axis=0, beyond=beyond) for part in parts.values()]
    return call("decode_blocks", *taken, scheme=scheme, dtype=dtype or dt.float32)
