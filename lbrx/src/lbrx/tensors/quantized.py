"""Quantized tensors: how they are made and inspected, and operations that use them as weights.

A quantized tensor has the shape of its values and the dtype float32, but its storage is quantized.
It stays quantized when it is sliced by rows, moved between devices, saved or pickled. `linear` and
`embedding` read the quantized storage; any other operation decodes the whole tensor first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import DtypeLike
from lbrx.errors import QuantizationError, ShapeError
from lbrx.ops.quantized import stored_names, values_shape
from lbrx.quant import QuantizationInfo
from lbrx.tensors import derived
from lbrx.tensors.core import Metadata, Tensor, call, calls
from lbrx.tensors.creation import from_numpy


def pack(scheme: str, data: Tensor, **others: Tensor) -> Tensor:
    """A quantized tensor over stored arrays, without a copy if they are contiguous.

    data holds rows of GGUF blocks (uint8), or packed words (uint32) with their `scales` and
    `zero_points` or `biases` by name. Arrays that the scheme does not have, or that are missing,
    raise QuantizationError; shapes that do not fit raise ShapeError.
    """
    wanted = quant.find(scheme)
    parts = {"data": data, **others}
    names = stored_names(wanted)
    if set(parts) != set(names):
        raise QuantizationError(f"{wanted.name} is stored as {', '.join(names)}: give these")
    arrays = {name: parts[name].contiguous().array for name in names}
    shape = values_shape(wanted, data.shape)
    return Tensor(derived.packed(wanted.name, arrays, shape), Metadata(quantization=wanted.name))


def unpickled(scheme: str, parts: Mapping[str, Tensor], metadata: Metadata) -> Tensor:
    """A quantized tensor from what a pickle of it has."""
    return Tensor(pack(scheme, **parts).array, metadata)


def stored_parts(tensor: Tensor) -> tuple[str, dict[str, Tensor]] | None:
    """The scheme of a tensor and its stored arrays by name.

    None if the tensor is not quantized, or is a view that does not consist of complete rows.
    """
    scheme, parts = derived.packed_scheme(tensor.array), derived.packed_rows(tensor.array)
    if scheme is None or parts is None:
        return None
    return scheme, {name: Tensor(parts[name]) for name in stored_names(quant.find(scheme))}


def _kernel_parts(tensor: Tensor) -> tuple[str, dict[str, Tensor]] | None:
    """`stored_parts` where the tensor's device computes with them; None where it needs values."""
    stored = stored_parts(tensor)
    if stored is None or (tensor.device != "cpu" and quant.find(stored[0]).codec is None):
        return None
    return stored


def quantization(tensor: Tensor) -> QuantizationInfo[Tensor] | None:
    """The scheme of a quantized tensor with its scales, zero points or biases; None as in
    `stored_parts`."""
    stored = stored_parts(tensor)
    if stored is None:
        return None
    scheme, parts = stored
    return quant.describe(scheme, **{n: part for n, part in parts.items() if n != "data"})


def quantize(tensor: Tensor, scheme: str, importance: Any = None) -> Tensor:
    """A floating tensor quantized with a scheme, such as "q4_0" or "mlx:4:64", on the same device.

    The last axis must be a multiple of the scheme's block length, otherwise ShapeError is raised;
    an unknown scheme raises QuantizationError. importance are weights for the error of each column
    (see `lbrx.quant.quantize`). Schemes without an encoding kernel, and calls with an importance,
    are encoded on the host.

    >>> w = lbrx.quantize(lbrx.ones((4, 32)), "q8_0")
    >>> w.shape, w.quantization.scheme
    ((4, 32), 'q8_0')
    """
    wanted = quant.find(scheme)
    if importance is None and wanted.encoder is not None:
        encoded = calls("encode_blocks", tensor, scheme=wanted.name)
    else:
        weights = None if importance is None else np.asarray(importance)
        data, info = quant.quantize(tensor.numpy(), wanted, weights)
        arrays = (data, *(info.arrays[name] for name in stored_names(wanted)[1:]))
        encoded = tuple(from_numpy(array, tensor.device) for array in arrays)
    named: Mapping[str, Tensor] = dict(zip(stored_names(wanted), encoded, strict=True))
    return pack(wanted.name, **named)


