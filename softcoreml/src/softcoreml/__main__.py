"""Run, inspect and compare models from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softcoreml import comparison, inspection
from softcoreml.errors import InputError, SoftCoreMLError, shown
from softcoreml.format.read import read_model
from softcoreml.loaded import LoadedModel, States, load

_UNITS = {
    "all": frozenset({"cpu", "gpu", "neural-engine"}),
    "cpu-only": frozenset({"cpu"}),
    "cpu-and-gpu": frozenset({"cpu", "gpu"}),
    "cpu-and-neural-engine": frozenset({"cpu", "neural-engine"}),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("softcoreml", description="Core ML programs without a Mac.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="predict once")
    run.add_argument("--inputs", type=Path, required=True, help="a .npz with an array per input")
    run.add_argument("--out", type=Path, help="where to write outputs and states, a .npz")
    run.add_argument(
        "--precision",
        choices=("declared", "float32"),
        default="declared",
        help="round each result to its declared type, or compute fp16 in float32 (declared)",
    )
    inspect = commands.add_parser("inspect", help="operations, bytes and units (modelled)")
    inspect.add_argument(
        "--units", choices=list(_UNITS), default="all", help="the units that Core ML may use (all)"
    )
    compare = commands.add_parser("compare", help="where precision is lost, by operation")
    compare.add_argument(
        "--against",
        choices=("float32",),
        default="float32",
        help="the precision to compare with (float32)",
    )
    compare.add_argument("--inputs", type=Path, help="a .npz; random inputs if it is left out")
    compare.add_argument("--worst", type=int, metavar="N", help="only the N largest own losses")
    for one in (run, inspect, compare):
        one.add_argument("model", type=Path, help="a .mlpackage, .mlmodel or .mlmodelc")
        one.add_argument("--function", help="of a model with several functions")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    commands = {"run": _run, "inspect": _inspect, "compare": _compare}
    try:
        commands[options.command](options)
    except SoftCoreMLError as problem:
        print(f"softcoreml: {problem}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _arrays(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"cannot read {shown(path)} as .npz: {reason}") from None


def _run(options: argparse.Namespace) -> None:
    model = load(options.model, options.function, options.precision)
    given, states = _arrays(options.inputs), model.new_states()
    inputs = {name: array for name, array in given.items() if name not in states}
    _begin(model, states, given)
    outputs = model.predict(inputs, states)
    for name, value in outputs.items():
        print(f"{name}: {_summary(value)}")
    if options.out is not None:
        kept: dict[str, Any] = {name: states[name] for name in states}
        kept |= {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}
        np.savez(options.out, **kept)


def _begin(model: LoadedModel, states: States, given: dict[str, Any]) -> None:
    """States begin with the arrays of the input file, else with zeros."""
    for one in model.description.states:
        if one.name in given:
            buffer = states[one.name]
            if buffer.shape != given[one.name].shape:
                raise InputError(f"state {one.name!r} has the shape {buffer.shape}")
            buffer[...] = given[one.name]


def _summary(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    if value.dtype.kind not in "fiu" or not value.size:
        return f"{value.dtype} {value.shape}"
    wide = value.astype(np.float64)
    return (
        f"{value.dtype} {value.shape}, {wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}"
    )


def _inspect(options: argparse.Namespace) -> None:
    file = read_model(options.model)
    print(inspection.report(file, options.function, _UNITS[options.units]))


def _compare(options: argparse.Namespace) -> None:
    file = read_model(options.model)
    description = file.description.function(options.function)
    if options.inputs is not None:
        inputs = _arrays(options.inputs)
    else:
        inputs = comparison.random_inputs(description)
    losses = comparison.compare(file, inputs, options.function)
    if options.worst is not None:
        losses = sorted(losses, key=lambda one: -one.own)[: options.worst]
    print(comparison.table(losses))


if __name__ == "__main__":
    sys.exit(main())
