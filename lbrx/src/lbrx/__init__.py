"""An ML toolkit for Apple Silicon."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    result_type,
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
from lbrx.tensor.evaluation import Event, eval, explain
from lbrx.tensor.kernel import Kernel, kernel
from lbrx.tensor.quantized import dequantize, embedding, linear, quantize

if TYPE_CHECKING:
    from lbrx import kernels, metal
    from lbrx.kernels import deterministic
    from lbrx.models import load
    from lbrx.scheduler.profiler import profile
    from lbrx.tensor.saving import save
    from lbrx.tensor.stored_model import StoredModel, open_model

__version__ = "0.1.0"

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
    "arange",
    "bfloat16",
    "bool_",
    "compile",
    "concat",
    "default_device",
    "dequantize",
    "deterministic",
    "devices",
    "embedding",
    "empty_aligned",
    "eval",
    "explain",
    "eye",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "full",
    "int8",
    "int16",
    "int32",
    "int64",
    "kernel",
    "kernels",
    "linear",
    "load",
    "metal",
    "ones",
    "open_model",
    "ops",
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
    "where",
    "zeros",
]

# Names of Metal's and of files' modules: imported when first used, so that `import lbrx` is quick.
_LAZY = {
    "load": "lbrx.models",
    "metal": "lbrx.metal",
    "kernels": "lbrx.kernels",
    "deterministic": "lbrx.kernels",
    "profile": "lbrx.scheduler.profiler",
    "StoredModel": "lbrx.tensor.stored_model",
    "open_model": "lbrx.tensor.stored_model",
    "save": "lbrx.tensor.saving",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'lbrx' has no attribute {name!r}")
    module = import_module(_LAZY[name])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted(set(globals()) | _LAZY.keys())
