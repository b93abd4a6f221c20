"""Configurations with open parameters: `{search: [low, high]}` in the place of a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lbrx.errors import FormatError
from lbrx.merging.config_fields import Fields, wrong

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Gene:
    """An open parameter: its place in the document and the range that is searched."""

    path: Path
    low: float
    high: float
    start: float

    @property
    def name(self) -> str:
        """Its place without the words that all parameters have."""
        shown = [str(part) for part in self.path if part not in ("parameters", "value")]
        return ".".join(shown)

    def value(self, share: float) -> float:
        """The value at a share of the range, from 0 to 1."""
        return self.low + (self.high - self.low) * min(max(share, 0.0), 1.0)

    @property
    def start_share(self) -> float:
        return (self.start - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class SearchSpace:
    """A document, and its open parameters in the order in which they occur."""

    document: Mapping[str, Any]
    genes: tuple[Gene, ...]

    def filled(self, shares: Sequence[float]) -> dict[str, Any]:
        """The document with a number for each open parameter."""
        values = {g.path: g.value(float(s)) for g, s in zip(self.genes, shares, strict=True)}
        result = _replaced(self.document, values, ())
        assert isinstance(result, dict)
        return result


def read_space(document: Mapping[str, Any]) -> SearchSpace:
    """Find the open parameters. Raises FormatError if there is none, or a range is wrong."""
    genes = tuple(_genes(document, ()))
    if not genes:
        raise FormatError(
            "no parameter is open: write {search: [0, 1]} instead of a number, for example "
            "weight: {search: [0, 1]}"
        )
    return SearchSpace(document, genes)


def _is_open(value: object) -> bool:
    return isinstance(value, Mapping) and "search" in value


def _genes(value: object, path: Path) -> Iterator[Gene]:
    if _is_open(value):
        yield _gene(value, path)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _genes(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _genes(inner, (*path, number))


def _gene(value: object, path: Path) -> Gene:
    place = ".".join(map(str, path))
    fields = Fields(value, place)
    limits, start = fields.take("search"), fields.take("start")
    fields.finish()
    match limits:
        case [int() | float() as low, int() | float() as high] if _is_range(low, high):
            middle = (low + high) / 2 if start is None else start
        case _:
            raise wrong(f"{place}.search", limits, "a range like [0, 1]")
    is_number = isinstance(middle, int | float) and not isinstance(middle, bool)
    if not is_number or not low <= middle <= high:
        raise wrong(f"{place}.start", start, f"a number from {low} to {high}")
    return Gene(path, float(low), float(high), float(middle))


def _is_range(low: float, high: float) -> bool:
    numbers = not isinstance(low, bool) and not isinstance(high, bool)
    return numbers and math.isfinite(low) and math.isfinite(high) and low < high


def _replaced(value: object, values: Mapping[Path, float], path: Path) -> object:
    if path in values:
        return values[path]
    if isinstance(value, Mapping):
        return {key: _replaced(inner, values, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, values, (*path, i)) for i, inner in enumerate(value)]
    return value
