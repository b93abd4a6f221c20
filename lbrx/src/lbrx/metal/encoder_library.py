"""The C library that sends an encoder's messages (encoder.c): in wheels for macOS, where it is
built; without it PyObjC sends them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import DeviceError
from lbrx.metal import binding

FILE = Path(__file__).with_name("liblbrx_encoder.dylib")
RUNTIME = "/usr/lib/libobjc.A.dylib"

Words = NDArray[np.uint64]


class EncoderLibrary:
    """The library at a path. `address` gives the native object of a Python one."""

    def __init__(self, path: Path, runtime: str, address: Callable[[Any], int]) -> None:
        self.address = address
        library = ctypes.CDLL(str(path))
        library.lbrx_open.argtypes = [ctypes.c_char_p]
        if not library.lbrx_open(runtime.encode()):
            raise DeviceError(f"{runtime} has no Objective-C runtime: remove {path}")
        self._encode = library.lbrx_encode
        pointer = ctypes.c_void_p
        self._encode.argtypes = [pointer, pointer, ctypes.c_size_t, pointer, pointer]
        self._encode.restype = None

    def encode(self, encoder: Any, words: Words, objects: Words, data: NDArray[np.uint8]) -> None:
        """Send the messages of a packed list, whose objects are native ones."""
        self._encode(
            *(self.address(encoder), words.ctypes.data, len(words), objects.ctypes.data),
            data.ctypes.data,
        )


@cache
def encoder_library() -> EncoderLibrary | None:
    """The library of this installation; None if it has none."""
    if binding.SOFT or not FILE.exists():
        return None
    return EncoderLibrary(FILE, RUNTIME, binding.object_address)
