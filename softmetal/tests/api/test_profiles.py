"""Apple profiles: what each makes a soft device say, and maths that assumes finite values."""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import softmetal
from softmetal import __main__ as command_line
from softmetal import profiles, registers
from softmetal.api.device import MTLDevice
from softmetal.errors import SettingError, ValidationError

ROOT = Path(__file__).parents[2]
GIB = 1 << 30

with (Path(softmetal.__file__).parent / "data" / "apple_chips.csv").open() as file:
    CHIPS = {f"apple-{row['chip'].lower().replace(' ', '-')}": row for row in csv.DictReader(file)}

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void halve(device bfloat* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] = x[i] * 0.5bf; }
kernel void own(device float* y [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup float t[256]; t[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = t[31 - i]; }
kernel void both(device float* y [[buffer(0)]], threadgroup float* s [[threadgroup(0)]],
                 uint i [[thread_position_in_threadgroup]]) {
  threadgroup float t[128]; t[i] = s[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = t[31 - i] + s[31 - i]; }
"""


@pytest.fixture
def device_of(monkeypatch):
    def make(profile):
        monkeypatch.setenv("SOFTMETAL_PROFILE", profile)
        return softmetal.MTLCreateSystemDefaultDevice()

    return make


def pipeline(device, name, source=SOURCE, options=None):
    library, error = device.newLibraryWithSource_options_error_(source, options, None)
    assert library is not None, error
    function = library.newFunctionWithName_(name)
    return device.newComputePipelineStateWithFunction_error_(function, None)


def run(device, state, *buffers, threads=32, scratch=0):
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(state)
    for index, buffer in enumerate(buffers):
        encoder.setBuffer_offset_atIndex_(buffer, 0, index)
    if scratch:
        encoder.setThreadgroupMemoryLength_atIndex_(scratch, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_((threads, 1, 1), (threads, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None, commands.error()


# ---- every chip ----


def test_every_chip_has_a_profile():
    assert len(CHIPS) == 18
    assert [p.name for p in profiles.all_profiles()] == list(CHIPS)


@pytest.mark.parametrize("name", CHIPS)
def test_what_the_device_says(device_of, name):
    chip, device = CHIPS[name], device_of(name)
    assert device.name() == f"Apple {chip['chip']}"
    newest = int(chip["gpu_family"].removeprefix("apple"))
    apple = [n for n in range(1, 12) if device.supportsFamily_(1000 + n)]
    assert apple == list(range(1, newest + 1))
    for family in (
        softmetal.MTLGPUFamilyMac2,
        softmetal.MTLGPUFamilyCommon1,
        softmetal.MTLGPUFamilyCommon2,
        softmetal.MTLGPUFamilyCommon3,
        softmetal.MTLGPUFamilyMetal3,
    ):
        assert device.supportsFamily_(family)
    assert not device.supportsFamily_(softmetal.MTLGPUFamilyMetal4)
    assert tuple(device.maxThreadsPerThreadgroup()) == (1024, 1024, 1024)
    assert device.maxThreadgroupMemoryLength() == 32768
    assert device.hasUnifiedMemory()
    assert not device.isHeadless()
    memory = profiles.find(name).memory
    assert memory >= 8 * GIB
    assert device.recommendedMaxWorkingSetSize() == memory * 3 // 4
    assert device.maxBufferLength() == memory * 9 // 16


@pytest.mark.parametrize("name", CHIPS)
def test_kernels_run_under_every_profile(device_of, name):
    device = device_of(f"{name}:2")
    state, error = pipeline(device, "halve")
    assert state is not None, error
    assert state.threadExecutionWidth() == 32
    assert state.maxTotalThreadsPerThreadgroup() == 1024
    words = (np.arange(32, dtype="f4").view("u4") >> 16).astype("u2")  # bfloat
    buffer = device.newBufferWithBytes_length_options_(words.tobytes(), 64, 0)
    run(device, state, buffer)
    got = np.frombuffer(buffer.contents().as_buffer(64), "u2").astype("u4") << 16
    np.testing.assert_array_equal(got.view("f4"), np.arange(32) / 2)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("apple-m1", "applegpu_g13g"),
        ("apple-m1-max", "applegpu_g13s"),
        ("apple-m2-pro", "applegpu_g14s"),
        ("apple-m2-ultra", "applegpu_g14d"),
        ("apple-m3-max", "applegpu_g15s"),
        ("apple-m4-pro", "applegpu_g16s"),
        ("apple-m4-max", "applegpu_g16s"),
    ],
)
def test_architectures_that_macs_report(device_of, name, architecture):
    assert device_of(name).architecture().name() == architecture


# ---- memory ----


@pytest.mark.parametrize("gib", [1, 64, 512])
def test_a_stated_amount_of_memory(device_of, gib):
    device = device_of(f"apple-m3-max:{gib}")
    assert device.name() == "Apple M3 Max"
    assert device.recommendedMaxWorkingSetSize() == gib * GIB * 3 // 4


def test_buffers_beyond_the_longest_are_none(device_of):
    device = device_of("apple-m1:1")
    assert device.newBufferWithLength_options_(device.maxBufferLength() + 1, 0) is None
    assert device.newBufferWithLength_options_(device.maxBufferLength(), 0) is not None


# ---- the setting ----


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apple-m9", "apple-m1, apple-m1-pro.*apple-m5"),
        ("Apple M1", "apple-m1"),
        ("m1", "apple-m1"),
        ("apple-m1:", "'' is not an amount of memory"),
        ("apple-m1:lots", "'lots'.*apple-m1:8"),
        ("apple-m1:0", "'0'"),
        ("apple-m1:-8", "'-8'"),
        ("apple-m1:8.5", "'8.5'"),
        ("apple-m1:5000", "up to 4096"),
    ],
)
def test_meaningless_profiles(device_of, text, said):
    with pytest.raises(SettingError, match=said):
        device_of(text)


def test_one_device_for_each_profile(device_of):
    assert device_of("apple-m1") is device_of("apple-m1")
    assert device_of("apple-m1") is not device_of("apple-m2")
    assert device_of("").name().startswith("softmetal ")


def test_the_command_line(monkeypatch, capsys):
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m2-max:96")
    assert command_line.main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "Apple M2 Max" in out
    assert "72.0 GiB" in out
    assert command_line.main(["devices", "--profiles"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == list(CHIPS)
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m9")
    assert command_line.main(["devices"]) == 1
    assert "apple-m5" in capsys.readouterr().err


def test_the_page_is_fresh():
    spec = importlib.util.spec_from_file_location("table", ROOT / "scripts" / "profiles_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text()
    assert module.page(text) == text
    assert all(f"| {name} |" in text for name in CHIPS)


# ---- threadgroup memory ----


def small_device(device, limit):
    profile = replace(profiles.find("apple-m1"), threadgroup_memory=limit)
    return MTLDevice(device._executor, profile)


def test_static_threadgroup_memory_beyond_the_profile(device):
    assert pipeline(small_device(device, 1024), "own")[0] is not None
    state, error = pipeline(small_device(device, 1008), "own")
    assert state is None
    text = error.localizedDescription()
    assert "`own` would use 1024 bytes" in text
    assert "the device has 1008" in text


def test_threadgroup_memory_beyond_the_profile_in_sum(device):
    small = small_device(device, 1024)
    state, error = pipeline(small, "both")
    assert state is not None, error
    y = small.newBufferWithLength_options_(128, 0)
    run(small, state, y, scratch=512)
    got = np.frombuffer(y.contents().as_buffer(128), "f4")
    np.testing.assert_array_equal(got, 2 * np.arange(32)[::-1])
    with pytest.raises(ValidationError, match=r"1040 bytes.*512 static and 528 set.*16 less"):
        run(small, state, y, scratch=528)
    with pytest.raises(ValidationError, match=r"1040 bytes at index 0.*1024"):
        run(small, state, y, scratch=1040)


# ---- maths that assumes finite values ----

FINITE = """
#include <metal_stdlib>
using namespace metal;
kernel void test(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) { float v = x[i]; y[i] = EXPRESSION; }
"""
VALUES = np.array([1.5, np.inf, -np.inf, np.nan], "f4")
# (expression, what it is, what it is where there are only finite values)
EXPRESSIONS = [
    ("v != v", [0, 0, 0, 1], [0, 0, 0, 0]),
    ("v == INFINITY", [0, 1, 0, 0], [0, 0, 0, 0]),
    ("isnan(v)", [0, 0, 0, 1], [0, 0, 0, 0]),
    ("isinf(v)", [0, 1, 1, 0], [0, 0, 0, 0]),
    ("isfinite(v)", [1, 0, 0, 0], [1, 1, 1, 1]),
    ("float(any(isnan(float2(v, 1))))", [0, 0, 0, 1], [0, 0, 0, 0]),
    ("float(isnan(half(v)))", [0, 0, 0, 1], [0, 0, 0, 0]),
    ("v - v == 0", [1, 0, 0, 0], [1, 1, 1, 1]),
    ("v * 0", [0, np.nan, np.nan, np.nan], [0, 0, 0, 0]),
]


def evaluate(device, expression, mode):
    options = softmetal.MTLCompileOptions.new()
    options.setMathMode_(mode)
    state, error = pipeline(device, "test", FINITE.replace("EXPRESSION", expression), options)
    assert state is not None, error
    x = device.newBufferWithBytes_length_options_(VALUES.tobytes(), VALUES.nbytes, 0)
    y = device.newBufferWithLength_options_(VALUES.nbytes, 0)
    run(device, state, x, y, threads=len(VALUES))
    return np.frombuffer(y.contents().as_buffer(VALUES.nbytes), "f4")


@pytest.mark.parametrize(("expression", "kept", "assumed"), EXPRESSIONS)
def test_finite_maths(monkeypatch, device, expression, kept, assumed):
    np.testing.assert_array_equal(evaluate(device, expression, softmetal.MTLMathModeFast), kept)
    monkeypatch.setenv("SOFTMETAL_FINITE_MATH", "1")
    np.testing.assert_array_equal(evaluate(device, expression, softmetal.MTLMathModeFast), assumed)


@pytest.mark.parametrize("mode", [softmetal.MTLMathModeSafe, softmetal.MTLMathModeRelaxed])
@pytest.mark.parametrize(("expression", "kept", "assumed"), EXPRESSIONS[:4])
def test_other_modes_keep_nan_and_infinity(monkeypatch, device, expression, kept, assumed, mode):
    monkeypatch.setenv("SOFTMETAL_FINITE_MATH", "1")
    np.testing.assert_array_equal(evaluate(device, expression, mode), kept)


def test_check_warns_where_infinity_is_named(monkeypatch, capsys, tmp_path):
    file = tmp_path / "a.metal"
    file.write_text(FINITE.replace("EXPRESSION", "max(v, -INFINITY)"))
    assert command_line.main(["check", str(file)]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("SOFTMETAL_FINITE_MATH", "1")
    assert command_line.main(["check", str(file)]) == 0
    assert "a.metal:5:" in (said := capsys.readouterr().err)
    assert "use of infinity" in said


def test_the_setting_is_a_flag(monkeypatch, device):
    monkeypatch.setenv("SOFTMETAL_FINITE_MATH", "yes")
    with pytest.raises(SettingError, match="SOFTMETAL_FINITE_MATH='yes' is not 0 or 1"):
        evaluate(device, "v", softmetal.MTLMathModeFast)


# ---- registers ----

LOADED = """
#include <metal_stdlib>
using namespace metal;
{attribute} kernel void loaded(device float* x [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {{
  float kept[{count}];
  for (uint j = 0; j < {count}; j++) kept[j] = x[j * 64 + i];
  threadgroup_barrier(mem_flags::mem_device);
  float sum = simd_sum(kept[i % {count}]);
  for (uint j = 0; j < {count}; j++) x[j * 64 + i] = kept[j] * sum;
}}
"""


def threads_of(device, count, attribute="", wanted=0):
    text = LOADED.format(count=count, attribute=attribute)
    library, error = device.newLibraryWithSource_options_error_(text, None, None)
    assert library is not None, error
    descriptor = softmetal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(library.newFunctionWithName_("loaded"))
    descriptor.setMaxTotalThreadsPerThreadgroup_(wanted)
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    state, error = make(descriptor, 0, None, None)
    assert state is not None, error
    return state.maxTotalThreadsPerThreadgroup()


@pytest.mark.parametrize("profile", ["apple-m1", "apple-m3-max", "apple-m5", ""])
def test_registers_limit_threadgroups(device_of, profile):
    device = device_of(profile)
    found = [threads_of(device, count) for count in (4, 70, 400)]
    assert found[0] == 1024
    if not profile:
        assert found == [1024] * 3
        return
    assert 384 < found[1] < 1024
    assert found[2] == 384  # what does not fit is spilled
    declared = "[[max_total_threads_per_threadgroup(768)]]"
    assert threads_of(device, 400, declared) == 768
    assert threads_of(device, 400, wanted=896) == 896


def test_the_model_of_registers_can_be_replaced(device_of, monkeypatch):
    monkeypatch.setattr(registers, "most_threads", lambda count: 64 if count else 0)
    assert threads_of(device_of("apple-m1"), 4) == 64


@pytest.mark.parametrize(
    ("count", "threads"),
    [(0, 1024), (52, 1024), (53, 896), (64, 832), (104, 512), (128, 384), (1000, 384)],
)
def test_threads_by_registers(count, threads):
    assert registers.most_threads(count) == threads
