"""Kernels of a stem that are compiled one by one, as on a Mac."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import lbrx
from lbrx.metal import context
from lbrx.metal.binding import Metal
from lbrx.metal.instances import split
from lbrx.metal.library import SHADERS, Shaders
from lbrx.metal.shader_files import shader_text

compiler = pytest.importorskip("softmetal.compiler.stages", reason="softmetal's compiler expands")


def instantiations(text: str) -> dict[str, str]:
    """What clang's preprocessor makes of a stem: statements without spaces, by their host_name."""
    from softmetal.types import CompileOptions

    expanded = compiler.preprocess(text, CompileOptions(fast_math=False, language_version=310))
    expanded = re.sub(r'(?m)^# \d+ "[^"]*".*$', "", expanded)
    begin = r'template\s*\[\[\s*host_name\(((?:\s*"[^"]*")+)\s*\)\s*\]\]'
    return {
        "".join(re.findall(r'"([^"]*)"', found[1])): re.sub(r"\s+", "", found[2])
        for found in re.finditer(rf"{begin}([^;]*;)", expanded)
    }


@pytest.mark.parametrize("stem", SHADERS.stems())
def test_instances_are_those_of_clang(stem):
    text = shader_text(SHADERS, f"{stem}.metal")
    parts = split(text, f"{stem}.metal")
    want = instantiations(text)
    assert parts.instances.keys() == want.keys()
    assert instantiations(parts.base + "".join(parts.instances.values())) == want
    assert instantiations(parts.base) == {}
    for name in list(want)[:: max(1, len(want) // 2)]:
        assert instantiations(parts.text_of(name)) == {name: want[name]}


CASES = {
    "#define K(n) I(n, n##8)\nK(a)\n": {"k_a": "void f<a8>();"},
    "#define K(n, ...) I(n, __VA_ARGS__)\nK(a, b<c, d>, (e, f))\n": {"k_a": "void f<b<c, d>, (e, f)>();"},
    "#define BOTH(M) M(a, x) M(b, y)\nBOTH(I)\n": {"k_a": "void f<x>();", "k_b": "void f<y>();"},
    "#define ALL I(a, x)\nALL\n": {"k_a": "void f<x>();"},
    "#define K(n) I(n, x)\nK(a)\n#undef K\n#define K(n) I(n, y)\nK(b)\n": {
        "k_a": "void f<x>();", "k_b": "void f<y>();"},
    "I(a,\n  x)  // a comment, with (\nI(b, /* and ) */ y)\n": {"k_a": "void f<x>();", "k_b": "void f<y>();"},
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_macros_are_those_of_c(text):
    head = '#define I(n, ...) template [[host_name("k_" #n)]] kernel void f<__VA_ARGS__>();\n'
    whole = f'#line 1 "s.metal"\n{head}{text}'
    found = split(whole, "s.metal").instances
    short = {
        name: re.sub(r"\s+", " ", each).partition("kernel ")[2] for name, each in found.items()
    }
    assert {name: each.strip() for name, each in short.items()} == CASES[text]
    assert instantiations(whole).keys() == found.keys()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("K(int x;)", "neither an instantiation nor a macro"),
        ("K(template void f<int>();)", "has no host_name"),
    ],
)
def test_what_is_not_an_instantiation_is_an_error(text, problem):
    with pytest.raises(ValueError, match=problem):
        split(f'#line 1 "s.metal"\n#define K(x) x\n{text}\n', "s.metal")


@pytest.fixture
def sources(monkeypatch):
    """The sources that are compiled."""
    compiled = []
    device = type(context().device)
    make = device.newLibraryWithSource_options_error_

    def noting(self, source, *others):
        compiled.append(source)
        return make(self, source, *others)

    monkeypatch.setattr(device, "newLibraryWithSource_options_error_", noting)
    return compiled


@pytest.mark.skipif(not hasattr(Metal, "checking"), reason="plays a Mac")
def test_only_kernels_that_are_used_are_compiled(tmp_path, sources, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    gpu = lbrx.metal.Context()
    shaders = Shaders(gpu.device, tmp_path)
    names = ["random_uniform_float32", "random_bernoulli_bool", "random_integers_uint8"]
    for name in [*names, *names]:
        assert shaders.pipeline("random", name, safe_math=True).name == name
    assert [len(instantiations(source)) for source in sources] == [1, 0, 1]
    assert "random_normal_float16" in shaders.functions("random", safe_math=True)
    assert len(sources) == 3 + 1  # a list of kernels needs them all
    with pytest.raises(
        lbrx.DeviceError, match=r"no kernel random_nothing in random\.metal: it has .*normal"
    ):
        shaders.pipeline("random", "random_nothing")
    shaders.save()
    assert len(list((tmp_path / "pipelines").glob("*.archive"))) == 1  # of both kernels
    again = Shaders(gpu.device, tmp_path)
    for name in names:
        again.pipeline("random", name, safe_math=True)
    assert again.compiled.kernels == 0
    gpu.close()


def test_elsewhere_stems_are_one_library(tmp_path, sources, monkeypatch):
    monkeypatch.delenv("SOFTMETAL_STRICT", raising=False)
    shaders = Shaders(context().device, tmp_path)
    for name in ("random_uniform_float32", "random_bernoulli_bool"):
        shaders.pipeline("random", name, safe_math=True)
    assert len(sources) == 1


def test_errors_name_the_places_of_a_stem(sources):
    """As `#line` says where an instantiation was written."""
    text = shader_text(SHADERS, "random.metal")
    lines = text.partition('#line 2 "random.metal"\n')[2].splitlines()
    source = split(text, "random.metal").instances["random_integers_uint32"]
    number = int(re.match(r'#line (\d+) "random.metal"', source)[1])
    assert lines[number - 2].startswith("INTEGERS(uint32, uint)")


RESULTS = """
import numpy as np, lbrx
x = np.random.default_rng(3).standard_normal((40, 70)).astype("f4")
t = lbrx.tensor(x, device="metal")
np.testing.assert_allclose((t @ t.T).numpy(), x @ x.T, atol=1e-4)
np.testing.assert_allclose(t.softmax(axis=-1).sum(axis=-1).numpy(), 1, atol=1e-5)
assert t.argmax(axis=0).numpy().tolist() == x.argmax(axis=0).tolist()
np.testing.assert_array_equal(t.sort(axis=0).numpy(), np.sort(x, axis=0))
from lbrx.metal import context
libraries = context().shaders._libraries.values()
print(sum(len(each._singles) for each in libraries), sum(each._whole is not None for each in libraries
      if each._parts is not None))
"""


@pytest.mark.parametrize("profile", ["apple-m1", "apple-m5"])
def test_results_of_kernels_that_are_compiled_singly(profile):
    settings = {"SOFTMETAL_STRICT": "host", "SOFTMETAL_PROFILE": profile}
    ran = subprocess.run(
        [sys.executable, "-c", RESULTS], env={**os.environ, **settings}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    singles, whole = map(int, ran.stdout.split())
    assert singles >= 4
    assert whole == 0
