"""Arguments of functions as tensors, in the types they compute in."""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.tensors.tensor_like import TensorLike


def as_tensor(value: TensorLike, device: str | None = None) -> Tensor:
    """A tensor as it is; anything else copied to the device."""
    return value if isinstance(value, Tensor) else tensor(value, device=device)


def as_tensors(*values: TensorLike) -> list[Tensor]:
    """Tensors as they are; everything else copied to the device of the first tensor."""
    place = next((value.device for value in values if isinstance(value, Tensor)), None)
    return [as_tensor(value, place) for value in values]


def without_halves(x: Tensor) -> Tensor:
    """float16 and bfloat16 as float32, for formulas that round their result once."""
    return x.astype(dt.float32) if x.dtype in (dt.float16, dt.bfloat16) else x


def floating(dtype: Dtype) -> Dtype:
    """The type in which an operation with a fractional result computes this type."""
    return dtype if dtype.is_float else dt.float32
