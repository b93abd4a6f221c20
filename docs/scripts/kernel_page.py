"""The page of kernels: families, their variants, and which variant is chosen for which problem.

The choices are those of the selection code itself: each family is asked about the problems that the
tuner measures, for a processor and for an Apple GPU. Nothing is compiled or run.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import selection_rules

CORES = 8
HEAD = """# Kernels and their variants

A family is a kind of kernel; a variant is one way to compute it. For each computation the registry
chooses, in this order:

1. the variant that `with lbrx.kernels.forced(family="variant"):` or `LBRX_KERNEL=family:variant`
   names, if it takes the problem;
2. the variant that `lbrx tune` measured as the fastest for the problem's class of sizes on this
   device;
3. the variant with the least estimated cost among those that take the problem.

Within `with lbrx.deterministic():` only *invariant* variants are considered, and
measurements are ignored: a row of their result has the same bits in every batch. `lbrx profile`
shows for each kernel which variant ran and why, and `lbrx.metal.stats()["kernels"]` counts them.

The tables of choices below come from the selection code, asked about the tuner's samples: once for
a processor with {cores} cores (softmetal's `cpu` device) and once for an Apple {chip}. They are
choices by estimated cost, without measurements. *For* is the kind of device that a variant is made
for: `wide` is processors, `simd` GPUs, `tensor` GPUs whose simdgroups multiply matrices. Devices of
another kind take it last, or not at all where it says *only*. *Takes* and *cost* are the code of
the variant's limits and of its estimate; `info` is the device's `DeviceInfo`, and costs are
relative to the other variants of the family.

"""


@contextmanager
def _without_settings() -> Iterator[None]:
    """Choices must not depend on the variables and measurements of the machine that writes."""
    names = ("LBRX_KERNEL", "LBRX_CACHE", "SOFTMETAL_DEVICE")
    old = {name: os.environ.pop(name, None) for name in names}
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"SOFTMETAL_DEVICE": "null", "LBRX_CACHE": folder}
            yield
    finally:
        for name, value in old.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _devices() -> tuple[Any, Any, Any]:
    """A context that compiles nothing, and descriptions of a processor and of an Apple GPU."""
    from lbrx.metal import Context, binding
    from lbrx.metal.device import default_device, describe

    processor = replace(describe(default_device()), name="processor", cores=CORES)
    gpu = Context(binding.modelled_gpu())
    return gpu, processor, gpu.info


def _choices(gpu: Any, processor: Any, apple: Any) -> dict[str, list[tuple[str, str, str]]]:
    """For each family, samples with the variants for a processor and for an Apple GPU."""
    from lbrx.command_lists.builder import Builder
    from lbrx.kernels.registry import FAMILIES, operation
    from lbrx.scheduler.tune import observed

    found: dict[str, list[tuple[str, str, str]]] = {}
    b = Builder(gpu)
    for name, family in FAMILIES.items():
        for sample in family.samples:
            inputs = tuple(map(b.result, sample.specs))
            with observed(family) as problems:
                operation(sample.op, inputs, sample.attributes)(b)
            for problem in dict.fromkeys(problems):
                chosen = [family.choose(info, problem).name for info in (processor, apple)]
                found.setdefault(name, []).append((_shown(sample), *chosen))
    return found


def _shown(sample: Any) -> str:
    specs = ", ".join(f"{s.dtype}[{', '.join(map(str, s.shape))}]" for s in sample.specs)
    values = "".join(f", {k}={v!r}" for k, v in sample.attributes.items() if len(repr(v)) < 30)
    return f"{sample.op}({specs}{values})"


def _module_of(family: Any) -> Any:
    """The module that defines a family."""
    kernels = importlib.import_module("lbrx.kernels")
    for name, module in sorted(sys.modules.items()):
        if name.startswith(f"{kernels.__name__}.") and family in vars(module).values():
            source = inspect.getsource(module)
            if f'KernelFamily("{family.name}")' in source:
                return module
    raise LookupError(family.name)


def _variant(variant: Any) -> str:
    text = " ".join((inspect.getdoc(variant.launch) or "").split("\n\n")[0].split())
    kept = "yes" if variant.batch_invariant else "no"
    takes, cost = _rule(variant.can), _rule(variant.cost)
    takes = "any problem" if takes == "`True`" else takes
    kind = f"{variant.made_for} only" if variant.only else variant.made_for or "any"
    return f"| `{variant.name}` | {text} | {kind} | {takes} | {cost} | {kept} |\n"


def _rule(function: Any) -> str:
    function = inspect.unwrap(function)
    text = selection_rules.expression(function)
    return f"`{text or function.__name__ + '(info, problem)'}`".replace("|", "\\|")


def _longer_rules(family: Any) -> list[str]:
    """The functions that the table only names."""
    variants = family.variants.values()
    functions = (inspect.unwrap(each) for v in variants for each in (v.can, v.cost))
    longer = dict.fromkeys(f for f in functions if selection_rules.expression(f) is None)
    texts = dict.fromkeys(map(selection_rules.source, longer))
    return ["\n```python\n" + "\n\n\n".join(texts) + "\n```\n"] if texts else []


def _family(family: Any, choices: list[tuple[str, str, str]]) -> str:
    from lbrx.kernels.registry import RUNNERS

    module = _module_of(family)
    text = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    runners = [name for name, each in RUNNERS.items() if each.__module__ == module.__name__]
    lines = [f"## {family.name}\n\n{text}\n\n"]
    if runners:
        names = ", ".join(f"`{name}`" for name in runners)
        lines.append(f"Operations computed by `{module.__name__}`: {names}.\n\n")
    lines.append(
        "| variant | how it computes | for | takes | cost | invariant |\n"
        "|---|---|---|---|---|---|\n"
    )
    lines += [_variant(each) for each in family.variants.values()]
    lines += _longer_rules(family)
    if choices:
        lines.append("\n| problem | processor | Apple GPU |\n|---|---|---|\n")
        lines += [f"| `{what}` | `{cpu}` | `{gpu}` |\n" for what, cpu, gpu in choices]
    return "".join(lines)


def generated() -> dict[str, str]:
    """The text by its place in docs/."""
    with _without_settings():
        gpu, processor, apple = _devices()
        from lbrx.kernels.registry import FAMILIES

        choices = _choices(gpu, processor, apple)
    # lbrx.video registers its own when it is imported; docs/video.md is about them.
    own = {name: each for name, each in FAMILIES.items() if not name.startswith("video_")}
    parts = [_family(each, choices.get(name, [])) for name, each in sorted(own.items())]
    head = HEAD.replace("{cores}", str(CORES)).replace("{chip}", apple.chip)
    return {"reference/kernels.md": head + "\n".join(parts)}
