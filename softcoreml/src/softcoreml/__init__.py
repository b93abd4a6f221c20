"""Core ML in software: reads ML programs and runs them with NumPy as the definition.

    import softcoreml

    model = softcoreml.load("net.mlpackage")
    outputs = model.predict({"x": x})

`install()` makes `import CoreML` work with PyObjC's names, and `install(coremltools=True)` makes
coremltools predict.
"""

from __future__ import annotations

from softcoreml.acceleration import accelerate
from softcoreml.errors import InputError, ModelError, SoftCoreMLError, UnsupportedOperation
from softcoreml.model import LoadedModel, States, load

__all__ = [
    "InputError",
    "LoadedModel",
    "ModelError",
    "SoftCoreMLError",
    "States",
    "UnsupportedOperation",
    "accelerate",
    "load",
]
