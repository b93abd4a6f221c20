"""Core ML in software: reads ML programs and runs them with NumPy as the definition.

    import softcoreml

    model = softcoreml.load("net.mlpackage")
    outputs = model.predict({"x": x})

`install()` makes `import CoreML` work with PyObjC's names, and `install(coremltools=True)` makes
coremltools predict.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

from softcoreml.acceleration import accelerate
from softcoreml.errors import (
    InputError,
    ModelError,
    SoftCoreMLError,
    UnreadableModel,
    UnsupportedOperation,
)
from softcoreml.loaded import LoadedModel, States, load

__all__ = [
    "InputError",
    "LoadedModel",
    "ModelError",
    "SoftCoreMLError",
    "States",
    "UnreadableModel",
    "UnsupportedOperation",
    "accelerate",
    "install",
    "load",
]


def install(coremltools: bool = False) -> None:
    """Make later imports of CoreML import this package, and of Foundation where there is none.

    Args:
        coremltools: also give coremltools the native module that its Linux wheels lack, so that
            its own `MLModel(...).predict`, `make_state`, compiled models and `MLComputePlan` work.
    """
    sys.modules["CoreML"] = import_module("softcoreml.api.coreml")
    if "Foundation" not in sys.modules and find_spec("Foundation") is None:
        sys.modules["Foundation"] = import_module("softcoreml.api.foundation")
    if coremltools:
        import_module("softcoreml.coremltools_proxy").install()
