"""Models for the tests, made with coremltools' MIL builder and written as packages."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="writes the packages: pip install coremltools")

import coremltools as ct
from coremltools.converters.mil import Builder as mb  # noqa: N813
from coremltools.converters.mil.mil import types
from seeds import SEED

logging.getLogger("coremltools").setLevel(logging.ERROR)
RNG = np.random.default_rng(SEED)
WEIGHT = RNG.standard_normal((16, 12)).astype(np.float32) / 4
_FOLDER = tempfile.TemporaryDirectory()
_MADE: dict[tuple[str, ...], Path] = {}
HALF = ct.precision.FLOAT16
FULL = ct.precision.FLOAT32


def written(
    program: Any,
    path: Path,
    target: Any = ct.target.iOS18,
    precision: Any = FULL,
    **options: Any,
) -> Path:
    """The program as a package at `path`."""
    model = ct.convert(
        program,
        convert_to="mlprogram",
        compute_precision=precision,
        minimum_deployment_target=target,
        skip_model_load=True,
        **options,
    )
    model.save(str(path))
    return path


def built(
    function: Callable[..., Any], *shapes: Any, target: Any = ct.target.iOS18, dtype: Any = None
) -> Any:
    """A program of one function with inputs of these shapes (a spec stands for itself)."""
    specs = [
        one if not isinstance(one, tuple) else mb.TensorSpec(shape=one, dtype=dtype or types.fp32)
        for one in shapes
    ]
    return mb.program(input_specs=specs, opset_version=target)(function)


def once(make: Callable[..., Path]) -> Callable[..., Path]:
    """Makes each package once in a process: a conversion takes much longer than a copy."""

    @wraps(make)
    def copied(path: Path, *options: Any) -> Path:
        key = (make.__name__, *map(str, options))
        if key not in _MADE:
            folder = Path(_FOLDER.name) / str(len(_MADE))
            folder.mkdir()
            _MADE[key] = make(folder / path.name, *options)
        return Path(shutil.copytree(_MADE[key], path))

    return copied


@once
def dense(path: Path, precision: Any = FULL, target: Any = ct.target.iOS18) -> Path:
    """out = relu(x W'), 3 x 12 to 3 x 16."""

    def main(x: Any) -> Any:
        return mb.relu(x=mb.linear(x=x, weight=WEIGHT), name="out")

    return written(built(main, (3, 12), target=target), path, target, precision)


@once
def counter(path: Path) -> Path:
    """A state of 2 x 32 to which x is added; out is the new state, before it the old one."""

    def main(x: Any, total: Any) -> Any:
        old = mb.read_state(input=total)
        new = mb.add(x=old, y=x)
        mb.coreml_update_state(state=total, value=new)
        return mb.mul(x=new, y=np.float16(1), name="new"), mb.mul(
            x=old, y=np.float16(1), name="old"
        )

    state = mb.StateTensorSpec((2, 32), dtype=types.fp16)
    return written(built(main, (2, 32), state, dtype=types.fp16), path, precision=HALF)


def flexible(path: Path, shapes: Any) -> Path:
    """out = 2 x + 1 for a flexible x of rank 2."""

    def main(x: Any) -> Any:
        return mb.add(x=mb.mul(x=x, y=np.float32(2)), y=np.float32(1), name="out")

    sizes = (ct.converters.mil.mil.get_new_symbol(), 4)
    return written(built(main, sizes), path, inputs=[ct.TensorType(name="x", shape=shapes)])


@once
def two_functions(path: Path) -> Path:
    """Functions `plus` and `times` that share a weight."""
    shared = RNG.standard_normal((4, 40)).astype(np.float32)

    def plus(x: Any) -> Any:
        return mb.add(x=x, y=shared, name="out")

    def times(x: Any) -> Any:
        return mb.mul(x=x, y=shared, name="out")

    folder = path.parent
    description = ct.utils.MultiFunctionDescriptor()
    for function in (plus, times):
        name = function.__name__
        part = written(built(function, (4, 40)), folder / f"{name}.mlpackage")
        description.add_function(str(part), src_function_name="main", target_function_name=name)
    description.default_function_name = "plus"
    ct.utils.save_multifunction(description, str(path))
    return path
