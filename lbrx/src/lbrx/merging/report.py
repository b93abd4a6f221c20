"""The report of a merge: numbers for each tensor and layer, as JSON and as one HTML file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.arrays.shape import Shape
from lbrx.files.formats.recipe import ComputedModel, ComputedTensor
from lbrx.files.stored.notes import Notes
from lbrx.merging import report_page
from lbrx.merging.observed import ObservedFunction, noted_sums
from lbrx.merging.statistics import MergeSums, ParentSums

JSON_NAME, HTML_NAME = "merge-report.json", "merge-report.html"
_VERSION = 1
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|blocks|h)\.([0-9]{1,6})\.(.*)")


@dataclass(frozen=True)
class TensorRecord:
    """What is reported of one merged tensor."""

    name: str
    shape: Shape
    method: str
    models: tuple[int, ...]
    """The parents, as indices of the report's models, in the order of the sums."""
    sums: MergeSums

    @property
    def layer(self) -> int | None:
        """The number of its layer; None for embeddings and the like."""
        found = _LAYER.search(self.name)
        return int(found[1]) if found else None

    @property
    def kind(self) -> str:
        """Its name within a layer, without `weight`."""
        found = _LAYER.search(self.name)
        return (found[2] if found else self.name).removesuffix(".weight")


@dataclass(frozen=True)
class MergeReport:
    """The numbers of a merge."""

    title: str
    models: tuple[str, ...]
    """The parents' names."""
    base: str | None
    configuration: str
    """The YAML that the merge was made from."""
    records: tuple[TensorRecord, ...]

    def numbers(self) -> dict[str, Any]:
        """The content of merge-report.json. Numbers that are undefined or infinite are null."""
        return {
            "version": _VERSION,
            "title": self.title,
            "models": list(self.models),
            "base": self.base,
            "configuration": self.configuration,
            "total": self._total(self.records),
            "layers": [{"layer": n, **self._total(group)} for n, group in self._layers()],
            "tensors": [self._tensor(record) for record in self.records],
        }

    def files(self) -> dict[str, bytes]:
        """The report's files by name."""
        numbers = self.numbers()
        text = json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False)
        page = report_page.page(numbers)
        encoded = {JSON_NAME: text + "\n", HTML_NAME: page}
        return {name: one.encode(errors="replace") for name, one in encoded.items()}

    def _layers(self) -> list[tuple[int, list[TensorRecord]]]:
        groups: dict[int, list[TensorRecord]] = {}
        for record in self.records:
            if record.layer is not None:
                groups.setdefault(record.layer, []).append(record)
        return sorted(groups.items())

    def _tensor(self, record: TensorRecord) -> dict[str, Any]:
        return {
            "name": record.name,
            "kind": record.kind,
            "layer": record.layer,
            "shape": list(record.shape),
            "method": record.method,
            **_ratios(record.sums, record.models),
        }

    def _total(self, records: Iterable[TensorRecord]) -> dict[str, Any]:
        """The numbers of several tensors together, for all models of the report."""
        sums = [_for_all(record, len(self.models)) for record in records]
        if not sums:
            return {"values": 0, "parents": []}
        total = sums[0]
        for one in sums[1:]:
            total = total + one
        return _ratios(total, range(len(self.models)))


def report_of(model: ComputedModel, base: str | None, text: str, notes: Notes) -> MergeReport:
    """The report of a model whose tensors were observed while it was written. `text` is its
    configuration, and `notes` is what the conversion has noted."""
    merged = {
        name: (recipe, recipe.function)
        for name, recipe in model.recipes.items()
        if isinstance(recipe, ComputedTensor) and isinstance(recipe.function, ObservedFunction)
    }
    sums = noted_sums(
        notes, {name: math.prod(recipe.shape) for name, (recipe, _) in merged.items()}
    )
    called = [label for _, function in merged.values() for label in function.inner.models]
    models = tuple(dict.fromkeys(called))
    records = tuple(
        TensorRecord(
            name,
            recipe.shape,
            function.inner.method,
            tuple(models.index(label) for label in function.inner.models),
            sums[name],
        )
        for name, (recipe, function) in merged.items()
        if name in sums
    )
    uses_base = any(record.sums.base_squares is not None for record in records)
    return MergeReport(model.path.name, models, base if uses_base else None, text, records)


def write_beside(path: Path, report: MergeReport) -> None:
    """Write the report of a model that is one file, under names that begin with the model's."""
    for name, content in report.files().items():
        target = path.with_name(f"{path.stem}.{name}")
        partial = target.with_name(f".{target.name}.partial")
        partial.write_bytes(content)
        partial.replace(target)


def _for_all(record: TensorRecord, count: int) -> MergeSums:
    """A record's sums with a place for every model; zeros for those that it does not use."""
    given = dict(zip(record.models, record.sums.parents, strict=True))
    nothing = ParentSums(0.0, 0.0)
    parents = tuple(given.get(i, nothing) for i in range(count))
    own = record.sums
    return MergeSums(
        own.values,
        own.squares,
        own.conflicts,
        parents,
        own.base_squares,
        own.base_products,
        own.delta_squares,
        own.changed,
    )


def _ratios(sums: MergeSums, models: Sequence[int]) -> dict[str, Any]:
    """Norms, cosines and shares of sums."""
    base = sums.base_squares
    return {
        "values": sums.values,
        "norm": _root(sums.squares),
        "base_norm": None if base is None else _root(base),
        "base_cosine": sums.base_cosine(),
        "change_norm": None if base is None else _root(sums.delta_squares),
        "sign_conflicts": sums.conflict_share,
        "density": sums.density,
        "parents": [
            {
                "model": model,
                "norm": _root(one.squares),
                "cosine": sums.cosine(i),
                "change_norm": None if base is None else _root(one.delta_squares),
                "change_cosine": sums.delta_cosine(i),
            }
            for i, (model, one) in enumerate(zip(models, sums.parents, strict=True))
        ],
    }


def _root(squares: float) -> float | None:
    return math.sqrt(squares) if 0 <= squares < math.inf else None
