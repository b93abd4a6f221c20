"""Apple's debug layer, `MTL_DEBUG_LAYER=1`: what its driver lets pass while the layer is off.

`SOFTMETAL_STRICT=no-validation` plays the driver alone, for programs that rely on it. Only what is
harmless passes; everything else that validation refuses is refused as ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from softmetal import env
from softmetal.api.datatypes import data_size, data_type
from softmetal.types import Program


def validation_layer() -> bool:
    """Whether the debug layer is played: unless `no-validation` is given."""
    return "no-validation" not in env.strict()


def driver_length(length: int) -> int:
    """Bytes of threadgroup memory for a length: the driver rounds up what the layer refuses."""
    return length if length % 16 == 0 or validation_layer() else -(-length // 16) * 16


# DEVIATION: under `no-validation` a function constant without a value is zero; Apple's driver does
# not say what it is.
def driver_constants(program: Program, given: Mapping[int, bytes]) -> Mapping[int, bytes]:
    """The values of function constants, with those that the program left out."""
    if validation_layer():
        return given
    required = (constant for constant in program.constants if constant.required)
    return {c.index: bytes(data_size(data_type(c.type)) or 0) for c in required} | dict(given)
