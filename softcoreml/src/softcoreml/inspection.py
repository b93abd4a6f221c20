"""A model in words: features, operations, bytes of weights, and where each would run (modelled)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from softcoreml import mil, placement
from softcoreml.description import Feature, FunctionDescription
from softcoreml.format.package import ModelFile
from softcoreml.interpreter.prepare import missing_operations


@dataclass(frozen=True)
class Line:
    """One operation: `weight_bytes` are those of its constants as the file stores them."""

    operation: mil.Operation
    outputs: str
    weight_bytes: int
    placement: placement.Placement


def lines(
    function: mil.Function, allowed: frozenset[str] = frozenset(placement.UNITS)
) -> list[Line]:
    """Every operation that runs, in order."""
    sizes = _constant_bytes(function)
    return [
        Line(
            operation,
            ", ".join(str(out.type) for out in operation.outputs),
            _weight_bytes(operation, sizes),
            where,
        )
        for operation, where in placement.place(function, allowed).items()
    ]


def _constant_bytes(function: mil.Function) -> dict[str, int]:
    """The stored bytes behind each constant, through the operations that decompress it."""
    sizes: dict[str, int] = {}
    for operation in mil.walk(function.block):
        if placement.is_constant(operation):
            own = sum(_stored(value) for value in operation.attributes.values())
            own += _weight_bytes(operation, sizes)
            sizes |= {out.name: own for out in operation.outputs}
    return sizes


def _weight_bytes(operation: mil.Operation, sizes: dict[str, int]) -> int:
    given = {one for some in operation.inputs.values() for one in some}
    return sum(_stored(one) if isinstance(one, mil.Value) else sizes.get(one, 0) for one in given)


def _stored(value: mil.Value) -> int:
    return (value.type.nbytes or 0) if isinstance(value.type, mil.TensorType) else 0


def report(
    file: ModelFile,
    function: str | None = None,
    allowed: frozenset[str] = frozenset(placement.UNITS),
) -> str:
    """The page that `python -m softcoreml inspect` prints."""
    names = [function] if function else list(file.description.functions)
    parts = [f"specification version {file.specification}, {len(names)} function(s)"]
    parts += [
        "\n".join(_function(file, file.description.function(name), allowed)) for name in names
    ]
    if missing := missing_operations(file.program):
        parts.append(f"softcoreml does not have: {', '.join(missing)}")
    return "\n\n".join(parts)


def _function(
    file: ModelFile, description: FunctionDescription, allowed: frozenset[str]
) -> Iterator[str]:
    function = file.program.functions[description.name]
    yield f"function {description.name} ({mil.OPSETS.get(function.opset, function.opset)})"
    for title, features in (
        ("input", description.inputs),
        ("state", description.states),
        ("output", description.outputs),
    ):
        for feature in features:
            yield f"  {title:<7} {feature.name}: {_feature(feature)}"
    found = lines(function, allowed)
    yield ""
    yield f"  {'operation':<28} {'weights':>10}  {'unit (modelled)':<15} result"
    for line in found:
        size = _bytes(line.weight_bytes) if line.weight_bytes else ""
        why = f"  [{line.placement.reason}]" if line.placement.reason else ""
        yield (
            f"  {line.operation.type:<28} {size:>10}  {line.placement.preferred:<15} "
            f"{line.outputs}{why}"
        )
    yield ""
    yield from _summary(found, function)


def _summary(found: list[Line], function: mil.Function) -> Iterator[str]:
    kinds = Counter(line.operation.type for line in found)
    units = Counter(line.placement.preferred for line in found)
    yield f"  {len(found)} operations: " + ", ".join(
        f"{name} {count}" for name, count in kinds.most_common()
    )
    yield f"  weights in the file: {_bytes(sum_of_weights(function))}"
    yield "  units (modelled): " + ", ".join(f"{unit} {units[unit]}" for unit in sorted(units))
    names = placement.Names(function)
    work = sum(placement.cost(line.operation, names) for line in found)
    if units["neural-engine"] and work < placement.WORTH_A_LAUNCH:
        yield "  so little work that Core ML would keep the whole function on the CPU (modelled)"
    reasons = Counter(line.placement.reason for line in found if line.placement.reason)
    for reason, count in reasons.most_common():
        yield f"  not on the Neural Engine ({count}): {reason}"


def sum_of_weights(function: mil.Function) -> int:
    """Bytes of all constants, each blob counted once."""
    blobs: dict[object, int] = {}
    for operation in mil.walk(function.block):
        given = [one for some in operation.inputs.values() for one in some]
        for one in (*given, *operation.attributes.values()):
            if isinstance(one, mil.Value) and isinstance(one.type, mil.TensorType):
                key = one.data if isinstance(one.data, mil.Blob) else id(one)
                blobs[key] = one.type.nbytes or 0
    return sum(blobs.values())


def _feature(feature: Feature) -> str:
    return f"{feature.type}{', optional' if feature.optional else ''}"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
