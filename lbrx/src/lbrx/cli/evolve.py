"""lbrx evolve: search the merge parameters that give the best model."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

from lbrx.cli import INTERRUPTED
from lbrx.errors import LbrxError
from lbrx.merging.config import dump
from lbrx.merging.evolve import Evaluation, EvolveConfig, evolve, load_evolve
from lbrx.terminal.problems import report

_EXAMPLE = """the YAML is that of a merge with open parameters and a section evolve:
  merge_method: slerp
  base_model: A
  models: [{model: A}, {model: B}]
  parameters: {t: {search: [0, 1]}}
  evolve: {perplexity: text.txt, evaluations: 40}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLE
    add = parser.add_argument
    add("config", metavar="CONFIG", help="the YAML of a merge with {search: [low, high]} in it")
    add("--out", type=Path, help="the YAML of the best merge (default: CONFIG.best.yml)")
    add("--evaluations", type=int, help="the number of candidates, instead of the YAML's")
    add("--resume", action="store_true", help="continue an interrupted search")
    add("--force", action="store_true", help="replace existing files")
    add("--device", choices=["cpu", "metal"], help="the device that computes (the default device)")
    add("--quiet", action="store_true", help="print the best configuration only")


def run(options: argparse.Namespace) -> int:
    source = Path(options.config)
    out = options.out or source.with_name(f"{source.stem}.best.yml")
    if out.exists() and not options.force and not options.resume:
        raise LbrxError(f"{out} exists already: give another name with --out, or --force")
    config = load_evolve(source)
    if options.evaluations is not None:
        if options.evaluations < 1:
            raise LbrxError(f"--evaluations {options.evaluations}: give 1 or more")
        config = replace(config, evaluations=options.evaluations)
    journal = out.with_name(f"{out.name}.journal")
    show = _Lines(config)
    try:
        best = evolve(
            config,
            journal,
            resume=options.resume,
            device=options.device,
            progress=(lambda one: None) if options.quiet else show,
        )
    except KeyboardInterrupt:
        report(f"interrupted: {journal} is kept: add --resume to continue")
        return INTERRUPTED
    text = dump(best.document)
    out.write_text(text, "utf-8")
    print(f"{out}: {shown_score(config, best.evaluation)}, the best of {best.evaluations}")
    print(text, end="")
    return 0


def shown_score(config: EvolveConfig, one: Evaluation) -> str:
    if one.score is None:
        return "not finite"
    if config.perplexity is not None:
        return f"perplexity {math.exp(-one.score):.4f}"
    return f"score {one.score:.6g}"


class _Lines:
    """A line on standard error for each evaluation."""

    def __init__(self, config: EvolveConfig) -> None:
        self._config = config
        self._best = -math.inf

    def __call__(self, one: Evaluation) -> None:
        config = self._config
        mark = ""
        if one.score is not None and one.score > self._best:
            self._best, mark = one.score, " *"
        values = ", ".join(
            f"{gene.name} {gene.value(share):.4g}"
            for gene, share in zip(config.space.genes, one.shares, strict=True)
        )
        again = " (from the journal)" if one.reused else ""
        number = f"{one.number + 1}/{config.evaluations}"
        print(f"{number} {shown_score(config, one)}{mark}: {values}{again}", file=sys.stderr)
