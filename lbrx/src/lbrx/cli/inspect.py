"""lbrx inspect: a summary of a model, and the Apple chips that it fits."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lbrx.convert.contents import Contents, TokenizerFacts, contents
from lbrx.errors import LbrxError, printable
from lbrx.files import formats
from lbrx.files.formats.packaged_models import model_path
from lbrx.files.stored.stored_model import StoredModel
from lbrx.models import architectures
from lbrx.models.config import read_config
from lbrx.models.fitting import WORKING_SET, Fit, fits, needs
from lbrx.models.memory_plan import MemoryPlan
from lbrx.terminal.arguments import MODEL

CONTEXT = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help=f"the model: {MODEL}")
    parser.add_argument(
        "--context", type=int, help=f"the context in tokens for the memory plan ({CONTEXT:,})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with sizes in bytes")


def run(options: argparse.Namespace) -> int:
    if options.context is not None and options.context < 1:
        raise LbrxError(f"--context {options.context}: give a positive number of tokens")
    files = formats.read(model_path(options.model))
    found = contents(files)
    need = _need(files, found, options.context)
    problem = _why_not_run(files)
    if options.json:
        print(json.dumps(_as_json(found, need, problem), indent=2))
        return 0
    lines = [*_overview(found), "", *_tensors(found), *_places(need, problem)]
    print("\n".join(printable(line, kept="") for line in lines))
    return 0


def _why_not_run(files: formats.ModelFiles) -> str | None:
    """Why lbrx does not run a model; None if it does."""
    try:
        architectures.network_of(StoredModel(files, files.tensors))
    except LbrxError as problem:
        return str(problem)
    return None


def _need(files: formats.ModelFiles, found: Contents, context: int | None) -> MemoryPlan | None:
    """The memory plan; None if the files lack the settings of a language model."""
    try:
        config = read_config(StoredModel(files, files.tensors))
    except LbrxError:
        return None
    return needs(config, found.nbytes, context or min(CONTEXT, config.context))


def _as_json(found: Contents, need: MemoryPlan | None, problem: str | None) -> dict[str, Any]:
    result = {**asdict(found), "bits_per_parameter": round(found.bits_per_parameter, 3)}
    if need is None:
        return {**result, "modelled": None}
    memory = {"weights": need.weights, "cache": need.cache, "scratch": need.scratch}
    chips = [asdict(fit) for fit in fits(need)]
    if problem is not None:
        chips = [{k: v for k, v in chip.items() if k != "tokens_per_second"} for chip in chips]
    modelled = {"context": need.tokens, "memory": memory, "total": need.total, "chips": chips}
    return {**result, "modelled": {**modelled, "not_run_because": problem}}


def _overview(found: Contents) -> list[str]:
    rows = [
        ("model", found.path),
        ("format", found.format + (f", {found.files} files" if found.files > 1 else "")),
        ("architecture", found.architecture or "not named"),
        *((title, f"{value:,}") for title, value in found.settings.items()),
        ("parameters", f"{found.parameters:,}{_short(found.parameters)}{_active(found)}"),
        ("size", f"{_size(found.nbytes)}, {found.bits_per_parameter:.2f} bits a parameter"),
        ("quantization", found.quantization or "not named"),
        ("tokenizer", _described(found.tokenizer)),
    ]
    width = max(len(title) for title, _ in rows)
    return [f"{title:<{width}}  {value}" for title, value in rows]


def _active(found: Contents) -> str:
    """The parameters that a token passes through, where a token uses some of the experts."""
    count = found.active_parameters
    return "" if count == found.parameters else f", {count:,} active{_short(count)}"


def _described(tokenizer: TokenizerFacts | None) -> str:
    if tokenizer is None:
        return "none"
    tokens = "" if tokenizer.tokens is None else f", {tokenizer.tokens:,} tokens"
    return f"{tokenizer.kind}{tokens}, {'a' if tokenizer.chat_template else 'no'} chat template"


def _tensors(found: Contents) -> list[str]:
    lines = [f"{'type':<12} {'tensors':>8} {'values':>16} {'size':>11} {'bits a value':>13}"]
    lines += [
        f"{kind.encoding:<12} {kind.tensors:>8,} {kind.values:>16,} {_size(kind.nbytes):>11} "
        f"{kind.bits_per_value:>13.2f}"
        for kind in found.kinds
    ]
    if found.largest:
        largest = found.largest
        lines.append(f"largest: {largest.name} {list(largest.shape)}, {_size(largest.nbytes)}")
    return lines


def _places(need: MemoryPlan | None, problem: str | None) -> list[str]:
    if need is None:
        return []
    parts = f"weights {_size(need.weights)} + cache {_size(need.cache)} + scratch "
    modelled = f"Modelled, not measured: a GPU may use {WORKING_SET:.0%} of the memory"
    speed = ", and a token takes as long as reading weights and cache" if problem is None else ""
    title = f" {'tokens/s at most':>16}" if problem is None else ""
    return [
        "",
        f"With {need.tokens:,} tokens: {parts}{_size(need.scratch)} = {_size(need.total)}.",
        *([] if problem is None else [f"lbrx does not run this model: {problem}"]),
        f"{modelled}{speed}.",
        f"{'chip':<10} {'fits with memory of':<28}{title}".rstrip(),
        *(_place(fit, with_speed=problem is None) for fit in fits(need)),
    ]


def _place(fit: Fit, with_speed: bool) -> str:
    sizes = _sizes(fit.enough) if fit.enough else "no size"
    speed = f"{fit.tokens_per_second:,.0f}" if fit.enough else "-"
    return f"{fit.chip:<10} {sizes:<28} {speed if with_speed else '':>16}".rstrip()


def _sizes(gibibytes: Sequence[int]) -> str:
    return ", ".join(map(str, gibibytes)) + " GB"


def _short(count: int) -> str:
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= unit:
            return f" ({count / unit:.3g}{name})"
    return ""


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
