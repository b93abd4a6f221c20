"""Tensors, element types, and the arrays and memory that they stand on."""

from __future__ import annotations

from lbrx.arrays import dtype as dtypes
from lbrx.arrays import shape as shapes
from lbrx.arrays.dtype import Dtype, DtypeLike
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array, MetalStorage, wait_for
from lbrx.arrays.storage.array import Bytes
from lbrx.arrays.storage.cpu import allocate
from lbrx.arrays.storage.mapped import MmapStorage
from lbrx.custom_kernels.kernel import Kernel
from lbrx.memory.zero_copy import mapping_of
from lbrx.tensors import Tensor, asarray, default_device, stack
from lbrx.tensors.core import apply

__all__ = [
    "Array",
    "Bytes",
    "Dtype",
    "DtypeLike",
    "Kernel",
    "MetalStorage",
    "MmapStorage",
    "Shape",
    "Tensor",
    "allocate",
    "apply",
    "asarray",
    "default_device",
    "dtypes",
    "mapping_of",
    "shapes",
    "stack",
    "wait_for",
]
