"""The module that `import CoreML` gives after `softcoreml.install()`."""

from __future__ import annotations

from types import ModuleType

from softcoreml.api import (
    configuration,
    descriptions,
    devices,
    feature_values,
    foundation,
    mlmodel,
    multiarray,
    objects,
    plan,
    structure,
)

_MODULES: tuple[ModuleType, ...] = (
    configuration,
    descriptions,
    devices,
    feature_values,
    foundation,
    mlmodel,
    multiarray,
    objects,
    plan,
    structure,
)
__all__: list[str] = []

for _module in _MODULES:
    for _name in vars(_module):
        if _name.startswith(("ML", "NS")):
            globals()[_name] = getattr(_module, _name)
            __all__.append(_name)
