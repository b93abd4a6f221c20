"""What a merge will do, as text: for `--dry-run`."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lbrx.convert.pieces import PIECE, THREADS
from lbrx.files.formats.recipe import ComputedTensor, Recipe, computed_tensors, nbytes_of, stored
from lbrx.merging.merge_function import MergeFunction
from lbrx.merging.observed import ObservedFunction
from lbrx.merging.run import PreparedMerge

# Bytes read and written in a second, as measured on two cores with a warm cache: elementwise
# methods move data, others also search or sort it.
_ELEMENTWISE_RATE = 1.5e9
_WHOLE_RATE = 0.4e9


def describe(prepared: PreparedMerge) -> str:
    """Tensors, methods, vocabulary, bytes, memory, disk and time of a merge."""
    plan, target = prepared.merge, prepared.conversion
    recipes = [item.recipe for item in target.items]
    read = _bytes_read(recipes)
    free = shutil.disk_usage(_existing(target.output.path)).free
    lines = {
        "output": f"{target.output.path}, {target.format}, {len(target.output.layouts)} file(s)",
        "models": ", ".join(map(str, plan.models)),
        "tensors": f"{len(recipes)}: {_methods(recipes)}",
        "types": _types(prepared),
        "vocabulary": plan.vocabulary,
        "reads": f"{_mb(read)} from {len(plan.model.paths)} file(s)",
        "writes": f"{_mb(target.nbytes)}, {_mb(free)} are free",
        "memory": f"about {_mb(peak_memory(recipes))} besides mapped files (estimated)",
        "time": f"about {_seconds(recipes, target.nbytes):.0f} s (estimated)",
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


def _existing(path: Path) -> Path:
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    return folder


def _bytes_read(recipes: Iterable[Recipe]) -> int:
    infos = {info.source: info.nbytes for recipe in recipes for info in stored(recipe)}
    return sum(infos.values())


def _methods(recipes: Iterable[Recipe]) -> str:
    """How many tensors each method makes."""
    counts: Counter[str] = Counter()
    for recipe in recipes:
        made = next(computed_tensors(recipe), None)
        function = made.function if made else None
        function = function.inner if isinstance(function, ObservedFunction) else function
        known = function.method if isinstance(function, MergeFunction) else "computed"
        counts["copied" if made is None else known] += 1
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _types(prepared: PreparedMerge) -> str:
    counts = Counter(item.stored_as for item in prepared.conversion.items)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def peak_memory(recipes: Iterable[Recipe]) -> int:
    """An estimate of the anonymous memory of a merge: the pieces in flight, an intermediate result
    in float32 of the one whole tensor that is being computed, and two results, of which one is
    being written."""
    whole = [tensor for recipe in recipes for tensor in _whole_tensors(recipe)]
    results = sorted((nbytes_of(tensor) for tensor in whole), reverse=True)[:2]
    computing = 4 * max((math.prod(tensor.shape) for tensor in whole), default=0)
    return 3 * 4 * PIECE * THREADS + computing + sum(results)


def _whole_tensors(recipe: Recipe) -> list[ComputedTensor]:
    """The computed tensors in a recipe of which no part can be computed alone."""
    return [tensor for tensor in computed_tensors(recipe) if not tensor.function.is_elementwise]


def _seconds(recipes: Iterable[Recipe], written: int) -> float:
    seconds = written / _ELEMENTWISE_RATE
    for recipe in recipes:
        moved = nbytes_of(recipe) + sum(info.nbytes for info in stored(recipe))
        seconds += moved / (_WHOLE_RATE if _whole_tensors(recipe) else _ELEMENTWISE_RATE)
    return seconds
