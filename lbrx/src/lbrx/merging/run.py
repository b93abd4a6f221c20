"""Merges from a configuration to a model in memory, or to files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, overload

from lbrx.convert import ConversionPlan, Result, RunOptions, Settings, make_plan, perform
from lbrx.convert.pieces import PieceEngine, Progress
from lbrx.errors import FormatError
from lbrx.files.formats.packaged_models import target_path
from lbrx.files.formats.recipe import ComputedModel
from lbrx.files.stored.notes import Notes
from lbrx.files.stored.stored_model import StoredModel
from lbrx.merging import config as configuration
from lbrx.merging.observed import observed
from lbrx.merging.plan import MergePlan
from lbrx.merging.report import MergeReport, report_of, write_beside
from lbrx.merging.stages import plan_documents

ConfigLike = str | PathLike[str] | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A YAML file, the content of one document, or those of several."""


@dataclass(frozen=True)
class MergeOptions:
    """How a merge is written, and the seed of its random masks."""

    to: str | None = None
    quantize: str | None = None
    max_shard_size: int | str | None = None
    seed: int = 0
    report: bool = True
    """Whether the result gets a report of its tensors' statistics."""


@dataclass(frozen=True)
class PreparedMerge:
    """A merge whose every step is decided, before anything is read or written."""

    merge: MergePlan
    conversion: ConversionPlan
    text: str
    """The configuration."""

    def report(self, notes: Notes) -> MergeReport | None:
        """The report, from what was noted while the tensors were computed; None if no tensor was
        observed."""
        model, config = self.conversion.files, self.merge.config
        assert isinstance(model, ComputedModel)
        base = None if config is None else config.base_model
        found = report_of(model, None if base is None else str(base), self.text, notes)
        return found if found.records else None


def perform_merge(
    prepared: PreparedMerge,
    options: RunOptions | None = None,
    *,
    device: str | None = None,
    progress: Progress | None = None,
    verifying: Progress | None = None,
    engine: PieceEngine | None = None,
) -> Result:
    """Write a merge and its report: into the folder, or beside the file that is the model."""

    def late_files(notes: Notes) -> Mapping[str, bytes]:
        report = prepared.report(notes)
        return {} if report is None else report.files()

    plan = prepared.conversion
    result = perform(
        plan,
        options,
        device=device,
        progress=progress,
        verifying=verifying,
        late_files=late_files,
        engine=engine,
    )
    if not plan.output.is_folder and (report := prepared.report(result.notes)) is not None:
        write_beside(plan.output.path, report)
    return result


@overload
def merge(config: ConfigLike, out: None = None, *, seed: int = 0) -> StoredModel: ...


@overload
def merge(
    config: ConfigLike,
    out: str | PathLike[str],
    *,
    to: str | None = None,
    quantize: str | None = None,
    max_shard_size: int | str | None = None,
    seed: int = 0,
    report: bool = True,
    resume: bool = False,
    force: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    verifying: Progress | None = None,
) -> Result: ...


def merge(
    config: ConfigLike,
    out: str | PathLike[str] | None = None,
    *,
    to: str | None = None,
    quantize: str | None = None,
    max_shard_size: int | str | None = None,
    seed: int = 0,
    report: bool = True,
    resume: bool = False,
    force: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    verifying: Progress | None = None,
) -> StoredModel | Result:
    """Merge models as a configuration says, which is mergekit's YAML or the same as a dictionary.

    Without `out` the result is a model whose tensors are computed when they are used; it can be
    given to `lbrx.language_model`. With `out`, a file or a folder, the merged model is written
    there in bounded memory, in the format of `to` or of the name's ending, and quantized if
    `quantize` names a type. An interrupted merge continues with `resume`; existing files are
    replaced only with `force`; `verifying` computes the result again and compares. `report` adds
    merge-report.json and merge-report.html, with statistics of every merged tensor.

    Raises FormatError for configurations and models that cannot be merged, before anything is
    written.

        model = lbrx.merge({"merge_method": "linear", "models": [
            {"model": "a", "parameters": {"weight": 0.7}},
            {"model": "b", "parameters": {"weight": 0.3}}]})
        lbrx.merge("config.yml", "merged.gguf", quantize="q4_k_m")
    """
    if out is None:
        documents, text = _documents(config)
        model = plan_documents(documents, text, seed=seed).model
        return StoredModel(model, model.recipes)
    options = MergeOptions(to, quantize, max_shard_size, seed, report)
    return perform_merge(
        prepare(config, out, options),
        RunOptions(resume, force),
        device=device,
        progress=progress,
        verifying=verifying,
    )


def prepare(
    config: ConfigLike, out: str | PathLike[str], options: MergeOptions | None = None
) -> PreparedMerge:
    """Decide everything about a merge that is written to `out`. Only headers are read."""
    wanted = options or MergeOptions()
    documents, text = _documents(config)
    target = target_path(out)
    name = target.resolve().stem if target.suffix else target.resolve().name
    plan = plan_documents(
        documents, text, name=name, seed=wanted.seed, exact=_is_exact(wanted.quantize)
    )
    for model in plan.models:
        if model.files.path.exists() and target.resolve() == model.files.path.resolve():
            raise FormatError(f"{target} is a model of the merge: give another name")
    settings = Settings(
        to=wanted.to, quantize=wanted.quantize, max_shard_size=wanted.max_shard_size
    )
    result = observed(plan.model) if wanted.report else plan.model
    return PreparedMerge(plan, make_plan(result, target, settings), text)


def _is_exact(quantize: str | None) -> bool:
    """Whether results are quantized from float32. MLX's scales have the type of the model."""
    return quantize is not None and not quantize.lower().startswith("mlx:")


def _documents(config: ConfigLike) -> tuple[list[Mapping[str, Any]], str]:
    """The documents of a configuration, and the text for the model card."""
    if isinstance(config, str | PathLike):
        documents, text = configuration.load(os.fspath(config))
        return list(documents), text
    listed = [config] if isinstance(config, Mapping) else config
    if not isinstance(listed, Sequence) or not all(isinstance(one, Mapping) for one in listed):
        remedy = "give a YAML file, a dictionary or a list of dictionaries"
        raise FormatError(f"the configuration is a {type(config).__name__}: {remedy}")
    if not listed:
        raise FormatError("the configuration is empty: give merge_method and models")
    return list(listed), "---\n".join(configuration.dump(document) for document in listed)
