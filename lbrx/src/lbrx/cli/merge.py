"""lbrx merge: merge models as mergekit's YAML says, or with options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbrx.cli import spare_collector
from lbrx.cli.convert import (
    add_engine_arguments,
    add_output_arguments,
    carry_out,
    chosen_engine,
)
from lbrx.convert import Result, RunOptions
from lbrx.convert.output_checks import check_not_replacing, check_space, replaced_files
from lbrx.convert.pieces import PieceEngine, Progress
from lbrx.errors import LbrxError
from lbrx.files.formats.packaged_models import target_path
from lbrx.merging import MergeOptions, PreparedMerge, perform_merge, prepare
from lbrx.merging.methods import METHODS, Method
from lbrx.merging.parameters import find_method
from lbrx.terminal.problems import report

_EXAMPLES = """examples:
  lbrx merge config.yml merged
  lbrx merge config.yml merged.gguf --quantize q4_k_m
  lbrx merge --method slerp --t 0.4 A B merged
  lbrx merge --method linear --weight 0.7 --weight 0.3 A B merged
  lbrx merge --method task_arithmetic --base BASE --weight 0.5 A B merged --dry-run
"""
_REPORT = "write merge-report.html and .json: norms, cosines, sign conflicts (default: yes)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.usage = "lbrx merge [options] CONFIG.yml OUT | --method M [options] MODEL ... OUT"
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="CONFIG.yml and OUT, or the models and OUT")
    add(
        "--quantize",
        metavar="TYPE",
        help="the type to write: f16, bf16 ..., for GGUF q4_k_m ..., for MLX mlx:4:64 ...",
    )
    add("--seed", type=int, default=0, help="of methods that draw random masks (0)")
    add("--dry-run", action="store_true", help="show what would happen, and write nothing")
    add("--report", action=argparse.BooleanOptionalAction, default=True, help=_REPORT)
    add_output_arguments(parser)
    add_engine_arguments(parser)
    _add_method_arguments(parser)


def _add_method_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that stand for a configuration: a method, and the parameters of all methods."""
    group = parser.add_argument_group("without CONFIG.yml")
    group.add_argument("--method", metavar="METHOD", help=f"one of {', '.join(METHODS)}")
    group.add_argument("--base", metavar="MODEL", help="the base model")
    group.add_argument("--dtype", help="the type of the result (default: the stored one)")
    group.add_argument("--tokenizer", metavar="SOURCE", help="union, base or a model")
    texts: dict[str, dict[str, list[str]]] = {}
    repeated: set[str] = set()
    for method in METHODS.values():
        for parameter in (*method.parameters, *method.own):
            texts.setdefault(parameter.name, {}).setdefault(parameter.text, []).append(method.name)
        repeated.update(parameter.name for parameter in method.own)
    for name, uses in sorted(texts.items()):
        text = "; ".join(f"{', '.join(methods)}: {use}" for use, methods in uses.items())
        more = " (once for all models, or once for each)" if name in repeated else ""
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"parameter_{name}",
            metavar="VALUE",
            action="append",
            help=f"{text}{more}".replace("%", "%%"),
        )


def run(options: argparse.Namespace) -> int:
    config, out = _configuration(options)
    wanted = MergeOptions(
        options.to, options.quantize, options.max_shard_size, options.seed, options.report
    )
    prepared = prepare(config, out, wanted)
    if options.method is not None and not options.force:
        _check_that_out_is_given(prepared)
    for note in (*prepared.merge.notes, *prepared.conversion.notes):
        report(note)
    spare_collector()
    if options.dry_run:
        if not options.force:
            check_not_replacing(prepared.conversion.output)
        check_space(prepared.conversion.output, options.resume)
        from lbrx.merging.estimate import describe

        print(describe(prepared))
        return 0
    return write_merge(prepared, options, "merging", chosen_engine(options))


def _check_that_out_is_given(prepared: PreparedMerge) -> None:
    """Raises LbrxError if the last path has a model: who forgot OUT must not be told to replace
    it."""
    if existing := replaced_files(prepared.conversion.output):
        raise LbrxError(
            f"{existing[0]} exists, and the last path is the one to write: give OUT after the "
            "models, or add --force to replace it"
        )


def write_merge(
    prepared: PreparedMerge,
    options: argparse.Namespace,
    doing: str,
    engine: PieceEngine | None = None,
) -> int:
    """Write a merge with progress bars, and return the exit status."""

    def write(progress: Progress, verifying: Progress | None) -> Result:
        return perform_merge(
            prepared,
            RunOptions(options.resume, options.force),
            device=options.device,
            progress=progress,
            verifying=verifying,
            engine=engine,
        )

    return carry_out(prepared.conversion, options, doing, write)


def _configuration(options: argparse.Namespace) -> tuple[Path | Mapping[str, Any], Path]:
    """The YAML file or the configuration that the options stand for, and the output."""
    *inputs, out = options.paths
    given = {
        name.removeprefix("parameter_"): values
        for name, values in vars(options).items()
        if name.startswith("parameter_") and values is not None
    }
    if options.method is None:
        return _yaml_file(options, inputs, given), target_path(out)
    if not inputs:
        raise LbrxError(f"{options.method} needs models: give their paths before {out}")
    method = find_method(options.method)
    shared, own = _parameters(method, given, len(inputs))
    base = options.base
    if base is None and method.base == "required" and method.models == (1, 1):
        base = inputs[0]  # slerp and its like: from the first model to the second
    models = [
        {"model": path, **({"parameters": values} if values else {})}
        for path, values in zip(inputs, own, strict=True)
    ]
    document = {
        "merge_method": method.name,
        "base_model": base,
        "models": models,
        "parameters": shared or None,
        "dtype": options.dtype,
        "tokenizer_source": options.tokenizer,
    }
    return {key: value for key, value in document.items() if value is not None}, target_path(out)


def _yaml_file(options: argparse.Namespace, inputs: list[str], given: Mapping[str, Any]) -> Path:
    only = ("base", "dtype", "tokenizer")
    unused = [*given, *(name for name in only if getattr(options, name) is not None)]
    if unused:
        option = unused[0].replace("_", "-")
        raise LbrxError(f"--{option} belongs to --method: write it into the YAML instead")
    if len(inputs) != 1:
        count = "one path is" if not inputs else f"{len(inputs) + 1} paths are"
        raise LbrxError(f"{count} given: give CONFIG.yml and OUT, or --method, models and OUT")
    if os.path.isdir(inputs[0]):
        raise LbrxError(f"{inputs[0]} is a folder: give CONFIG.yml, or add --method")
    return Path(inputs[0])


def _parameters(
    method: Method, given: Mapping[str, list[str]], models: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The parameters of the merge, and those of each model."""
    shared: dict[str, Any] = {}
    own: list[dict[str, Any]] = [{} for _ in range(models)]
    each = {parameter.name for parameter in method.own}
    for name, texts in given.items():
        values = [_number(text) for text in texts]
        if len(values) == 1:
            shared[name] = values[0]
        elif name in each and len(values) == models:
            for settings, value in zip(own, values, strict=True):
                settings[name] = value
        else:
            option = f"--{name.replace('_', '-')}"
            raise LbrxError(
                f"{option} is given {len(values)} times: give it once or {models} times"
            )
    return shared, own


def _number(text: str) -> Any:
    """true and false, a gradient like 0,0.5,1, or a number; the method checks it."""
    if "," in text:
        return [_number(part) for part in text.split(",")]
    return {"true": True, "false": False}.get(text.lower(), text)
