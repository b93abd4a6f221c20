"""Shaders: headers, constants, errors, and pipelines kept on disk between processes."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import DeviceError, SettingError
from lbrx.metal.binding import Metal
from lbrx.metal.compile_time import SharedTime
from lbrx.metal.library import (
    SHADERS,
    PipelineRequest,
    Shaders,
    digest,
    generated,
)
from lbrx.metal.pipeline_archive import SAVE_EVERY
from lbrx.metal.prebuild import WIDE
from lbrx.metal.shader_files import shader_text

GROUP = (32, 1, 1)
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
CONSTANTS = (
    HEAD
    + """
constant uint add [[function_constant(0)]];
constant bool twice [[function_constant(1)]];
constant float scale [[function_constant(2)]];
constant int less [[function_constant(3)]];
kernel void mix(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] = (x[i] + add) * scale * (twice ? 2 : 1) - less;
}
"""
)


@pytest.fixture
def shaders(gpu, tmp_path):
    folder = tmp_path / "shaders"
    folder.mkdir()
    return Shaders(gpu.device, tmp_path / "cache", folder)


def write(shaders, **files):
    for name, text in files.items():
        stem, kind = name.rsplit("_", 1)
        (shaders._files.root / f"{stem}.{kind}").write_text(text)


def run(gpu, pipeline, values):
    buffer = gpu.upload(np.asarray(values, np.float32))
    gpu.queue.dispatch(pipeline, [buffer], (len(values), 1, 1), GROUP)
    return buffer.array(np.float32).tolist()


@pytest.mark.metal
def test_headers_are_put_in_once(gpu, shaders):
    write(
        shaders,
        base_h=HEAD + "inline float one() { return 1; }\n",
        left_h='#include "base.h"\ninline float two() { return one() + one(); }\n',
        main_metal='#include "base.h"\n  #  include "left.h" // twice over\n'
        "kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) "
        "{ x[i] += two(); }\n",
    )
    assert shader_text(shaders._files, "main.metal").count("float one()") == 1
    assert run(gpu, shaders.pipeline("main", "k"), [1, 2]) == [3, 4]


@pytest.mark.parametrize("place", ["main.metal", "inner.h"])
def test_errors_have_the_file_and_line(shaders, place):
    wrong = "\nkernel void k(device float* x [[buffer(0)]]) { x[0] = nothing_here; }\n"
    fine = "\n"
    write(
        shaders,
        inner_h=HEAD + (wrong if place == "inner.h" else fine),
        main_metal='#include "inner.h"\n' + (wrong if place == "main.metal" else fine),
    )
    line = 3 if place == "main.metal" else 4
    with pytest.raises(DeviceError, match=rf"(?s)main.metal does not compile.*{place}:{line}"):
        shaders.pipeline("main", "k")


def test_what_is_missing_is_named(gpu, shaders):
    with pytest.raises(DeviceError, match=r"nothing\.metal is not in .*shaders"):
        shaders.pipeline("nothing", "k")
    with pytest.raises(DeviceError, match=r"no kernel fill in random\.metal: it has random_b"):
        gpu.shaders.pipeline("random", "fill")


@pytest.mark.metal
def test_function_constants(gpu):
    def mix(constants):
        return gpu.shaders.pipeline("mix", "mix", constants, source=CONSTANTS)

    first = mix({0: 3, 1: True, 2: 0.5, 3: np.int32(-4)})
    assert run(gpu, first, [1, 2]) == [8, 9]
    assert mix({3: np.int32(-4), 0: 3, 2: 0.5, 1: True}) is first
    assert run(gpu, mix({0: 1, 1: False, 2: 1.0, 3: np.int32(0)}), [1, 2]) == [2, 3]
    with pytest.raises(DeviceError, match="function constant 0 of type int64"):
        mix({0: np.int64(1)})


@pytest.mark.metal
def test_safe_math_is_a_library_of_its_own(gpu):
    source = HEAD + (
        "kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]])"
        " { x[i] = isnan(x[i]) ? 1 : 0; }"
    )
    safe = gpu.shaders.pipeline("nan", "k", source=source, safe_math=True)
    assert run(gpu, safe, [np.nan, 2]) == [1, 0]
    assert gpu.shaders.pipeline("nan", "k", source=source) is not safe


def test_checking_compiles_anew(gpu):
    softmetal = pytest.importorskip("softmetal")
    plain = gpu.shaders.pipeline("random", "random_uniform_float16")
    with softmetal.checking("bounds"):
        assert gpu.shaders.pipeline("random", "random_uniform_float16") is not plain
    assert gpu.shaders.pipeline("random", "random_uniform_float16") is plain


def test_threads_that_compile_side_by_side_take_the_time_once():
    now = [0.0]
    spent = SharedTime(lambda: now[0])
    with spent.running():
        now[0] = 2
        with spent.running():
            now[0] = 3
            assert spent.seconds == 3
        now[0] = 5
    now[0] = 10
    assert spent.seconds == 5
    with spent.running():
        now[0] = 11
    assert spent.seconds == 6


@pytest.mark.metal
def test_the_time_of_compiling_is_within_that_of_the_call(gpu, shaders):
    names = [f"k{secrets.token_hex(4)}" for _ in range(4)]
    texts = (f"kernel void {name}(device float* x [[buffer(0)]]) {{ x[0] = 1; }}" for name in names)
    write(shaders, main_metal=HEAD + "\n".join(texts))
    requests = [PipelineRequest("main", name) for name in names]
    began = time.perf_counter()
    shaders.compile_all(requests)
    taken = time.perf_counter() - began
    assert shaders.compiled.kernels == 4
    assert 0 < shaders.compiled.seconds <= taken


@pytest.mark.metal
def test_threads_compile_a_pipeline_once(gpu):
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(gpu.shaders.pipeline("random", "random_normal_float16"))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


# ---- on disk ----


def archives(shaders):
    return list(shaders._cache.glob("*.archive"))


def count_compilations(shaders, monkeypatch):
    """Pipelines made without the archive."""
    counted = []
    library = shaders._library("random", None, False)
    make = library._make

    def counting(descriptor, options):
        if not options & Metal.MTLPipelineOptionFailOnBinaryArchiveMiss:
            counted.append(descriptor)
        return make(descriptor, options)

    monkeypatch.setattr(library, "_make", counting)
    return counted


@pytest.mark.metal
def test_pipelines_come_back_from_the_archive(gpu, tmp_path, monkeypatch):
    first = Shaders(gpu.device, tmp_path)
    first.pipeline("random", "random_uniform_float32")
    assert not archives(first)
    first.save()
    assert len(archives(first)) == 1
    stamp = archives(first)[0].stat().st_mtime_ns
    first.save()
    assert archives(first)[0].stat().st_mtime_ns == stamp  # nothing new

    second = Shaders(gpu.device, tmp_path)
    compiled = count_compilations(second, monkeypatch)
    second.pipeline("random", "random_uniform_float32")
    assert not compiled
    second.pipeline("random", "random_bernoulli_bool")
    assert len(compiled) == 1
    second.save()
    third = Shaders(gpu.device, tmp_path)
    compiled = count_compilations(third, monkeypatch)
    pipeline = third.pipeline("random", "random_bernoulli_bool")
    third.pipeline("random", "random_uniform_float32")
    assert not compiled
    buffer, always = gpu.buffer(80), np.float32([1, 0]).tobytes()
    gpu.queue.dispatch(pipeline, [buffer, bytes(16), always], (20, 1, 1), GROUP)
    assert (buffer.array() == 1).all()


def test_a_broken_archive_is_a_miss(gpu, tmp_path):
    first = Shaders(gpu.device, tmp_path)
    first.pipeline("random", "random_uniform_float32")
    first.save()
    archives(first)[0].write_bytes(b"not an archive")
    second = Shaders(gpu.device, tmp_path)
    assert second.pipeline("random", "random_uniform_float32").name == "random_uniform_float32"
    second.save()
    assert archives(second)[0].read_bytes() != b"not an archive"


def test_a_cache_that_cannot_be_written_costs_only_time(gpu, tmp_path):
    (tmp_path / "pipelines").write_text("a file in the way")
    shaders = Shaders(gpu.device, tmp_path)
    shaders.pipeline("random", "random_uniform_float32")
    shaders.save()


def test_archives_are_saved_as_they_grow(gpu, tmp_path):
    shaders = Shaders(gpu.device, tmp_path)
    source = (
        HEAD
        + "constant uint n [[function_constant(0)]];\n"
        + ("kernel void k(device uint* x [[buffer(0)]]) { x[0] = n; }")
    )
    library = shaders._library("grow", source, False)
    shaders.pipeline("grow", "k", {0: 1}, source=source)
    assert not archives(shaders)
    library.archive._new *= SAVE_EVERY - 1
    shaders.pipeline("grow", "k", {0: 2}, source=source)
    assert len(archives(shaders)) == 1


TWO = """
import sys
from lbrx.metal import context
gpu = context()
source, *names = sys.argv[1:]
for name in names:
    gpu.shaders.pipeline("two", name, source=source)
    gpu.shaders.save()
