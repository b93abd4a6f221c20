"""lbrx plan: modelled time and energy of a language model on CPU, GPU and Neural Engine."""

from __future__ import annotations

import argparse

from lbrx.arrays import dtype as dt
from lbrx.errors import LbrxError
from lbrx.files import formats
from lbrx.files.formats.packaged_models import model_path
from lbrx.files.stored.stored_model import StoredModel
from lbrx.metal.device import chips, find_chip
from lbrx.models import architectures
from lbrx.models.config import read_config
from lbrx.models.export.exporter import DEFAULT_CHUNK, ExportSettings
from lbrx.models.export.unit_plan import UnitCost, Workload, choose_prefill, plan_units
from lbrx.models.weights import CheckedWeights, bytes_in_memory
from lbrx.neural_engine.weight_forms import WeightForm, parse_form
from lbrx.terminal.arguments import MODEL

PROMPT = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help=f"the model: {MODEL}")
    add("--chip", metavar="NAME", help="one chip, such as m4-pro (default: every chip)")
    add("--prompt", metavar="N", type=int, default=PROMPT, help=f"tokens of the prompt ({PROMPT})")
    add(
        "--chunk",
        metavar="N",
        type=int,
        default=DEFAULT_CHUNK,
        help=f"tokens that the Neural Engine's program reads at a time ({DEFAULT_CHUNK})",
    )
    add(
        "--quantize",
        metavar="TYPE",
        default=WeightForm.F16.value,
        help="how the Neural Engine's program stores weights: f16 (the default), int8, int4, lut8, "
        "lut6 or lut4",
    )


def run(options: argparse.Namespace) -> int:
    if options.prompt < 1:
        raise LbrxError(f"--prompt {options.prompt}: give a positive number of tokens")
    names = [find_chip(options.chip).name] if options.chip else list(chips())
    settings = ExportSettings(
        max(options.prompt, options.chunk), options.chunk, parse_form(options.quantize)
    )
    files = formats.read(model_path(options.model))
    model = StoredModel(files, files.tensors)
    network, config = architectures.network_of(model), read_config(model)
    # There are no speeds of models that do not run.
    network(config, CheckedWeights(model, config, "cpu", dt.float32))
    work = Workload.of(config, bytes_in_memory(files))
    print(
        f"Modelled, not measured: a prompt of {options.prompt:,} tokens and one more token. The "
        f"Neural Engine reads chunks of {settings.chunk} with {settings.form} weights, the others "
        f"the file's {work.file_bytes / 1e6:,.0f} MB."
    )
    print(f"{'chip':<9} {'unit':<14}{'prefill':>12}{'energy':>11}{'decode':>12}{'energy':>11}")
    for name in names:
        costs = plan_units(work, name, options.prompt, settings)
        for cost in costs.values():
            print(_row(name, cost, options.prompt))
        choice = choose_prefill(work, name, options.prompt, settings, kept=True)
        print(f"{name:<9} --prefill auto would choose {choice.unit}")
    return 0


def _row(chip: str, cost: UnitCost, tokens: int) -> str:
    prefill, decode = tokens / cost.prefill_seconds, 1 / cost.decode_seconds
    return (
        f"{chip:<9} {cost.unit:<14}{prefill:>6,.0f} tok/s{cost.prefill_joules:>9.3f} J"
        f"{decode:>6,.0f} tok/s{cost.decode_joules:>9.4f} J"
    )
