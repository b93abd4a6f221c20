"""Libraries, function constants, reflection, pipelines, archives and printing."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from metal_programs import SOURCE, Program, read

import softmetal
from softmetal.api import libdispatch
from softmetal.api.foundation import NSURL, NSData
from softmetal.errors import ValidationError


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


def compile_one(device, source, options=None):
    library, error = device.newLibraryWithSource_options_error_(source, options, None)
    assert library is not None, error
    return library


def run_scaled(program, values):
    x, y = program.buffer(np.arange(10, dtype="i4")), program.buffer(np.zeros(10, "i4"))
    pipeline = program.pipeline("scaled", values)

    def step(encoder):
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(x, 0, 0)
        encoder.setBuffer_offset_atIndex_(y, 0, 2)
        encoder.dispatchThreads_threadsPerThreadgroup_(program.size(10), program.size(10))

    program.run(step)
    return read(y)


@pytest.mark.metal
def test_names_and_functions(program, metal):
    library = program.library
    assert sorted(library.functionNames()) == sorted(
        ["add_one", "times", "scaled", "shifted", "reverse", "where", "small"]
    )
    function = library.newFunctionWithName_("add_one")
    assert function.name() == "add_one"
    assert function.functionType() == metal.MTLFunctionTypeKernel
    assert library.newFunctionWithName_("nonsense") is None
    assert len(function.functionConstantsDictionary()) == 0


@pytest.mark.metal
def test_errors_have_the_users_line(device, metal):
    source = (
        "#include <metal_stdlib>\nkernel void k(device float* x [[buffer(0)]]) {\n  x[0] = nope;\n}"
    )
    library, error = device.newLibraryWithSource_options_error_(source, None, None)
    assert library is None
    assert error.domain() == metal.MTLLibraryErrorDomain
    assert error.code() == metal.MTLLibraryErrorCompileFailure
    assert "program_source:3" in error.localizedDescription()
    assert "nope" in str(error)


def constant_steps(values):
    """Three ways to the same constants: (name, how to set `scale` to 7)."""
    number = ctypes.c_int(7)
    return {
        "address": lambda: values.setConstantValue_type_atIndex_(
            ctypes.addressof(number), softmetal.MTLDataTypeInt, 0
        ),
        "bytes": lambda: values.setConstantValue_type_atIndex_(
            bytes(number), softmetal.MTLDataTypeInt, 0
        ),
        "name": lambda: values.setConstantValue_type_withName_(
            number, softmetal.MTLDataTypeInt, "scale"
        ),
        "range": lambda: values.setConstantValues_type_withRange_(
            number, softmetal.MTLDataTypeInt, (0, 1)
        ),
    }


@pytest.mark.parametrize("way", ["address", "bytes", "name", "range"])
def test_function_constants(program, way):
    values = softmetal.MTLFunctionConstantValues.alloc().init()
    constant_steps(values)[way]()
    np.testing.assert_array_equal(run_scaled(program, values), np.arange(10) * 7)
    values.reset()
    number = ctypes.c_int(3)
    values.setConstantValue_type_atIndex_(number, softmetal.MTLDataTypeInt, 0)
    np.testing.assert_array_equal(run_scaled(program, values.copy()), np.arange(10) * 3)


def test_vector_constants(program):
    values = softmetal.MTLFunctionConstantValues.new()
    pair = np.array([1.5, -2], "f4")
    values.setConstantValue_type_atIndex_(pair, softmetal.MTLDataTypeFloat2, 1)
    x, pipeline = program.buffer(np.zeros((5, 2), "f4")), program.pipeline("shifted", values)

    def step(encoder):
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(x, 0, 0)
        encoder.dispatchThreads_threadsPerThreadgroup_((5, 1, 1), (5, 1, 1))

    program.run(step)
    np.testing.assert_array_equal(read(x, "f4").reshape(5, 2), np.tile(pair, (5, 1)))


@pytest.mark.parametrize("byte", [0, 1, 2, 128, 255])
def test_any_byte_but_zero_is_a_true_constant(device, byte):
    source = (
        "constant bool a [[function_constant(0)]]; constant bool2 b [[function_constant(1)]];"
        "kernel void k(device uint* x) { x[0] = uint(a); x[1] = a ? 5 : 6; x[2] = uint(b.y);"
        " x[3] = uint(!a); }"
    )
    library, error = device.newLibraryWithSource_options_error_(source, None, None)
    assert library is not None, error
    values = softmetal.MTLFunctionConstantValues.new()
    values.setConstantValue_type_atIndex_(bytes((byte,)), softmetal.MTLDataTypeBool, 0)
    values.setConstantValue_type_atIndex_(bytes((0, byte)), softmetal.MTLDataTypeBool2, 1)
    make = library.newFunctionWithName_constantValues_error_
    pipeline, error = device.newComputePipelineStateWithFunction_error_(
        make("k", values, None)[0], None
    )
    assert pipeline is not None, error
    x = device.newBufferWithLength_options_(16, 0)
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(x, 0, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    true = int(byte != 0)
    found = np.frombuffer(x.contents().as_buffer(x.length()), np.uint32).tolist()
    assert found == [true, 6 - true, true, 1 - true]


def test_constants_that_do_not_fit(program):
    values = softmetal.MTLFunctionConstantValues.new()
    values.setConstantValue_type_atIndex_(ctypes.c_int64(7), softmetal.MTLDataTypeLong, 0)
    make = program.library.newFunctionWithName_constantValues_error_
    function, error = make("scaled", values, None)
    assert function is None
    assert "`scale`" in error.localizedDescription()
    function, error = make("nonsense", values, None)
    assert function is None
    assert error.code() == softmetal.MTLLibraryErrorFunctionNotFound
    assert "add_one" in error.localizedDescription()
    with pytest.raises(ValidationError, match="scalar"):
        values.setConstantValue_type_atIndex_(b"", softmetal.MTLDataTypeTexture, 0)
    with pytest.raises(ValidationError, match="4 bytes was given 2"):
        values.setConstantValue_type_atIndex_(b"ab", softmetal.MTLDataTypeInt, 0)


def test_a_missing_constant_is_named(program):
    function = program.library.newFunctionWithName_("scaled")
    pipeline, error = program.device.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is None
    assert "scale" in error.localizedDescription()
    constant = function.functionConstantsDictionary()["scale"]
    assert (constant.index(), constant.type()) == (0, softmetal.MTLDataTypeInt)


# ---- reflection ----


def test_reflection(program):
    function = program.library.newFunctionWithName_("times")
    make = program.device.newComputePipelineStateWithFunction_options_reflection_error_
    pipeline, error = make(function, softmetal.MTLPipelineOptionBindingInfo, None, None)
    assert error is None
    x, k = pipeline.reflection().bindings()
    assert (x.name(), x.index(), x.type()) == ("x", 0, softmetal.MTLBindingTypeBuffer)
    assert x.access() == softmetal.MTLBindingAccessReadWrite
    assert k.access() == softmetal.MTLBindingAccessReadOnly
    assert (k.bufferDataSize(), k.bufferAlignment()) == (4, 4)
    assert k.bufferDataType() == softmetal.MTLDataTypeInt
    assert k.isUsed()
    assert [a.name() for a in pipeline.reflection().arguments()] == ["x", "k"]
    scratch = program.pipeline("reverse").reflection().bindings()[1]
    assert scratch.type() == softmetal.MTLBindingTypeThreadgroupMemory
    assert scratch.threadgroupMemoryDataSize() == 4


@pytest.mark.metal
def test_pipeline_properties(program):
    pipeline = program.pipeline("small", indirect=True)
    assert pipeline.threadExecutionWidth() == 32
    assert pipeline.maxTotalThreadsPerThreadgroup() == 64
    assert pipeline.staticThreadgroupMemoryLength() == 0
    assert pipeline.supportIndirectCommandBuffers()


def test_limits_from_descriptor_and_options(program, device):
    descriptor = softmetal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(program.library.newFunctionWithName_("add_one"))
    descriptor.setMaxTotalThreadsPerThreadgroup_(128)
    descriptor.setLabel_("mine")
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    pipeline, _ = make(descriptor, 0, None, None)
    assert pipeline.maxTotalThreadsPerThreadgroup() == 128
    assert pipeline.label() == "mine"
    descriptor.setMaxTotalThreadsPerThreadgroup_(4096)
    with pytest.raises(ValidationError, match="4096"):
        make(descriptor, 0, None, None)
    with pytest.raises(ValidationError, match="needs a function"):
        make(softmetal.MTLComputePipelineDescriptor.new(), 0, None, None)


def test_too_much_threadgroup_memory(device):
    source = """#include <metal_stdlib>
    using namespace metal;
    kernel void k(device float* x [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
      threadgroup float t[9000]; t[i] = i; threadgroup_barrier(mem_flags::mem_threadgroup);
      x[i] = t[8999 - i]; }"""
    function = compile_one(device, source).newFunctionWithName_("k")
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is None
    assert "36000" in error.localizedDescription()


# ---- options ----

PROBE = """#include <metal_stdlib>
kernel void k(device int* x [[buffer(0)]]) { x[0] = VALUE; x[1] = __METAL_VERSION__; }"""


def test_macros_and_language_version(program, device):
    options = softmetal.MTLCompileOptions.new()
    options.setPreprocessorMacros_({"VALUE": 42})
    options.setLanguageVersion_(softmetal.MTLLanguageVersion3_1)
    function = compile_one(device, PROBE, options).newFunctionWithName_("k")
    pipeline, _ = device.newComputePipelineStateWithFunction_error_(function, None)
    x = program.buffer(np.zeros(2, "i4"))

    def step(encoder):
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(x, 0, 0)
        encoder.dispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))

    program.run(step)
    np.testing.assert_array_equal(read(x), [42, 310])


def test_fast_math_and_math_mode_are_one():
    options = softmetal.MTLCompileOptions.alloc().init()
    assert options.fastMathEnabled()
    options.setFastMathEnabled_(0)
    assert options.mathMode() == softmetal.MTLMathModeSafe
    options.setMathMode_(softmetal.MTLMathModeRelaxed)
    assert options.fastMathEnabled()


# ---- data, files, archives, other threads ----


def test_library_data_round_trip(program, device, tmp_path):
    data = program.library.libraryDataContents()
    assert data.bytes().tobytes()[:4] == b"MTLB"
    assert data.length() == len(data)
    path = tmp_path / "x.metallib"
    path.write_bytes(data)
    given = libdispatch.dispatch_data_create(bytes(data), len(data), None, None)
    for library, error in (
        device.newLibraryWithData_error_(given, None),
        device.newLibraryWithData_error_(NSData(data), None),
        device.newLibraryWithFile_error_(str(path), None),
        device.newLibraryWithURL_error_(NSURL.fileURLWithPath_(path), None),
    ):
        assert error is None
        assert library.functionNames() == program.library.functionNames()


LOAD = """
import sys, softmetal
device = softmetal.MTLCreateSystemDefaultDevice()
library, error = device.newLibraryWithFile_error_(sys.argv[1], None)
pipeline, error = device.newComputePipelineStateWithFunction_error_(
    library.newFunctionWithName_("add_one"), None)
print(pipeline.reflection().bindings()[0].name(), error)
"""


def test_library_data_in_another_process(program, tmp_path):
    path = tmp_path / "x.metallib"
    path.write_bytes(program.library.libraryDataContents())
    environment = os.environ | {"SOFTMETAL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "x None\n"


@pytest.mark.parametrize("data", [b"", b"MTLB", b"MTLB\1\2\3\4" * 20, b"nonsense"])
def test_bad_library_data(device, data):
    library, error = device.newLibraryWithData_error_(data, None)
    assert library is None
    assert error.domain() == softmetal.MTLLibraryErrorDomain


def test_missing_files_and_default_libraries(device, tmp_path):
    library, error = device.newLibraryWithFile_error_(str(tmp_path / "none"), None)
    assert library is None
    assert error.code() == softmetal.MTLLibraryErrorFileNotFound
    assert device.newDefaultLibrary() is None
    library, error = device.newDefaultLibraryWithBundle_error_(None, None)
    assert library is None
    assert "newLibraryWithSource" in error.localizedDescription()


def test_archives(program, device, tmp_path):
    archive, error = device.newBinaryArchiveWithDescriptor_error_(
        softmetal.MTLBinaryArchiveDescriptor.new(), None
    )
    assert error is None
    descriptor = softmetal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(program.library.newFunctionWithName_("add_one"))
    assert archive.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None) == (
        True,
        None,
    )
    url = NSURL.fileURLWithPath_(tmp_path / "kernels.archive")
    assert archive.serializeToURL_error_(url, None) == (True, None)

    stored = softmetal.MTLBinaryArchiveDescriptor.new()
    stored.setUrl_(url)
    again, error = device.newBinaryArchiveWithDescriptor_error_(stored, None)
    assert error is None
    descriptor.setBinaryArchives_([again])
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    only = softmetal.MTLPipelineOptionFailOnBinaryArchiveMiss
    pipeline, error = make(descriptor, only, None, None)
    assert error is None
    assert pipeline.reflection().bindings()[0].name() == "x"
    descriptor.setComputeFunction_(program.library.newFunctionWithName_("where"))
    pipeline, error = make(descriptor, only, None, None)
    assert pipeline is None
    assert "`where`" in error.localizedDescription()

    # What is added to an archive goes to the file with what was there.
    assert again.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)[0]
    assert again.serializeToURL_error_(url, None) == (True, None)
    for damaged in (False, True):
        if damaged:
            path = tmp_path / "kernels.archive"
            code = (
                path.read_bytes().replace(b"\x7fELF", b"\x7fFLE").replace(b".version", b".verzion")
            )
            path.write_bytes(code)
        third, _ = device.newBinaryArchiveWithDescriptor_error_(stored, None)
        descriptor.setBinaryArchives_([third])
        for name in ("add_one", "where"):
            descriptor.setComputeFunction_(program.library.newFunctionWithName_(name))
            assert (make(descriptor, only, None, None)[0] is None) == damaged


@pytest.fixture
def archived(program, device, tmp_path):
    """A descriptor of a kernel, and one of an archive file that holds it."""
    stored = softmetal.MTLBinaryArchiveDescriptor.new()
    archive, _ = device.newBinaryArchiveWithDescriptor_error_(stored, None)
    descriptor = softmetal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(program.library.newFunctionWithName_("add_one"))
    assert archive.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)[0]
    stored.setUrl_(NSURL.fileURLWithPath_(tmp_path / "kernels.archive"))
    assert archive.serializeToURL_error_(stored.url(), None) == (True, None)
    return descriptor, stored


def test_archives_keep_no_file_open(archived, device):
    descriptor, stored = archived
    before = len(os.listdir("/proc/self/fd"))
    archives = [device.newBinaryArchiveWithDescriptor_error_(stored, None)[0] for _ in range(20)]
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    only = softmetal.MTLPipelineOptionFailOnBinaryArchiveMiss
    for archive in archives:
        descriptor.setBinaryArchives_([archive])
        assert make(descriptor, only, None, None)[0] is not None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_checked_kernel_is_found_in_an_archive(archived, device):
    """And compiled with its checks, which the archive's own has not."""
    descriptor, stored = archived
    archive, _ = device.newBinaryArchiveWithDescriptor_error_(stored, None)
    descriptor.setBinaryArchives_([archive])
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    only = softmetal.MTLPipelineOptionFailOnBinaryArchiveMiss
    with softmetal.checking("bounds"):
        pipeline, error = make(descriptor, only, None, None)
    assert error is None
    assert pipeline is not None


def test_an_archive_that_is_replaced_or_removed_while_in_use(archived, device, program):
    descriptor, stored = archived
    archive, _ = device.newBinaryArchiveWithDescriptor_error_(stored, None)
    assert archive.serializeToURL_error_(stored.url(), None) == (True, None)  # another file now
    other = softmetal.MTLComputePipelineDescriptor.new()
    other.setComputeFunction_(program.library.newFunctionWithName_("where"))
    assert archive.addComputePipelineFunctionsWithDescriptor_error_(other, None)[0]
    assert archive.serializeToURL_error_(stored.url(), None) == (True, None)
    assert len(archive._keys()) == 2
    descriptor.setBinaryArchives_([archive])
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    only = softmetal.MTLPipelineOptionFailOnBinaryArchiveMiss
    assert make(descriptor, only, None, None)[0] is not None
    os.unlink(stored.url().path())
    pipeline, error = make(descriptor, only, None, None)
    assert pipeline is None
    assert "no archive holds" in error.localizedDescription()


@pytest.mark.parametrize("which", ["file", "folder"])
def test_an_archive_that_others_can_write_is_not_loaded(archived, device, tmp_path, which):
    _, stored = archived
    (tmp_path / "kernels.archive" if which == "file" else tmp_path).chmod(0o777)
    archive, error = device.newBinaryArchiveWithDescriptor_error_(stored, None)
    assert archive is None
    assert error.code() == softmetal.MTLBinaryArchiveErrorInvalidFile
    assert "can be written by every user" in error.localizedDescription()


# In the record that a ZIP file's directory has of a kernel: where, and what is there instead.
@pytest.mark.parametrize(
    ("at", "value"),
    [(8, b"\1\0"), (10, b"\x08\0"), (10, b"\x4d\0"), (20, b"\xff" * 4), (42, b"\xff" * 4)],
    ids=["encrypted", "deflated", "unknown method", "size", "offset"],
)
def test_an_archive_with_wrong_records(program, device, tmp_path, at, value):
    """What cannot be read is compiled."""
    stored = softmetal.MTLBinaryArchiveDescriptor.new()
    archive, _ = device.newBinaryArchiveWithDescriptor_error_(stored, None)
    descriptor = softmetal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(program.library.newFunctionWithName_("add_one"))
    assert archive.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)[0]
    path = tmp_path / "kernels.archive"
    stored.setUrl_(NSURL.fileURLWithPath_(path))
    assert archive.serializeToURL_error_(stored.url(), None)[0]
    data = bytearray(path.read_bytes())
    record = data.rindex(b"PK\1\2")
    data[record + at : record + at + len(value)] = value
    path.write_bytes(data)
    damaged, error = device.newBinaryArchiveWithDescriptor_error_(stored, None)
    if damaged is None:
        assert error.domain() == softmetal.MTLBinaryArchiveDomain
        return
    descriptor.setBinaryArchives_([damaged])
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    assert make(descriptor, softmetal.MTLPipelineOptionNone, None, None)[1] is None
    assert damaged.serializeToURL_error_(stored.url(), None) == (True, None)


