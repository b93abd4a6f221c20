"""A search for the merge parameters that give the best model.

Candidates are merged and evaluated in memory; nothing of them is written. A journal has the score
of each, and a resumed search asks its strategy for the same candidates again.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lbrx import stored_json
from lbrx.errors import FormatError, LbrxError
from lbrx.extras import install
from lbrx.merging import config as configuration
from lbrx.merging.config_fields import Fields, wrong
from lbrx.merging.run import merge
from lbrx.merging.search_space import SearchSpace, read_space
from lbrx.models.generation import NotFiniteError
from lbrx.models.language_model import LanguageModel
from lbrx.models.loading import language_model

Score = Callable[[LanguageModel], float]
"""A model's score: the larger, the better."""
Shares = tuple[float, ...]
_STRATEGIES = ("cma", "random")
_MAX_TEXT = 64 << 20  # bytes


@dataclass(frozen=True)
class EvolveConfig:
    """What is searched, and how candidates are judged."""

    space: SearchSpace
    perplexity: Path | None = None
    """A text that the best model predicts best."""
    score: str | None = None
    """A function of a LanguageModel, `module:function` or `file.py:function`; larger is better."""
    strategy: str = "cma"
    evaluations: int = 100
    population: int | None = None
    """Candidates between two updates of CMA-ES; by default its own choice."""
    sigma: float = 0.25
    """The first standard deviation of CMA-ES, as a share of the ranges."""
    context: int | None = None
    """The length of the models' context in tokens."""
    seed: int = 0


@dataclass(frozen=True)
class Evaluation:
    """A candidate: its parameters as shares of their ranges, and its score, None if the model does
    not work."""

    number: int
    shares: Shares
    score: float | None
    reused: bool = False
    """Whether an earlier run evaluated it."""


@dataclass(frozen=True)
class Best:
    """The outcome of a search."""

    evaluation: Evaluation
    document: Mapping[str, Any]
    """The configuration of the best model."""
    evaluations: int


def load_evolve(path: str | Path) -> EvolveConfig:
    """Read a merge's YAML with open parameters and a section `evolve`."""
    documents, _ = configuration.load(path)
    if len(documents) != 1:
        raise FormatError(f"{path} has {len(documents)} documents: give the YAML of one merge")
    return parse_evolve(documents[0], Path(path).parent)


def parse_evolve(document: Mapping[str, Any], folder: Path = Path()) -> EvolveConfig:
    """One document. Relative files of the section `evolve` are relative to `folder`."""
    rest = dict(document)
    if "evolve" not in rest:
        raise FormatError("evolve is missing: add evolve: {perplexity: text.txt} or {score: ...}")
    fields = Fields(rest.pop("evolve"), "evolve")
    text, score = fields.text("perplexity"), fields.text("score")
    if (text is None) == (score is None):
        raise FormatError("evolve has perplexity and score, or neither: give one of them")
    strategy = fields.text("strategy") or "cma"
    if strategy not in _STRATEGIES:
        raise wrong("evolve.strategy", strategy, f"one of {', '.join(_STRATEGIES)}")
    sigma = fields.take("sigma")
    if sigma is not None and (not isinstance(sigma, int | float) or not 0 < sigma <= 1):
        raise wrong("evolve.sigma", sigma, "a number above 0, at most 1")
    numbers = {
        key: _count(fields, key, usual)
        for key, usual in (("evaluations", 100), ("population", None), ("context", None))
    }
    seed = _count(fields, "seed", 0, least=0)
    fields.finish()
    assert numbers["evaluations"] is not None
    assert seed is not None
    return EvolveConfig(
        read_space(rest),
        None if text is None else folder / text,
        None if score is None else _from_folder(score, folder),
        strategy,
        numbers["evaluations"],
        numbers["population"],
        0.25 if sigma is None else float(sigma),
        numbers["context"],
        seed,
    )


def _count(fields: Fields, key: str, usual: int | None, least: int = 1) -> int | None:
    value = fields.take(key)
    if value is None:
        return usual
    if type(value) is not int or value < least:
        raise wrong(fields.place(key), value, f"a whole number, {least} or more")
    return value


def _from_folder(score: str, folder: Path) -> str:
    file, colon, name = score.rpartition(":")
    return f"{folder / file}:{name}" if colon and file.endswith(".py") else score


def score_function(config: EvolveConfig) -> Score:
    """What candidates are judged by. Raises FormatError for a text or function that is missing."""
    if config.score is not None:
        return _loaded(config.score)
    assert config.perplexity is not None
    text = _text(config.perplexity)
    return lambda model: -math.log(model.perplexity(text))


def _text(path: Path) -> str:
    try:
        if os.stat(path).st_size > _MAX_TEXT:
            raise FormatError(f"{path} is longer than {_MAX_TEXT >> 20} MiB: give a part of it")
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not UTF-8 text: convert it first") from None
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise FormatError(f"{path}: {reason}: give a text for evolve.perplexity") from None