def dequantize(tensor: Tensor, dtype: DtypeLike = dt.float32) -> Tensor:
    """The values of a quantized tensor in a floating dtype, float32 by default.

    A tensor that is not quantized is cast to the dtype.
    """
    stored = _kernel_parts(tensor)
    if stored is None:
        return call("cast", tensor, dtype=dtype)
    scheme, parts = stored
    return call("decode_blocks", *parts.values(), scheme=scheme, dtype=dtype)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """activation(x @ weight.T + bias).

    x is (..., K), weight (N, K) and bias (N,); the result is (..., N). The activations are those
    of `matmul`. A quantized weight is multiplied without decoding it as a whole, and the result
    then has the dtype of x, which must be floating.
    """
    stored = _kernel_parts(weight)
    if stored is None:
        # numpy would read the values of a tensor to find its shape.
        shape = x.shape if isinstance(x, Tensor) else np.shape(x)
        if shape[-1:] != weight.shape[-1:]:
            raise ShapeError(
                f"linear: the last axes of x {shape} and of the weight {weight.shape} differ: "
                "give a weight of shape (outputs, inputs)"
            )
        values = weight if stored_parts(weight) is None else dequantize(weight, x.dtype)
        return call("matmul", x, values.mT, bias, activation=activation)
    scheme, parts = stored
    result = call("quantized_matmul", x, *parts.values(), scheme=scheme)
    if bias is not None:
        result = result + bias
    return result if activation is None else _activated(result, activation)


def linears(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """`linear(x, weight)` for each weight.

    Weights that are all quantized with the same scheme are multiplied in one operation, in which
    the device prepares x once.
    """
    stored = [_kernel_parts(weight) for weight in weights]
    schemes = {None if each is None else each[0] for each in stored}
    if len(weights) < 2 or len(schemes) > 1 or None in schemes:
        return [linear(x, weight) for weight in weights]
    (scheme,) = schemes
    parts = [part for each in stored if each is not None for part in each[1].values()]
    return list(calls("quantized_matmul", x, *parts, scheme=scheme, count=len(weights)))


def expert_linears(x: Tensor, indices: Tensor, stacks: Sequence[Tensor]) -> list[Tensor]:
    """x @ expert.T for the experts that each token uses, for each stack of experts.

    indices (tokens, used) are numbers of experts; x is (tokens, K), or (tokens, used, K) with a row
    for each of them. A stack has values of shape (experts, N, K), quantized or not, and gives
    (tokens, used, N) in the dtype of x. Of quantized stacks only the experts that are used are
    read. Stacks of one scheme are multiplied in one operation.
    """
    stored = [_kernel_parts(stack) for stack in stacks]
    schemes = {None if each is None else each[0] for each in stored}
    if len(schemes) > 1:
        return [expert_linears(x, indices, [stack])[0] for stack in stacks]
    (scheme,) = schemes
    parts: list[Tensor] = []
    for stack, each in zip(stacks, stored, strict=True):
        plain = [stack if stored_parts(stack) is None else dequantize(stack, x.dtype)]
        parts += plain if each is None else each[1].values()
    attributes = {"scheme": scheme, "count": len(stacks)}
    return list(calls("expert_matmul", x, indices, *parts, **attributes))


def _activated(x: Tensor, activation: str) -> Tensor:
    if activation == "gelu_tanh":
        return call("gelu", x, approximate="tanh")
    return call(activation, x)


def embedding(
    weight: Tensor, indices: Tensor, dtype: DtypeLike | None = None, beyond: str = "raise"
) -> Tensor:
    """Rows of a matrix by index: weight (N, D) and indices of any shape give (..., D).

    Of a quantized weight only these rows are decoded, to float32 unless a dtype is given; other
    weights keep their dtype. An index outside -N to N - 1 raises IndexError; with beyond="zeros"
    it gives a row of zeros, or of the value that zero bytes have in the scheme.
    """
    stored = _kernel_parts(weight)
    if stored is None:
        rows = call("take", weight, indices, axis=0, beyond=beyond)
        return rows if dtype is None else rows.astype(dtype)
    scheme, parts = stored
    taken = [call("take", part, indices, axis=0, beyond=beyond) for part in parts.values()]
    return call("decode_blocks", *taken, scheme=scheme, dtype=dtype or dt.float32)