def test_archives_that_are_none(device, tmp_path):
    (tmp_path / "bad").write_bytes(b"not an archive")
    for name in ("bad", "missing"):
        descriptor = softmetal.MTLBinaryArchiveDescriptor.new()
        descriptor.setUrl_(NSURL.fileURLWithPath_(tmp_path / name))
        archive, error = device.newBinaryArchiveWithDescriptor_error_(descriptor, None)
        assert archive is None
        assert error.domain() == softmetal.MTLBinaryArchiveDomain


def test_completion_handlers(program, device):
    done, found = threading.Event(), []

    def keep(*outcome):
        found.append(outcome)
        done.set()

    function = program.library.newFunctionWithName_("add_one")
    calls = (
        lambda: device.newLibraryWithSource_options_completionHandler_(SOURCE, None, keep),
        lambda: device.newComputePipelineStateWithFunction_completionHandler_(function, keep),
        lambda: device.newComputePipelineStateWithFunction_options_completionHandler_(
            function, 0, keep
        ),
        lambda: program.library.newFunctionWithName_constantValues_completionHandler_(
            "add_one", None, keep
        ),
    )
    for call in calls:
        done.clear()
        call()
        assert done.wait(60)
        assert found[-1][0] is not None
        assert found[-1][-1] is None


# ---- printing ----