def _loaded(place: str) -> Score:
    """A function from `module:function` or `file.py:function`."""
    module_name, colon, name = place.rpartition(":")
    if not colon:
        raise FormatError(f"evolve.score {place!r:.80}: give module:function or file.py:function")
    if module_name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(module_name).stem, module_name)
        if spec is None or spec.loader is None or not Path(module_name).is_file():
            raise FormatError(f"evolve.score: {module_name} does not exist: give a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as problem:
            raise FormatError(f"evolve.score: {problem}: give module:function") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise FormatError(f"evolve.score: {module_name} has no function {name}")
    score: Score = function
    return score


class Strategy(Protocol):
    """Proposes candidates. The same scores give the same candidates again."""

    def ask(self) -> Sequence[Shares]:
        """The next candidates; none when the search has converged."""

    def tell(self, scores: Sequence[float | None]) -> None:
        """The scores of the last candidates."""


class RandomStrategy:
    """Uniform in all ranges; the first candidate is the start."""

    def __init__(self, config: EvolveConfig) -> None:
        self._rng = np.random.default_rng(config.seed)
        self._first = tuple(gene.start_share for gene in config.space.genes)
        self._asked = 0

    def ask(self) -> Sequence[Shares]:
        self._asked += 1
        if self._asked == 1:
            return [self._first]
        return [tuple(self._rng.random(len(self._first)).tolist())]

    def tell(self, scores: Sequence[float | None]) -> None:
        pass


class CmaStrategy:
    """CMA-ES of the package cma, within the ranges."""

    def __init__(self, config: EvolveConfig) -> None:
        start = [gene.start_share for gene in config.space.genes]
        self._genes = len(start)
        if self._genes == 1:
            start.append(0.5)  # without effect: cma fails in one dimension
        # With a seed, cma would use numpy's global generator, which others use too.
        rng = np.random.default_rng(config.seed)
        options: dict[str, Any] = {"bounds": [0, 1], "seed": math.nan, "verbose": -9}
        options["randn"] = lambda *shape: rng.standard_normal(shape)
        if config.population is not None:
            options["popsize"] = max(config.population, 2)
        self._search = _cma().CMAEvolutionStrategy(start, config.sigma, options)
        self._asked: list[Any] = []

    def ask(self) -> Sequence[Shares]:
        if self._asked and self._search.stop():
            return []
        self._asked = self._search.ask()
        return [tuple(np.clip(one, 0, 1)[: self._genes].tolist()) for one in self._asked]

    def tell(self, scores: Sequence[float | None]) -> None:
        self._search.tell(self._asked, [math.inf if s is None else -s for s in scores])


def _cma() -> Any:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about plots, for which it would use matplotlib
            import cma  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise LbrxError(
            f"evolve.strategy cma needs the package cma: {install('evolve')}, or write "
            "strategy: random"
        ) from None
    return cma


def evolve(
    config: EvolveConfig,
    journal: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    progress: Callable[[Evaluation], None] = lambda evaluation: None,
) -> Best:
    """Search until the evaluations are used up or the strategy has converged.

    `journal` is written after every evaluation; with `resume` its evaluations are not made again.
    Raises LbrxError if no candidate works, and FormatError if the journal is of another search.
    """
    judge = score_function(config)
    strategy = RandomStrategy(config) if config.strategy == "random" else CmaStrategy(config)
    notes = _Journal(journal, config, resume)
    made: list[Evaluation] = []
    while len(made) < config.evaluations and (asked := strategy.ask()):
        group: list[Evaluation] = []
        for shares in asked[: config.evaluations - len(made)]:
            number = len(made) + len(group)
            one = notes.known(number, shares) or _evaluated(config, judge, number, shares, device)
            if not one.reused:
                notes.add(one)
            group.append(one)
            progress(one)
        made += group
        if len(group) < len(asked):
            break
        strategy.tell([one.score for one in group])
    working = [one for one in made if one.score is not None]
    if not working:
        raise LbrxError(f"none of {len(made)} candidates gives a finite score: change the ranges")
    best = max(working, key=lambda one: -math.inf if one.score is None else one.score)
    return Best(best, config.space.filled(best.shares), len(made))


def _evaluated(
    config: EvolveConfig, judge: Score, number: int, shares: Shares, device: str | None
) -> Evaluation:
    """Merge a candidate in memory and judge it."""
    merged = merge(config.space.filled(shares), seed=config.seed)
    model = language_model(merged, context=config.context, device=device)
    try:
        score = float(judge(model))
    except NotFiniteError:
        score = math.nan
    return Evaluation(number, shares, score if math.isfinite(score) else None)


class _Journal:
    """The evaluations of a search, a JSON object in each line, after one that names the search."""

    def __init__(self, path: Path, config: EvolveConfig, resume: bool) -> None:
        self._path = path
        self._known: dict[int, tuple[Shares, float | None]] = {}
        head = {"search": json.loads(json.dumps(_identity(config)))}
        lines = list(_lines(path)) if resume and path.exists() else []
        if not lines:
            path.write_text(json.dumps(head) + "\n", "utf-8")
            return
        if lines[0] != head:
            raise FormatError(f"{path} belongs to another search: start again without --resume")
        for line in lines[1:]:
            match line:
                case {"number": int(number), "shares": list(shares), "score": score}:
                    self._known[number] = tuple(shares), score

    def known(self, number: int, shares: Shares) -> Evaluation | None:
        """The journal's evaluation of a candidate. After one that differs, none are used."""
        found = self._known.get(number)
        if found is None or found[0] != shares:
            self._known = {n: one for n, one in self._known.items() if n < number}
            return None
        return Evaluation(number, shares, found[1], reused=True)

    def add(self, one: Evaluation) -> None:
        entry = {"number": one.number, "shares": one.shares, "score": one.score}
        # An earlier line may lack its end.
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(entry) + "\n")


def _identity(config: EvolveConfig) -> dict[str, Any]:
    """What decides the candidates and their scores, except the number of evaluations."""
    return {
        "document": config.space.document,
        "judged by": str(config.score or config.perplexity),
        "strategy": [config.strategy, config.population, config.sigma, config.seed],
        "context": config.context,
    }


def _lines(path: Path) -> Iterator[Any]:
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            if line:
                yield stored_json.parsed(line)
        except ValueError:
            print(f"lbrx: {path}: a damaged line is left out", file=sys.stderr)
