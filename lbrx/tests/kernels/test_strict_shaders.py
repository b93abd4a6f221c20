"""Every shader that an Apple device can be given passes softmetal's strict check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from device_memory import on_processors
from strict_msl import findings

import softmetal
from lbrx import metal
from lbrx.kernels.arrays import empty
from lbrx.kernels.registry import FAMILIES, RUNNERS, Call, forced
from lbrx.metal.commands import recording
from lbrx.metal.library import SHADERS, listing_pipelines, shader_text
from lbrx.ops import TABLE

EXTENSIONS = "#pragma softmetal extensions"
STEMS = sorted(path.stem for path in SHADERS.glob("*.metal"))
OnChip = Callable[[str], AbstractContextManager[metal.Context]]


def text_of(stem: str) -> str:
    return shader_text(SHADERS, f"{stem}.metal")


WIDE = {stem for stem in STEMS if EXTENSIONS in text_of(stem)}


@pytest.mark.parametrize("stem", [stem for stem in STEMS if stem not in WIDE])
def test_stems(stem: str) -> None:
    assert findings(text_of(stem)) == ""


def test_a_mistake_is_found() -> None:
    source = text_of("softmax") + "float f(device float* x) { thread float* y = x; return *y; }\n"
    assert "cannot initialize a variable of type 'thread float *'" in findings(source)


def requested(gpu: metal.Context, family: str, variant: str) -> set[str]:
    """The stems that the samples of a family use, by this variant where the device can run it."""
    with listing_pipelines() as requests, recording(), forced(**{family: variant}):
        for sample in FAMILIES[family].samples:
            op = TABLE[sample.op]
            attributes = op.bind(sample.attributes)
            inputs = tuple(empty(gpu, spec) for spec in sample.specs)
            outputs = op.infer(sample.specs, attributes)
            RUNNERS[sample.op](Call(gpu, op, inputs, attributes, outputs))
    return {request.stem for request in requests}


@on_processors
@pytest.mark.parametrize("chip", ["m1", "m4-max"])
def test_wide_vectors_are_out_of_reach(chip: str, on_chip: OnChip) -> None:
    """No variant that an Apple device may run, forced or chosen, uses softmetal's extensions; the
    software device runs some."""
    variants = [(family.name, name) for family in FAMILIES.values() for name in family.variants]
    assert WIDE & {stem for each in variants for stem in requested(metal.context(), *each)}
    with on_chip(chip) as gpu:
        for each in variants:
            assert not WIDE & requested(gpu, *each), each


def test_an_apple_device_refuses_extensions(on_chip: OnChip) -> None:
    source = f"{EXTENSIONS}\nkernel void k(device float* x [[buffer(0)]]) {{ x[0] = 1; }}\n"
    with on_chip("m1"):
        device = softmetal.MTLCreateSystemDefaultDevice()
        library, error = device.newLibraryWithSource_options_error_(source, None, None)
    assert library is None
    assert "softmetal's extensions are not available on Apple devices" in str(
        error.localizedDescription()
    )