PRINTING = """#include <metal_stdlib>
#include <metal_logging>
using namespace metal;
kernel void k(uint i [[thread_position_in_grid]]) {
  os_log log("sub", "cat");
  log.log_debug("debug %u", i);
  log.log_error("error %u", i);
}"""


def print_from_kernel(device, state):
    function = compile_one(device, PRINTING).newFunctionWithName_("k")
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is not None, error
    descriptor = softmetal.MTLCommandBufferDescriptor.new()
    descriptor.setLogState_(state)
    commands = device.newCommandQueue().commandBufferWithDescriptor_(descriptor)
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.dispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()


def test_log_states(device):
    descriptor, lines = softmetal.MTLLogStateDescriptor.new(), []
    descriptor.setLevel_(softmetal.MTLLogLevelError)
    state, error = device.newLogStateWithDescriptor_error_(descriptor, None)
    assert error is None
    state.addLogHandler_(lambda *line: lines.append(line))
    print_from_kernel(device, state)
    assert lines == [("sub", "cat", softmetal.MTLLogLevelError, "error 0")]


def test_lines_without_a_log_state_go_to_standard_error(device, capsys):
    print_from_kernel(device, None)
    assert capsys.readouterr().err == "debug 0\nerror 0\n"


# ---- the device itself ----


@pytest.mark.metal
def test_device_properties(device, metal):
    assert device.hasUnifiedMemory() is (os.environ.get("SOFTMETAL_DEVICE", "cpu") == "cpu")
    assert device.maxThreadsPerThreadgroup().width == 1024
    assert device.maxThreadgroupMemoryLength() == 32768
    assert device.recommendedMaxWorkingSetSize() > 0
    assert device.supportsFamily_(metal.MTLGPUFamilyApple7)
    assert metal.MTLCopyAllDevices()[0].name() == device.name()
    assert device.argumentBuffersSupport() == metal.MTLArgumentBuffersTier2


def test_an_unknown_device_is_refused():
    code = "import softmetal; softmetal.MTLCreateSystemDefaultDevice()"
    environment = os.environ | {"SOFTMETAL_DEVICE": "toaster"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "'toaster' is not a device: give 'cpu', 'discrete', 'cuda:0' or 'null'" in done.stderr
