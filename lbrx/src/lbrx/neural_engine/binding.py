"""The Core ML module of this system: Apple's through PyObjC on a Mac, softcoreml elsewhere.

No other module of lbrx imports PyObjC's CoreML, softcoreml or coremltools.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from lbrx.errors import DeviceError
from lbrx.extras import install

SOFT = sys.platform != "darwin"


def _module(apples: str, ours: str) -> Any:
    name = ours if SOFT else apples
    try:
        return import_module(name)
    except ImportError as problem:
        remedy = install("neural-engine")
        raise DeviceError(f"Core ML needs the module {name} ({problem}): {remedy}") from problem


@cache
def core_ml() -> Any:
    """The module with PyObjC's names of Core ML."""
    found = _module("CoreML", "softcoreml.api.coreml")
    if SOFT:
        from lbrx.neural_engine.soft_kernels import KERNELS

        accelerate: Callable[..., Any] = import_module("softcoreml").accelerate
        for name, kernel in KERNELS.items():
            accelerate(name, kernel)
    return found


def file_url(path: str) -> Any:
    """An NSURL of a path."""
    return _module("Foundation", "softcoreml.api.foundation").NSURL.fileURLWithPath_(path)


def unit_name() -> str:
    """What runs programs for the Neural Engine here, for reports."""
    return "neural-engine (softcoreml: Core ML in software)" if SOFT else "neural-engine (Core ML)"


@cache
def coremltools() -> Any:
    """The package that writes Core ML programs, without its warnings about Linux and versions."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module("coremltools")
    except ImportError as problem:
        raise DeviceError(
            f"a program for the Neural Engine needs coremltools ({problem}): "
            f"{install('neural-engine')}"
        ) from problem
    finally:
        logger.setLevel(level)


@cache
def mil_builder() -> Any:
    """coremltools' builder of MIL operations."""
    coremltools()
    return import_module("coremltools.converters.mil").Builder


@cache
def mil_types() -> Any:
    """MIL's element types: fp16, int32, int4 and others."""
    coremltools()
    return import_module("coremltools.converters.mil.mil.types")
