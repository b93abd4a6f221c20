"""Modelled time and energy of a language model on each unit of a chip, and which reads a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from lbrx.metal.device import chip_of_device, find_chip
from lbrx.metal.work_policy import work_policy
from lbrx.models.config import ModelConfig
from lbrx.models.export.exporter import ExportSettings
from lbrx.models.memory_plan import CHUNK
from lbrx.neural_engine.unit_figures import Unit, UnitFigures, unit_figures
from lbrx.neural_engine.weight_forms import WeightForm

BITS = dict.fromkeys(WeightForm, 16) | {
    form: int(form[3:])
    for form in (
        *(WeightForm.INT8, WeightForm.INT4),
        *(WeightForm.LUT8, WeightForm.LUT6, WeightForm.LUT4),
    )
}


@dataclass(frozen=True)
class Workload:
    """The sizes that times are computed from."""

    layer_values: int
    """Weights of the layers: what a prompt's token is multiplied with."""
    head_values: int
    """Weights of the output matrix."""
    file_bytes: int
    """Bytes of all weights as they are stored, which the CPU and the GPU read."""
    attention: int
    """Operations of attention for each token and each token that it sees."""
    cached: int
    """Bytes of one token in a float16 cache."""

    @classmethod
    def of(cls, config: ModelConfig, file_bytes: int) -> Workload:
        heads, size = config.heads, config.head_size
        projections = config.hidden * size * (2 * heads + 2 * config.kv_heads)
        layer = projections + 3 * config.hidden * config.intermediate
        return cls(
            config.layers * layer,
            config.vocabulary * config.hidden,
            file_bytes,
            4 * config.layers * heads * size,
            config.cache_bytes(1, 2),
        )


@dataclass(frozen=True)
class UnitCost:
    """Modelled cost of a prompt and of one more token on a unit."""

    unit: Unit
    prefill_seconds: float
    prefill_joules: float
    decode_seconds: float
    decode_joules: float


def unit_cost(
    work: Workload, figures: UnitFigures, tokens: int, settings: ExportSettings
) -> UnitCost:
    """The cost for a prompt of so many tokens, and of the token that follows it."""
    total = work.layer_values + work.head_values
    share = work.layer_values / total
    if figures.unit is Unit.NEURAL_ENGINE:
        # Static shapes: chunks are padded, and each one looks at the whole context.
        stored = total * BITS[settings.form] / 8
        size, seen = settings.chunk, float(settings.context)
        computed = -(-tokens // size) * size
        # Read by attention; masks also read and write the whole of it.
        times = 3 if settings.style.cache == "masks" else 1
        cached = settings.context * work.cached * times
    else:
        stored, computed = float(work.file_bytes), tokens
        size, seen = CHUNK, tokens / 2
        cached = tokens * work.cached
    operations = computed * (2 * work.layer_values + work.attention * seen)
    chunks = -(-tokens // size)
    weights = chunks * stored * share
    prefill = chunks * figures.start + max(
        operations / figures.operations, weights / figures.bandwidth
    )
    decode = figures.start + (stored + cached) / figures.bandwidth
    return UnitCost(figures.unit, prefill, prefill * figures.watts, decode, decode * figures.watts)


def plan_units(
    work: Workload, chip: str, tokens: int, settings: ExportSettings
) -> dict[Unit, UnitCost]:
    """The cost on each unit of a chip by its name, of the table or newer."""
    figures = unit_figures(chip_of_device(chip) or find_chip(chip))
    return {unit: unit_cost(work, each, tokens, settings) for unit, each in figures.items()}


@dataclass(frozen=True)
class PrefillChoice:
    """Which unit reads a prompt, and why."""

    unit: Unit
    reason: str


def choose_prefill(
    work: Workload, chip: str | None, tokens: int, settings: ExportSettings, kept: bool
) -> PrefillChoice:
    """The unit for a prompt, under the policy in force. `chip` is None on a device that is not an
    Apple chip; `kept` says whether the exported program is in the cache already."""
    if chip is None:
        return PrefillChoice(
            Unit.GPU, "this device is not an Apple chip, so there is no Neural Engine to gain from"
        )
    if tokens > settings.context:
        return PrefillChoice(
            Unit.GPU, f"{tokens:,} tokens exceed the program's context of {settings.context:,}"
        )
    costs = plan_units(work, chip, tokens, settings)
    gpu, engine = costs[Unit.GPU], costs[Unit.NEURAL_ENGINE]
    known = chip_of_device(chip)
    name = f"{chip}, taken as {known.like}" if known and known.like else chip
    facts = (
        f"modelled for {name}, {tokens:,} tokens in chunks of {settings.chunk} of {settings.form} "
        f"weights: neural-engine {_cost(engine)}, gpu {_cost(gpu)}"
    )
    delay = engine.prefill_seconds / gpu.prefill_seconds
    saving = engine.prefill_joules / gpu.prefill_joules
    policy = work_policy()
    if delay > 1 and not (delay <= policy.longest_delay and saving <= policy.most_energy):
        return PrefillChoice(Unit.GPU, facts)
    if not kept:
        return PrefillChoice(
            Unit.GPU,
            f"{facts}; the exported program is not in the cache: --prefill neural-engine writes it",
        )
    return PrefillChoice(Unit.NEURAL_ENGINE, facts)


def _cost(cost: UnitCost) -> str:
    return f"{cost.prefill_seconds * 1e3:.1f} ms and {cost.prefill_joules * 1e3:.0f} mJ"
