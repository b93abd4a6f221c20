"""Runs a training: steps, evaluations, checkpoints, and what is written at the end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.data.stream import Batches
from lbrx.errors import LbrxError
from lbrx.files.formats.packaged_models import model_path
from lbrx.files.stored.stored_model import StoredModel, open_model
from lbrx.models import architectures
from lbrx.models.config import read_config
from lbrx.models.engine import Engine
from lbrx.models.kv_cache import find_cache_type
from lbrx.models.language_model import LanguageModel
from lbrx.models.memory_plan import plan_memory
from lbrx.models.tokenizer import read_tokenizer
from lbrx.models.weights import Weights, bytes_in_memory
from lbrx.nn import value_and_grad
from lbrx.optim import clip_grad_norm
from lbrx.process import memory_limit, peak_memory
from lbrx.tensors import random
from lbrx.tensors.compilation import compile
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.tensors.evaluation import eval as computed
from lbrx.tensors.placement import default_device
from lbrx.train import checkpoints
from lbrx.train.change import Change
from lbrx.train.checkpoints import Progress
from lbrx.train.examples import (
    AnyExample,
    Batch,
    Example,
    Pair,
    Reader,
    batch_of,
    batches_of,
    files_of,
    rows_of,
)
from lbrx.train.loss import first_not_finite, token_losses
from lbrx.train.low_rank import LowRank, chosen_maps
from lbrx.train.objectives import OBJECTIVES
from lbrx.train.options import TrainOptions
from lbrx.train.report import REPORT, Log, page
from lbrx.train.whole_weights import FloatWeights, WholeWeights
from lbrx.trees import tree_map

SAMPLES, SAMPLE_TOKENS = 2, 24

Told = Callable[[dict[str, Any]], None]
"""A function that is told each line of the log, as it is written."""


@dataclass
class Trained:
    """The result of a run."""

    step: int
    loss: float | None
    """Of the last step."""
    valid_loss: float | None
    stopped: str
    """Why it ended: "steps", "early" or "interrupted"."""
    report: Path
    samples: Sequence[tuple[str, str, str]] = ()
    """Prompts, with what the model said before and after."""


def train(
    model: str | StoredModel,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: TrainOptions | None = None,
    *,
    resume: bool = False,
    device: str | None = None,
    tell: Told | None = None,
) -> Trained:
    """Fine-tune a language model on examples or preferences, and write the adapter and a report
    into a folder. LoRA and DoRA are over its weights as they are stored.

    `model` is what `language_model` opens, in any format, quantized or not; `data` is a folder with
    train.jsonl and perhaps valid.jsonl, or one JSONL file. With resume=True a run goes on from its
    last checkpoint in the folder, with the same bits as one that was not interrupted.

    A damaged line of the data raises FormatError with its number, a loss that is not a number
    LbrxError with its step.
    """
    run = Run(model, Path(data), Path(out), options or TrainOptions(), device)
    return run.finished(resume, tell or (lambda line: None))


class Run:
    """One training, prepared: the model is open and the data read."""

    def __init__(
        self,
        model: str | StoredModel,
        data: Path,
        out: Path,
        options: TrainOptions,
        device: str | None = None,
    ) -> None:
        self.options = options
        self.out = out
        self.name = str(model.path) if isinstance(model, StoredModel) else model
        train_file, valid_file = files_of(data)
        whole = options.method == "full"
        self.model = _opened(model, options.length, device or default_device(), whole=whole)
        tokenizer = self.model.tokenizer
        end = tokenizer.token_id(tokenizer.settings.get("eos_token"))
        reader = Reader(
            tokenizer, end, options.length, options.mask_prompt, pairs=options.has_pairs
        )
        self.examples = reader.file(train_file)
        self.valid = reader.file(valid_file) if valid_file is not None else []
        self.network = self.model.engine.network
        random.seed(options.seed)
        self.adapter = self._make_adapter()
        self.optimizer = options.make_optimizer()
        self._log: Log | None = None
        self._make_steps()

    def _make_adapter(self) -> Change:
        options = self.options
        if options.method == "full":
            return WholeWeights(self.network, options.layers, options.targets)
        maps = chosen_maps(self.network, options.layers, options.targets)
        return LowRank(maps, options.rank, options.scale, directed=options.method == "dora")

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint must agree in."""
        return {
            "model": self.name,
            "examples": len(self.examples),
            "options": self.options.deciding,
        }

    @property
    def memory(self) -> dict[str, int]:
        """Bytes: of the weights, of the adapter with its gradient and optimizer, and an estimate of
        what is kept of a batch for the gradient."""
        config, options = self.network.config, self.options
        rows = rows_of(self.examples)
        tokens = options.batch * min(options.length, max(len(row.tokens) for row in rows))
        tokens *= len(rows) // len(self.examples)
        # Of each layer about ten values a token and hidden feature, and three of the inner ones.
        kept = tokens * (10 * config.hidden + 3 * config.intermediate) * 4
        layers = 1 if options.checkpoint_layers else len(self.network.layers)
        inputs = tokens * config.hidden * 8 * len(self.network.layers)
        return {
            "weights": self.model.memory.weights,
            "what is trained, gradients and optimizer": self.adapter.count * 4 * 4,
            "activations": kept * layers + (inputs if options.checkpoint_layers else 0),
        }

    def _make_steps(self) -> None:
        """The functions of a step: on metal their calls are replays of recorded commands."""
        adapter, optimizer, options = self.adapter, self.optimizer, self.options

        objective = OBJECTIVES[options.objective]

        def losses(tokens: Tensor, weights: Tensor) -> Tensor:
            return token_losses(
                self.network, tokens, weights, checkpoint_layers=options.checkpoint_layers
            )

        def loss(tokens: Tensor, weights: Tensor, before: Tensor | None) -> Tensor:
            return objective(losses(tokens, weights), weights, before, options.beta)

        def scores(tokens: Tensor, weights: Tensor) -> Tensor:
            return -losses(tokens, weights).sum(axis=1)

        def update(gradients: Any, share: Any) -> Tensor:
            own = tree_map(lambda g: g * share, gradients)
            own, norm = clip_grad_norm(own, options.clip or math.inf)
            optimizer.update(adapter, own)
            return norm

        gradients = value_and_grad(adapter, loss)
        self._gradients: Callable[..., Any] = gradients
        self._update: Callable[..., Any] = update
        self._loss: Callable[..., Any] = loss
        self._scores: Callable[..., Any] = scores
        optimizer.init(adapter.trainable_parameters())
        if self.network.device == "metal":
            state = [adapter, optimizer.state]
            self._gradients = compile(gradients, inputs=[adapter])
            self._update = compile(update, inputs=state, outputs=state)
            self._loss = compile(loss, inputs=[adapter])
            self._scores = compile(scores, inputs=[adapter])

    # ---- the run ----

    def finished(self, resume: bool, tell: Told) -> Trained:
        """Train to the end and write everything."""
        known = rows_of((self.valid or self.examples)[:SAMPLES])[:SAMPLES]
        prompts = [self._prompt_of(each) for each in known]
        # What is trained has its first values, which change nothing.
        before = [self._said(prompt) for prompt in prompts]
        if self.options.objective == "dpo":
            self.examples, self.valid = map(self._with_scores, (self.examples, self.valid))
        progress = self._begun(resume)
        self._log = Log(self.out, progress.step)
        stream = batches_of(self.examples, self.options.batch, self.options.seed)
        batches = stream.iterate(start=progress.place)
        stopped = "steps"
        try:
            progress, stopped = self._steps(progress, batches, tell)
        finally:
            self._log.close()
        self.adapter.save(self.out, self.name)
        after = [self._said(prompt) for prompt in prompts]
        shown = [
            (self.model.tokenizer.decode(prompt), old, new)
            for prompt, old, new in zip(prompts, before, after, strict=True)
        ]
        return self._reported(progress, stopped, shown)

    def _with_scores(self, examples: list[AnyExample]) -> list[AnyExample]:
        """Pairs with the logarithms of their probabilities, before anything is learned."""
        found: list[AnyExample] = []
        for pair in examples:
            assert isinstance(pair, Pair)
            tokens, weights, _ = self._placed(batch_of([pair]))
            chosen, rejected = self._scores(tokens, weights).tolist()
            found.append(replace(pair, before=(chosen, rejected)))
        return found

    def _begun(self, resume: bool) -> Progress:
        """The progress to go on from."""
        known = checkpoints.found(self.out)
        if not known:
            return Progress()
        if not resume:
            raise LbrxError(
                f"{self.out} has {known[-1].name} of an earlier run: give --resume to go on with "
                "it, or another --out"
            )
        progress = checkpoints.restore(known[-1], self.adapter, self.optimizer, self.facts)
        place = self.network.device
        self.optimizer.state = tree_map(lambda x: x.to_device(place), self.optimizer.state)
        return progress

    def _steps(self, progress: Progress, batches: Batches, tell: Told) -> tuple[Progress, str]:
        options = self.options
        try:
            while progress.step < options.steps:
                progress, line = self._step(progress, batches)
                self._noted(line, tell)
                last = progress.step == options.steps
                if self.valid and (progress.step % options.eval_every == 0 or last):
                    progress = self._evaluated(progress, tell)
                if progress.step % options.save_every == 0 or last:
                    self._save(progress)
                if options.patience and progress.since_best >= options.patience:
                    self._save(progress)
                    return progress, "early"
        except KeyboardInterrupt:
            if progress.step:
                self._save(progress)
            return progress, "interrupted"
        return progress, "steps"

    def _noted(self, line: dict[str, Any], tell: Told) -> None:
        assert self._log is not None
        self._log.add(line)
        tell(line)

    def _save(self, progress: Progress) -> None:
        checkpoints.save(self.out, progress, self.adapter, self.optimizer, self.facts)

    def _step(self, progress: Progress, batches: Batches) -> tuple[Progress, dict[str, Any]]:
        """One update of the weights, from as many batches as are accumulated."""
        began = time.perf_counter()
        total: Any = None
        losses: list[Tensor] = []
        count = targets = 0.0
        for _ in range(self.options.accumulate):
            batch: Batch = next(batches)
            placed = self._placed(batch)
            value, gradients = self._gradients(*placed)
            self._check_finite(progress.step + 1, value, placed[0])
            total = gradients if total is None else tree_map(_sum, total, gradients)
            losses.append(value)
            count += batch.count
            targets += batch.targets
        norm = self._update(total, 1 / count)
        computed(self.adapter, self.optimizer.state)
        loss = sum(value.item() for value in losses) / count
        step = progress.step + 1
        if not math.isfinite(norm.item()):
            raise LbrxError(
                f"step {step}: the loss is {loss} and the norm of its gradient {norm.item()}: "
                "lower the learning rate; checkpoints of earlier steps are kept"
            )
        seconds = time.perf_counter() - began
        place = batches.place
        tokens = progress.tokens + int(targets)
        line = {
            "step": step,
            "loss": loss,
            "norm": norm.item(),
            "rate": float(self.optimizer.learning_rate),
            "tokens": tokens,
            "tokens_per_second": targets / seconds,
            "memory": peak_memory(),
        }
        made = replace(progress, step=step, epoch=place.epoch, batch=place.batch, tokens=tokens)
        return made, line

    def _check_finite(self, step: int, value: Tensor, tokens: Tensor) -> None:
        """Raise LbrxError for a loss that is not a number, before the weights are changed by it."""
        if not math.isfinite(value.item()):
            raise LbrxError(
                f"step {step}: the loss is {value.item()}, from "
                f"{first_not_finite(self.network, tokens)} on: lower the learning rate; "
                "checkpoints of earlier steps are kept"
            )

    def _placed(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        device = self.network.device
        before = None if batch.before is None else tensor(batch.before, device=device)
        return tensor(batch.tokens, device=device), tensor(batch.weights, device=device), before

    def _evaluated(self, progress: Progress, tell: Told) -> Progress:
        """The progress after an evaluation on the validation data."""
        total = count = 0.0
        for batch in batches_of(self.valid, self.options.batch, None):
            total += self._loss(*self._placed(batch)).item()
            count += batch.count
        loss = total / count
        self._noted({"step": progress.step, "valid_loss": loss}, tell)
        if progress.best is None or loss < progress.best:
            return replace(progress, best=loss, since_best=0)
        return replace(progress, since_best=progress.since_best + 1)

    # ---- samples and the report ----

    def _prompt_of(self, example: Example) -> list[int]:
        """Where a sample begins: the prompt of an example, or its first tokens."""
        tokens = example.tokens
        return list(tokens[: example.prompt or max(len(tokens) // 2, 1)])

    def _said(self, prompt: Sequence[int]) -> str:
        """What the model says after a prompt."""
        network, memory = self.network, self.model.memory
        kind = find_cache_type("float32", network.config.head_size)
        # A new engine: recorded steps keep the weights that they began with.
        model = LanguageModel(
            self.model.config, self.model.tokenizer, Engine(network, kind, memory)
        )
        return model.generate(list(prompt), max_tokens=SAMPLE_TOKENS).text

    def _reported(
        self, progress: Progress, stopped: str, samples: list[tuple[str, str, str]]
    ) -> Trained:
        assert self._log is not None
        lines = self._log.lines
        steps = [line for line in lines if "loss" in line]
        checks = [line for line in lines if "valid_loss" in line]
        loss = steps[-1]["loss"] if steps else None
        valid_loss = checks[-1]["valid_loss"] if checks else None
        known = {
            "steps": f"{progress.step:,}",
            "tokens": f"{progress.tokens:,}",
            "loss at the end": None if loss is None else f"{loss:.4f}",
            "validation loss": None if valid_loss is None else f"{valid_loss:.4f}",
            "trained values": f"{self.adapter.count:,}",
            "memory at most": f"{peak_memory() / 1e9:.2f} GB",
        }
        report = self.out / REPORT
        title = f"Training of {self.name}"
        report.write_text(page(title, known, lines, samples, asdict(self.options)), "utf-8")
        return Trained(progress.step, loss, valid_loss, stopped, report, samples)


def _sum(x: Any, y: Any) -> Any:
    return x + y if isinstance(x, Tensor) else x


def _opened(
    given: str | StoredModel, length: int, device: str, *, whole: bool = False
) -> LanguageModel:
    """A model whose values are float32, for gradients, with `whole` those of its weights too."""
    source = given if isinstance(given, StoredModel) else open_model(model_path(given))
    network = architectures.network_of(source)
    config = network.adapted(read_config(source))
    if length > config.context:
        raise LbrxError(f"length={length}: the model was trained for {config.context} tokens")
    tokens = min(max(2 * length, 256), config.context)
    config = replace(config, rope=config.rope.for_context(tokens))
    kind = find_cache_type("float32", config.head_size)
    stored = bytes_in_memory(source.files)
    if whole:
        stored = sum(each.size * dt.float32.itemsize for each in source.files.tensors.values())
    memory = plan_memory(config, stored, tokens, kind.itemsize, memory_limit())
    memory.check()
    weights = (FloatWeights if whole else Weights)(source, config, device, dt.float32)
    engine = Engine(network(config, weights), kind, memory)
    return LanguageModel(config, read_tokenizer(source), engine)
