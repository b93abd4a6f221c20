"""The Metal module of this system: Apple's through PyObjC on a Mac, softmetal elsewhere.

Nothing else in lbrx imports either.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

SOFT = sys.platform != "darwin"


def _module(apples: str, ours: str) -> Any:
    return import_module(ours if SOFT else apples)


Metal = _module("Metal", "softmetal")
MPS = _module("MetalPerformanceShaders", "softmetal.mps")
NSURL = _module("Foundation", "softmetal.api.foundation").NSURL
# Command buffers and encoders are autoreleased: without a pool around them, a thread that has no
# run loop keeps them all.
autorelease_pool = _module("objc", "softmetal.api.objc").autorelease_pool

# What a wrong call raises: softmetal's validation, or an Objective-C exception.
CallError: type[Exception] = (
    _module("", "softmetal.errors").SoftmetalError if SOFT else _module("objc", "").error
)


def checking_modes() -> frozenset[str]:
    """Softmetal's checking modes in force: they decide how a kernel is compiled."""
    if not SOFT:
        return frozenset()
    modes: frozenset[str] = import_module("softmetal.checks").modes()
    return modes


def chip_table() -> Any:
    """Apple's chips by name. softmetal has the table, and is installed on a Mac too."""
    return import_module("softmetal.chips").chips()


def soft_threads() -> int:
    """The number of threads that a soft device runs kernels on."""
    threads: int = import_module("softmetal.env").threads()
    return threads
