"""The public names of `lbrx`, which imports this module when one of them is first used.

Type checkers alone import the names that `lbrx` finds by itself, in other modules.
"""

import math
from typing import TYPE_CHECKING

from lbrx import ops
from lbrx.arrays.dtype import (
    Dtype,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote,
    uint8,
    uint16,
    uint32,
    uint64,
)
from lbrx.arrays.storage import empty_aligned
from lbrx.custom_kernels.kernel import Kernel, kernel
from lbrx.device_info import DeviceInfo
from lbrx.errors import (
    DeviceError,
    DtypeError,
    FormatError,
    GradientError,
    LbrxError,
    OutOfMemory,
    QuantizationError,
    SettingError,
    ShapeError,
    TraceError,
)
from lbrx.tensors import (
    Metadata,
    Tensor,
    arange,
    asarray,
    concat,
    default_device,
    devices,
    eye,
    from_dlpack,
    from_numpy,
    full,
    functions,
    ones,
    operation_functions,
    random,
    set_default_device,
    stack,
    tensor,
    where,
    zeros,
)
from lbrx.tensors.compilation import Compiled, compile
from lbrx.tensors.core import apply
from lbrx.tensors.data_types import (
    __array_namespace_info__,
    astype,
    can_cast,
    finfo,
    iinfo,
    isdtype,
    result_type,
)
from lbrx.tensors.evaluation import Event, commands, eval, explain
from lbrx.tensors.functions import *  # noqa: F403
from lbrx.tensors.operation_functions import *  # noqa: F403
from lbrx.tensors.quantized import dequantize, embedding, linear, quantize

if TYPE_CHECKING:
    from lbrx import kernels, metal
    from lbrx.files.stored.load_and_save import load, save
    from lbrx.files.stored.stored_model import StoredModel, open_model
    from lbrx.gradients import (
        checkpoint,
        custom_vjp,
        grad,
        stop_gradient,
        value_and_grad,
        vjp,
        vmap,
    )
    from lbrx.kernels import deterministic, excess_precision
    from lbrx.merging.run import merge
    from lbrx.metal.work_policy import policy
    from lbrx.models.loading import language_model
    from lbrx.scheduler.profiler import profile
    from lbrx.trees import tree_flatten, tree_map, tree_unflatten

__array_api_version__ = "2024.12"
"""The version of the Python array API standard that `lbrx` follows."""
bool = bool_
"""The dtype `bool_`, under the name that the array API standard gives it."""
e = math.e
"""Euler's number, a Python float."""
inf = math.inf
"""Positive infinity, a Python float."""
nan = math.nan
"""Not a number, a Python float."""
pi = math.pi
"""The ratio of a circle's circumference to its diameter, a Python float."""
newaxis = None
"""An index that inserts an axis of size 1: `x[:, lbrx.newaxis]`."""

__all__ = [
    "Compiled",
    "DeviceError",
    "DeviceInfo",
    "Dtype",
    "DtypeError",
    "Event",
    "FormatError",
    "GradientError",
    "Kernel",
    "LbrxError",
    "Metadata",
    "OutOfMemory",
    "QuantizationError",
    "SettingError",
    "ShapeError",
    "StoredModel",
    "Tensor",
    "TraceError",
    "__array_api_version__",
    "__array_namespace_info__",
    "apply",
    "arange",
    "asarray",
    "astype",
    "bfloat16",
    "bool",
    "bool_",
    "can_cast",
    "checkpoint",
    "commands",
    "compile",
    "concat",
    "custom_vjp",
    "default_device",
    "dequantize",
    "deterministic",
    "devices",
    "e",
    "embedding",
    "empty_aligned",
    "eval",
    "excess_precision",
    "explain",
    "eye",
    "finfo",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "full",
    "grad",
    "iinfo",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "kernel",
    "kernels",
    "language_model",
    "linear",
    "load",
    "merge",
    "metal",
    "nan",
    "newaxis",
    "ones",
    "open_model",
    "ops",
    "pi",
    "policy",
    "profile",
    "promote",
    "quantize",
    "random",
    "result_type",
    "save",
    "set_default_device",
    "stack",
    "stop_gradient",
    "tensor",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
    "vjp",
    "vmap",
    "where",
    "zeros",
]

__all__ += operation_functions.__all__
__all__ += functions.__all__
