"""Merges whose models are results of other merges: the documents of one YAML, by dependency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.formats.recipe import ComputedModel
from lbrx.merging.config import MergeConfig, parse
from lbrx.merging.plan import MergePlan, plan_merge

_MOST_SHOWN = 12


def plan_documents(
    documents: Sequence[Mapping[str, Any]],
    text: str,
    *,
    name: str = "merged",
    seed: int = 0,
    exact: bool = False,
) -> MergePlan:
    """The plan of the final merge, or of a mixture of experts. Earlier stages are computed with it,
    tensor by tensor, and written nowhere.

    The final merge is the document without a name, or the one that no other uses. `text` is the
    configuration for the model card. Raises FormatError if documents use each other in a circle.
    """
    if len(documents) == 1 and "experts" in documents[0]:
        # Imported here: it needs the modules of language models, which merges do without.
        from lbrx.merging.experts import parse_mixture, plan_mixture

        return plan_mixture(parse_mixture(documents[0]), name=name, seed=seed, text=text)
    configs = _by_name([parse(document) for document in documents])
    final = _final(configs)
    stages: dict[str, ComputedModel] = {}
    notes: list[str] = []
    for config in _in_order(configs, final):
        last = config is final
        plan = plan_merge(
            config,
            name=name if last else str(config.name),
            stages=stages,
            seed=seed,
            exact=exact and last,
            text=text,
            notes=notes,
        )
        notes = list(plan.notes)
        if not last:
            stages[str(config.name)] = plan.model
    return plan


def _by_name(configs: Sequence[MergeConfig]) -> dict[str | None, MergeConfig]:
    result: dict[str | None, MergeConfig] = {}
    for config in configs:
        if config.name in result:
            what = "no name" if config.name is None else f"the name {config.name!r}"
            raise FormatError(f"two documents have {what}: give each a name of its own")
        result[config.name] = config
    return result


def _used(config: MergeConfig, configs: Mapping[str | None, MergeConfig]) -> list[str]:
    return [ref.path for ref in config.references() if ref.path in configs]


def _final(configs: Mapping[str | None, MergeConfig]) -> MergeConfig:
    if None in configs:
        return configs[None]
    used = {name for config in configs.values() for name in _used(config, configs)}
    ends = [name for name in configs if name not in used]
    if len(ends) != 1:
        names = ", ".join(_shown(ends)) or "none"
        raise FormatError(
            f"the documents that no other uses are {names}: leave out the name of the final merge"
        )
    return configs[ends[0]]


def _in_order(configs: Mapping[str | None, MergeConfig], final: MergeConfig) -> list[MergeConfig]:
    """The final merge and all it needs, each after those that it uses."""
    result: dict[str | None, MergeConfig] = {}
    # Merges that are not complete, each of which is used by the one before.
    opened: dict[str | None, Iterator[str]] = {final.name: iter(_used(final, configs))}
    while opened:
        name = next(reversed(opened))
        following = next((one for one in opened[name] if one not in result), None)
        if following is None:
            result[name] = configs[name]
            del opened[name]
        elif following in opened:
            raise FormatError(f"merges use each other in a circle: {_circle(opened, following)}")
        else:
            opened[following] = iter(_used(configs[following], configs))
    return list(result.values())


def _circle(opened: Iterable[str | None], first: str) -> str:
    names = list(opened)
    return " -> ".join([*_shown(names[names.index(first) :]), first])


def _shown(names: Sequence[str | None]) -> list[str]:
    """Names for a message, of which there may be many."""
    shown = [name or "the final merge" for name in names[:_MOST_SHOWN]]
    return shown if len(names) <= _MOST_SHOWN else [*shown, "..."]
