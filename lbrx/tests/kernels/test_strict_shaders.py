"""Every shader that an Apple device can be given passes softmetal's strict check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from device_memory import on_processors
from strict_msl import findings

import softmetal
from lbrx import metal
from lbrx.command_lists.builder import Builder
from lbrx.errors import DeviceError
from lbrx.kernels.registry import FAMILIES, forced, operation
from lbrx.metal.library import SHADERS, Shaders, generated
from lbrx.metal.shader_files import shader_text
from softmetal.compiler import check
from softmetal.types import CompileOptions

EXTENSIONS = "#pragma softmetal extensions"
STEMS = SHADERS.stems()
OnChip = Callable[[str], AbstractContextManager[metal.Context]]


def text_of(stem: str) -> str:
    return shader_text(SHADERS, f"{stem}.metal")


WIDE = {stem for stem in STEMS if EXTENSIONS in text_of(stem)}


@pytest.mark.parametrize("stem", [stem for stem in STEMS if stem not in WIDE])
def test_stems(stem: str) -> None:
    assert findings(text_of(stem)) == ""


@pytest.mark.parametrize("stem", STEMS)
def test_stems_compile(stem: str) -> None:
    """Every kernel: first uses compile those alone that they run (`generated`)."""
    assert check(text_of(stem), CompileOptions(fast_math=False))[0].functions


def test_own_shaders_are_not_checked_at_each_first_use(tmp_path: Path) -> None:
    """Those in another folder, and sources of users, are."""
    wrong = "kernel void wrong(device float* x [[buffer(0)]]) { x[0] = missing; }\n"
    gpu = metal.context()
    with pytest.raises(DeviceError, match=r"wrong\.metal does not compile"):
        gpu.shaders.functions("wrong", source=wrong)
    assert gpu.shaders.functions("wrong", source=generated(wrong)) == ["wrong"]
    (tmp_path / "wrong.metal").write_text(wrong)
    with pytest.raises(DeviceError, match=r"wrong\.metal does not compile"):
        Shaders(gpu.device, tmp_path, tmp_path).functions("wrong")


def test_a_mistake_is_found() -> None:
    source = text_of("softmax") + "float f(device float* x) { thread float* y = x; return *y; }\n"
    assert "cannot initialize a variable of type 'thread float *'" in findings(source)


def requested(gpu: metal.Context, family: str, variant: str) -> set[str]:
    """The stems that the samples of a family use, by this variant where the device can run it."""
    b = Builder(gpu)
    with forced(**{family: variant}):
        for sample in FAMILIES[family].samples:
            operation(sample.op, tuple(map(b.result, sample.specs)), sample.attributes)(b)
    return {request.stem for request in b.pipelines()}


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