print(len(gpu.shaders._pipelines))
"""


def test_two_processes_compile_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path))
    new = secrets.randbits(31)  # not compiled before
    names = ["one", "two", "three"]
    kernels = [f"kernel void {k}(device uint* x [[buffer(0)]]) {{ x[0] = {new}; }}" for k in names]
    source = HEAD + "\n".join(kernels)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, source, *order],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in (names, names[::-1])
    ]
    for process in processes:
        output, errors = process.communicate()
        assert (process.returncode, output) == (0, "3\n"), errors
    left = sorted(path.suffix for path in (tmp_path / "pipelines").iterdir())
    assert left == [".archive"]


# ---- prebuilt ----


def test_a_metallib_is_preferred_if_it_is_of_these_sources(gpu, shaders):
    soft = pytest.importorskip("softmetal")
    body = "kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]])"
    write(shaders, main_metal=HEAD + body + " { x[i] = 1; }\n")
    text = shader_text(shaders._files, "main.metal")
    path = shaders._files.root / f"main-{digest(text, False)}.metallib"
    other, error = gpu.device.newLibraryWithSource_options_error_(
        HEAD + body + " { x[i] = 2; }", None, None
    )
    assert error is None
    path.write_bytes(bytes(other.libraryDataContents()))
    assert run(gpu, shaders.pipeline("main", "k"), [0]) == [2]
    assert run(gpu, shaders.pipeline("main", "k", safe_math=True), [0]) == [1]
    path.write_bytes(b"MTLB of another platform")
    again = Shaders(gpu.device, shaders._cache.parent, shaders._files.root)
    assert run(gpu, again.pipeline("main", "k"), [0]) == [1]
    assert soft.MTLCreateSystemDefaultDevice() is not None


def test_every_shader_of_the_package_compiles(gpu):
    assert gpu.shaders.stems() == SHADERS.stems()
    for stem in gpu.shaders.stems():
        if not gpu.info.simd_hardware or WIDE not in gpu.shaders.text(stem):
            assert gpu.shaders.functions(stem)


def test_no_two_shaders_have_one_name():
    sources = [path for root in SHADERS.roots() for path in root.rglob("*.[hm]*")]
    names = Counter((path.name, path.parent.name == "records") for path in sources)
    assert len(names) > 60
    assert not [name for name, count in names.items() if count > 1]


def test_only_the_binding_names_metal():
    """PyObjC's modules and softmetal are imported in one place."""
    package = Path(lbrx.__file__).parent
    imports = re.compile(
        r'(?m)^\s*(?:import|from) (?:Metal|softmetal|objc|Foundation)|"softmetal(?:\.[\w.]+)?"'
    )
    named = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if imports.search(path.read_text())
    ]
    assert named == ["metal/binding.py"]


