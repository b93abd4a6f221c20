"""An ML toolkit for Apple Silicon: tensors on Metal, quantization, model files, language models.

`lbrx` is also an array namespace of the Python array API standard; `docs/reference/array_api.md`
shows what of the standard it has.
"""

import math
import sys
from typing import TYPE_CHECKING, Any

from lbrx import interrupt as interrupt
from lbrx import ops
from lbrx.device_info import DeviceInfo
from lbrx.dtype import (
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
from lbrx.errors import (
    DeviceError,
    DtypeError,
    FormatError,
    LbrxError,
    OutOfMemory,
    QuantizationError,
    SettingError,
    ShapeError,
    TraceError,
)
from lbrx.storage import empty_aligned
from lbrx.tensor import (
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
    ones,
    random,
    set_default_device,
    stack,
    tensor,
    where,
    zeros,
)
from lbrx.tensor.compilation import Compiled, compile
from lbrx.tensor.core import apply
from lbrx.tensor.data_types import (
    __array_namespace_info__,
    astype,
    can_cast,
    finfo,
    iinfo,
    isdtype,
    result_type,
)
from lbrx.tensor.evaluation import Event, eval, explain
from lbrx.tensor.functions import *  # noqa: F403
from lbrx.tensor.functions import __all__ as _functions
from lbrx.tensor.kernel import Kernel, kernel
from lbrx.tensor.operation_functions import *  # noqa: F403
from lbrx.tensor.operation_functions import __all__ as _operations
from lbrx.tensor.quantized import dequantize, embedding, linear, quantize
from lbrx.version import VERSION

if TYPE_CHECKING:
    from lbrx import kernels, metal, video
    from lbrx.kernels import deterministic, excess_precision
    from lbrx.merge.run import merge
    from lbrx.models.loading import language_model
    from lbrx.scheduler.profiler import profile
    from lbrx.tensor.files import load, save
    from lbrx.tensor.stored_model import StoredModel, open_model

__version__ = VERSION
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
    "compile",
    "concat",
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
    "profile",
    "promote",
    "quantize",
    "random",
    "result_type",
    "save",
    "set_default_device",
    "stack",
    "tensor",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "video",
    "where",
    "zeros",
]

__all__ += _operations
__all__ += _functions

if not TYPE_CHECKING:  # a type checker sees the imports above; this would let any name pass

    def __getattr__(name: str) -> Any:
        """Import what needs Metal or files when it is first used: `import lbrx` stays quick."""
        match name:
            case "kernels" | "deterministic" | "excess_precision":
                import lbrx.kernels as module
            case "metal":
                import lbrx.metal as module
            case "language_model":
                from lbrx.models import loading as module
            case "merge":  # the package, which can be called
                import lbrx.merge

                return lbrx.merge
            case "profile":
                import lbrx.scheduler.profiler as module
            case "StoredModel" | "open_model":
                from lbrx.tensor import stored_model as module
            case "video":
                import lbrx.video as module
            case "load" | "save":
                from lbrx.tensor import files as module
            case _:
                from lbrx.tensor.foreign_names import OUR_NAMES

                hint = f": use lbrx.{OUR_NAMES[name]}" if name in OUR_NAMES else ""
                text = f"module 'lbrx' has no attribute {name!r}{hint}"
                raise AttributeError(text, name=name, obj=sys.modules[__name__])
        return getattr(module, name, module)


def __dir__() -> list[str]:
    hidden = {"Any", "TYPE_CHECKING", "interrupt", "math", "sys"}
    return sorted({*globals(), *__all__} - hidden)
