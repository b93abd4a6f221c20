"""What a training run is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lbrx.errors import LbrxError
from lbrx.optim import Adafactor, Adam, AdamW, Lion, Muon, Optimizer
from lbrx.optim.schedules import Schedule, cosine_decay, join_schedules, linear_schedule
from lbrx.train.objectives import OBJECTIVES, PREFERENCES

OPTIMIZERS = ("adamw", "adam", "lion", "adafactor", "muon")
SCHEDULES = ("constant", "linear", "cosine")
METHODS = ("lora", "dora", "full")


@dataclass(frozen=True)
class TrainOptions:
    """The options of `lbrx train`. Steps are updates of the weights."""

    method: str = "lora"
    """What is trained: an adapter, with its magnitudes (dora), or the weights themselves (full)."""
    objective: str = "sft"
    """What the data is: examples (sft), or preferences (dpo, orpo)."""
    beta: float = 0.1
    """How strongly preferences count beside the model before (dpo) or the answers (orpo)."""
    steps: int = 200
    batch: int = 4
    accumulate: int = 1
    """Batches whose gradients are added up for one step."""
    length: int = 1024
    """Tokens of an example; longer ones are cut."""
    rank: int = 8
    scale: float = 20.0
    """What the product of the adapter's matrices is multiplied by."""
    layers: int = 0
    """The last layers, which are trained; 0 for all."""
    targets: tuple[str, ...] = ()
    """The last names of the linear maps that get an adapter; all of the layers by default."""
    optimizer: str = "adamw"
    rate: float = 1e-4
    schedule: str = "cosine"
    warm_up: int = 0
    clip: float = 1.0
    """The largest norm of a step's gradient; 0 for any."""
    mask_prompt: bool = False
    """Whether the loss leaves out the tokens of prompts."""
    eval_every: int = 100
    save_every: int = 100
    patience: int = 0
    """Evaluations without a lower loss after which training stops; 0 for never."""
    checkpoint_layers: bool = False
    """Whether layers are computed again for their gradient, which takes less memory."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "rank", "eval_every", "save_every"):
            if getattr(self, name) < 1:
                raise LbrxError(f"{name}={getattr(self, name)}: give 1 or more")
        if self.length < 2:
            raise LbrxError(f"length={self.length}: give 2 tokens or more")
        for name, known in (
            ("method", METHODS),
            ("objective", tuple(OBJECTIVES)),
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
        ):
            if getattr(self, name) not in known:
                raise LbrxError(f"{name}={getattr(self, name)!r}: give one of {', '.join(known)}")

    @property
    def has_pairs(self) -> bool:
        """Whether the data is pairs of answers."""
        return self.objective in PREFERENCES

    @property
    def deciding(self) -> dict[str, Any]:
        """What decides the bits of a step: a run can be resumed with the same of these only."""
        own = asdict(self)
        for name in ("steps", "eval_every", "save_every", "patience"):
            if name != "steps" or self.schedule == "constant":
                del own[name]
        return {**own, "targets": list(self.targets)}

    def rates(self) -> Schedule | float:
        """The learning rate of each step."""
        left = max(self.steps - self.warm_up, 1)
        if self.schedule == "constant" and not self.warm_up:
            return self.rate
        after = {
            "constant": linear_schedule(self.rate, self.rate, 1),
            "linear": linear_schedule(self.rate, 0.0, left),
            "cosine": cosine_decay(self.rate, left),
        }[self.schedule]
        if not self.warm_up:
            return after
        # The first step already moves: from a share of the rate to all of it.
        rising = linear_schedule(self.rate / self.warm_up, self.rate, max(self.warm_up - 1, 1))
        return join_schedules([rising, after], [self.warm_up])

    def make_optimizer(self) -> Optimizer:
        """The optimizer with its schedule."""
        rate = self.rates()
        match self.optimizer:
            case "adamw":
                return AdamW(rate, weight_decay=0.01, bias_correction=True)
            case "adam":
                return Adam(rate, bias_correction=True)
            case "lion":
                return Lion(rate)
            case "muon":
                return Muon(rate)
        return Adafactor(rate, relative_step=False, scale_parameter=False)