def test_a_folder_of_shaders_that_is_not_there(monkeypatch, gpu, tmp_path):
    monkeypatch.setenv("LBRX_SHADERS", str(tmp_path / "nowhere"))
    with pytest.raises(SettingError, match=r"LBRX_SHADERS='.*nowhere' is not a folder: unset it"):
        Shaders(gpu.device, tmp_path)


@pytest.mark.skipif(not hasattr(Metal, "checking"), reason="plays a virtual machine")
def test_a_device_without_archives_compiles_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-paravirtual-device")
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    device = Metal.MTLCreateSystemDefaultDevice()
    assert device.newBinaryArchiveWithDescriptor_error_(
        Metal.MTLBinaryArchiveDescriptor.new(), None
    )[0] is None  # fmt: skip
    shaders = Shaders(device, tmp_path)
    for _ in range(2):
        assert shaders.pipeline("random", "random_uniform_float32").max_threads
    assert shaders.compiled.kernels == 1
    shaders.save()
    assert not archives(shaders)


def test_archives_are_filled_when_they_are_written(gpu, tmp_path, monkeypatch):
    """Adding a pipeline compiles it a second time."""
    shaders, added = Shaders(gpu.device, tmp_path), []
    archive = type(shaders._library("random", None, False).archive.opened())
    add = archive.addComputePipelineFunctionsWithDescriptor_error_

    def counting(*given):
        added.append(given)
        return add(*given)

    monkeypatch.setattr(
        archive, "addComputePipelineFunctionsWithDescriptor_error_", counting, raising=True
    )
    shaders.pipeline("random", "random_uniform_float32")
    shaders.pipeline("random", "random_bernoulli_bool")
    assert not added
    shaders.save()
    assert len(added) == 2
    assert archives(shaders)


OPTIONS = """
kernel void version(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] = i == 0 ? __METAL_VERSION__ : isnan(x[i]);
}
"""


def test_lbrx_s_own_sources_have_a_pinned_version(gpu, shaders):
    own = shaders.pipeline("own", "version", source=generated(HEAD + OPTIONS), safe_math=True)
    assert run(gpu, own, [0, np.nan])[:2] == [310, 1]
    write(shaders, stem_metal=HEAD + OPTIONS)
    assert run(gpu, shaders.pipeline("stem", "version"), [0, 0])[0] == 310
    users = shaders.pipeline("users", "version", source=HEAD + OPTIONS, safe_math=True)
    assert run(gpu, users, [0, 0])[0] > 310
