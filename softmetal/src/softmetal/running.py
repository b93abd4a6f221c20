"""Runs a program as `python` would, with softmetal instead of PyObjC."""

from __future__ import annotations

import atexit
import ctypes
import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import softmetal
from softmetal import checks, env
from softmetal.errors import SoftmetalError
from softmetal.native import loading

FOUND = 66  # the status of a program that checking modes found something in


class StartError(SoftmetalError):
    """There is no such program."""


def run(arguments: Sequence[str], as_module: bool, keep_status: bool) -> None:
    """Run the script or module `arguments[0]` with the rest as its arguments.

    Raises SettingError for an invalid setting before the program starts, StartError if there is
    nothing to start, and what the program raises. Exits with FOUND if checking modes have found
    something by the end of the process, unless `keep_status`.
    """
    env.validate()
    checks.current()
    if not keep_status:
        atexit.register(_end_with_findings)  # first, and so called last
    softmetal.install()
    loading.install()
    sys.argv = list(arguments)
    try:
        if as_module:
            sys.path.insert(0, "")
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except (ImportError, OSError) as problem:
        if _is_runpys(problem.__traceback__):
            raise StartError(" ".join(str(problem).split())[:300]) from None
        raise


def _is_runpys(trace: TracebackType | None) -> bool:
    """Whether an error was raised by runpy itself before it ran anything of the program."""
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return all(name in (__name__, "runpy", "importlib.util") for name in names)


def _end_with_findings() -> None:
    """The process's last handler: Python has no other means to change a status at its end."""
    if not checks.has_reported():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None, closed, or a pipe that is
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(FOUND)
