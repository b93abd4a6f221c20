"""What PyObjC's bridge would refuse is refused, and what it takes passes."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import softmetal
from softmetal import bridge, mps
from softmetal.api import objc
from softmetal.bridge import runtime, signatures
from softmetal.bridge.classes import bridged_classes
from softmetal.errors import BridgeError, SettingError

SCRIPTS = Path(__file__).parents[2] / "scripts"
SOURCE = """
constant uint c [[function_constant(0)]];
kernel void f(device uint* x [[buffer(0)]], constant uint& n [[buffer(1)]],
              uint i [[thread_position_in_grid]]) { x[i] = n + c; }
"""


class Things:
    """One of each object that the calls need."""

    def __init__(self, device):
        self.device = device
        self.library, _ = device.newLibraryWithSource_options_error_(SOURCE, None, None)
        self.values = softmetal.MTLFunctionConstantValues.alloc().init()
        self.number = ctypes.c_uint(5)
        type_ = softmetal.MTLDataTypeUInt
        self.values.setConstantValue_type_atIndex_(ctypes.addressof(self.number), type_, 0)
        make = self.library.newFunctionWithName_constantValues_error_
        self.function, _ = make("f", self.values, None)
        self.pipeline, _ = device.newComputePipelineStateWithFunction_error_(self.function, None)
        self.buffer = device.newBufferWithLength_options_(64, 0)
        self.commands = device.newCommandQueue().commandBuffer()
        self.encoder = self.commands.computeCommandEncoder()
        self.descriptor = softmetal.MTLComputePipelineDescriptor.alloc().init()
        self.indirect = softmetal.MTLIndirectCommandBufferDescriptor.alloc().init()
        self.event = device.newSharedEvent()
        self.url = softmetal.NSURL.fileURLWithPath_("/nonexistent")

    @functools.cached_property
    def slot(self):
        self.indirect.setCommandTypes_(softmetal.MTLIndirectCommandTypeConcurrentDispatchThreads)
        make = self.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
        return make(self.indirect, 1, 0).indirectComputeCommandAtIndex_(0)


@pytest.fixture
def things(device, monkeypatch):
    monkeypatch.setattr(objc, "registrations", {})  # of other programs in this process
    with bridge.judging() as judge:
        yield Things(device)
    judge.refused.clear()


STRIDED = np.zeros(16, np.uint8)[::2]

# A call, and what the refusal says: softmetal alone takes all of them, or refuses them otherwise.
REFUSED = {
    # numbers
    "a string as a number": (lambda t: t.encoder.setBuffer_offset_atIndex_(t.buffer, "0", 0), r"argument 1: '0' is not a number"),
    "bytes as a number": (lambda t: t.device.newBufferWithLength_options_(b"4", 0), "argument 0: bytes is not a number"),
    "None as a number": (lambda t: t.encoder.setBuffer_offset_atIndex_(t.buffer, None, 0), "NoneType is not a number"),
    "a negative length": (lambda t: t.device.newBufferWithLength_options_(-1, 0), "-1 is outside 0 to"),
    "a number of 65 bits": (lambda t: t.event.setSignaledValue_(1 << 64), "18446744073709551616 is outside 0 to"),
    "a byte above 127 for a fill": (lambda t: _blit(t).fillBuffer_range_value_(t.buffer, (0, 4), 255), "255 is outside -128 to 127"),
    "an array as a BOOL": (lambda t: t.descriptor.setSupportIndirectCommandBuffers_(np.ones(2)), "neither true nor false"),
    # structures
    "two of three sizes": (lambda t: t.encoder.dispatchThreads_threadsPerThreadgroup_((4, 1), (4, 1, 1)), "2 values for the 3 members of MTLSize"),
    "a number as a size": (lambda t: t.encoder.dispatchThreads_threadsPerThreadgroup_(4, (4, 1, 1)), "4 is not a sequence of the 3 members of MTLSize"),
    "a string in a size": (lambda t: t.encoder.dispatchThreads_threadsPerThreadgroup_(("4", 1, 1), (4, 1, 1)), "a member of MTLSize: '4' is not a number"),
    "a Python range as NSRange": (lambda t: _blit(t).fillBuffer_range_value_(t.buffer, range(3), 0), "3 values for the 2 members of _NSRange"),
    "a size that PyObjC calls an integer": (lambda t: t.slot.concurrentDispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1)), "argument 0: tuple is not a number"),
    "a size without its depth": (lambda t: softmetal.MTLSizeMake(4, 1), "MTLSizeMake: 3 arguments without names are expected, 2"),
    "a size with names": (lambda t: softmetal.MTLSizeMake(width=4, height=1, depth=1), "MTLSizeMake: 3 arguments without names"),
    "a negative size": (lambda t: softmetal.MTLSizeMake(4, -1, 1), "MTLSizeMake, argument 1: -1 is outside"),
    # pointers and buffers
    "an address for bytes": (lambda t: t.encoder.setBytes_length_atIndex_(ctypes.addressof(t.number), 4, 1), "has no bytes"),
    "a string for bytes": (lambda t: t.encoder.setBytes_length_atIndex_("abcd", 4, 1), "'abcd' has no bytes"),
    "None for bytes": (lambda t: t.encoder.setBytes_length_atIndex_(None, 4, 1), "NoneType has no bytes"),
    "too few bytes": (lambda t: t.encoder.setBytes_length_atIndex_(b"ab", 4, 1), "a buffer of 2 bytes where the length is 4"),
    "strided bytes": (lambda t: t.device.newBufferWithBytes_length_options_(STRIDED, 8, 0), "not contiguous"),
    "bytes for a constant": (lambda t: t.values.setConstantValue_type_atIndex_(b"\0" * 4, 33, 0), "pass an address"),
    "a ctypes object for a constant": (lambda t: t.values.setConstantValue_type_atIndex_(t.number, 33, 0), "pass an address"),
    "fewer resources than counted": (lambda t: t.encoder.useResources_count_usage_([t.buffer], 2, 1), "1 items where the count is 2"),
    "a resource for an array": (lambda t: t.encoder.useResources_count_usage_(t.buffer, 1, 1), "MTLBuffer is not a sequence"),
    "fewer offsets than the range": (lambda t: t.encoder.setBuffers_offsets_withRange_([t.buffer], [], (0, 1)), "argument 1: 0 items where the count is 1"),
    "an object for a reflection": (lambda t: t.device.newComputePipelineStateWithFunction_options_reflection_error_(t.function, 0, [], None), "no conversion for this pointer"),
    # out-parameters, arity
    "an object for an error": (lambda t: t.library.newFunctionWithName_constantValues_error_("f", t.values, []), "pass None: the value comes back"),
    "no error": (lambda t: t.device.newLibraryWithSource_options_error_(SOURCE, None), "3 arguments are expected, 2 were given"),
    "a named argument": (lambda t: t.device.newBufferWithLength_options_(length=4, options=0), "no named arguments"),
    "one argument too many": (lambda t: t.device.newSharedEvent(0), "0 arguments are expected, 1 were given"),
    # objects
    "a path for a URL": (lambda t: t.device.newLibraryWithURL_error_(Path("x"), None), "a PosixPath where Objective-C expects NSURL"),
    "a string for a URL": (lambda t: t.device.newLibraryWithURL_error_("x", None), "a str where Objective-C expects NSURL"),
    "a path for a string": (lambda t: softmetal.NSURL.fileURLWithPath_(Path("x")), "a PosixPath where Objective-C expects str"),
    "bytes for a string": (lambda t: t.library.newFunctionWithName_(b"f"), "a bytes where Objective-C expects str"),
    "nil for a string": (lambda t: t.library.newFunctionWithName_(None), "nil"),
    "a function for a pipeline": (lambda t: t.encoder.setComputePipelineState_(t.function), "a MTLFunction where Objective-C expects MTLComputePipelineState"),
    "nil for a pipeline": (lambda t: t.encoder.setComputePipelineState_(None), "nil"),
    "an array for a buffer": (lambda t: t.encoder.setBuffer_offset_atIndex_(np.zeros(4), 0, 0), "a ndarray where Objective-C expects MTLBuffer"),
    "a library for a function": (lambda t: t.descriptor.setComputeFunction_(t.library), "a MTLLibrary where Objective-C expects MTLFunction"),
    "an archive for archives": (lambda t: t.descriptor.setBinaryArchives_(t.library), "a MTLLibrary where Objective-C expects list"),
    "a buffer for a matrix": (lambda t: mps.MPSMatrix.alloc().initWithBuffer_descriptor_(t.buffer, t.buffer), "a MTLBuffer where Objective-C expects MPSMatrixDescriptor"),
    # blocks
    "a handler with three parameters": (lambda t: t.device.newComputePipelineStateWithDescriptor_options_completionHandler_(t.descriptor, 0, lambda a, b, c: None), "PyObjC's block has 2 arguments, and the function takes 3"),
    "a handler without parameters": (lambda t: t.commands.addCompletedHandler_(lambda: None), "PyObjC's block has 1 arguments, and the function takes 0"),
    "a built-in function": (lambda t: t.commands.addCompletedHandler_([].append), "no block of a builtin_function_or_method"),
    "two parameters and more": (lambda t: t.event.notifyListener_atValue_block_(softmetal.MTLSharedEventListener.alloc().init(), 1, lambda a, b, *c: None), "takes 2"),
    "a keyword-only parameter": (lambda t: t.commands.addCompletedHandler_(lambda a, *, b: None), "keyword-only"),
    "a buffer as a block": (lambda t: t.commands.addScheduledHandler_(t.buffer), "no block of a MTLBuffer"),
}  # fmt: skip


def _blit(things):
    things.encoder.endEncoding()
    return things.commands.blitCommandEncoder()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(things, name):
    call, text = REFUSED[name]
    with pytest.raises(BridgeError, match=text):
        call(things)


def test_taken(things):
    """A whole program in the ways that PyObjC allows, on a thread of its own for the handler."""
    t = things
    t.encoder.setComputePipelineState_(t.pipeline)
    t.encoder.setBuffer_offset_atIndex_(None, 0, 2)
    t.encoder.setBuffers_offsets_withRange_([t.buffer, None], (np.uint32(0), 0.0), [0, 1])
    t.encoder.setBytes_length_atIndex_(np.uint32(2), 4, 1)
    t.encoder.useResources_count_usage_((t.buffer, t.buffer), 1, 1)
    t.encoder.dispatchThreads_threadsPerThreadgroup_(softmetal.MTLSizeMake(8, 1, 1), (8, 1, 1))
    t.encoder.endEncoding()
    seen = []

    class Handler:
        def __call__(self, commands):
            seen.append("object")

        def method(self, commands, extra=1):
            seen.append("method")

    t.commands.addCompletedHandler_(Handler())
    t.commands.addCompletedHandler_(Handler().method)
    t.commands.addCompletedHandler_(lambda *all_: seen.append(len(all_)))
    t.commands.commit()
    t.commands.waitUntilCompleted()
    assert seen == ["object", "method", 1]
    assert np.frombuffer(t.buffer.contents().as_buffer(32), np.uint32).tolist() == [7] * 8
    assert t.device.newLibraryWithURL_error_(t.url, None)[0] is None


def test_blocks_get_pyobjcs_arguments(things):
    """Metal passes three to this handler, and PyObjC the two that its metadata has."""
    import queue

    answers = queue.SimpleQueue()
    things.descriptor.setComputeFunction_(things.function)
    make = things.device.newComputePipelineStateWithDescriptor_options_completionHandler_
    make(things.descriptor, 0, lambda *given: answers.put(given))
    state, reflection = answers.get(timeout=60)
    assert state is not None
    assert len(reflection.bindings()) == 2


def test_registered_metadata_counts(things):
    size = {"type": b"{MTLSize=QQQ}"}
    selector = b"concurrentDispatchThreads:threadsPerThreadgroup:"
    objc.registerMetaDataForSelector(b"NSObject", selector, {"arguments": {2: size, 3: size}})
    things.slot.concurrentDispatchThreads_threadsPerThreadgroup_((8, 1, 1), (8, 1, 1))


def test_results_have_pyobjcs_shape(things, monkeypatch):
    """A method of softmetal that forgets an out-parameter is found as well."""
    monkeypatch.setattr(type(things.library), "_specialise", lambda *arguments: None)
    with pytest.raises(BridgeError, match="returns a tuple of 2 values"):
        things.library.newFunctionWithName_constantValues_error_("f", things.values, None)


def test_outside_of_the_block_softmetal_is_lenient(device):
    with bridge.judging():
        pass
    assert device.newLibraryWithURL_error_("/nonexistent", None)[0] is None


PROGRAM = """
import softmetal
device = softmetal.MTLCreateSystemDefaultDevice()
print(hasattr(device, "architecture"), hasattr(device, "newLogStateWithDescriptor_error_"))
device.newBufferWithLength_options_("1", 0)
"""


@pytest.mark.parametrize(
    ("macos", "found"), [("13", "False False"), ("14", "True False"), ("", "True True")]
)
def test_a_program_by_environment(monkeypatch, macos, found):
    monkeypatch.setenv("SOFTMETAL_STRICT", "bridge")
    monkeypatch.setenv("SOFTMETAL_MACOS", macos)
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout == f"{found}\n"
    assert "BridgeError: MTLDevice newBufferWithLength:options:, argument 0" in ran.stderr


def test_protocols_are_not_names_of_the_module(monkeypatch):
    """`isinstance(x, Metal.MTLBuffer)` works with softmetal only."""
    monkeypatch.setenv("SOFTMETAL_STRICT", "bridge")
    text = "import softmetal\nsoftmetal.MTLHeapDescriptor\nsoftmetal.MTLSizeMake(1, 2, 3)\nsoftmetal.MTLBuffer"
    command = [sys.executable, "-c", text]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "has no MTLBuffer, which is a protocol" in ran.stderr


def test_unknown_modes_are_refused(monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "bridge,nonsense")
    with pytest.raises(SettingError, match=r"nonsense.*bridge"):
        softmetal.env.strict()


# ---- the tables ----


def test_the_table_of_signatures_is_fresh(metal_wheel, mps_wheel):
    spec = importlib.util.spec_from_file_location("generate_bridge", SCRIPTS / "generate_bridge.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert Path(signatures.pyobjc.__file__).read_text() == generate.page(metal_wheel, mps_wheel)


def test_every_selector_with_arguments_has_a_signature():
    """From PyObjC's metadata, from our table, or from a descriptor's property."""
    from softmetal.bridge.judge import _property

    plain = {"isEqual:", "isKindOfClass:", "respondsToSelector:", "conformsToProtocol:"}
    for owner in bridged_classes():
        names = [base.__name__ for base in owner.__mro__]
        if not owner.__name__.startswith(("MTL", "MPS")):
            continue
        for name in dir(owner):
            selector = name.replace("_", ":")
            if name.startswith("_") or not name.endswith("_") or selector in plain:
                continue
            if not hasattr(owner, name):  # a method of Apple's, which softmetal explains
                continue
            found = signatures.find(tuple(names), selector) or _property(owner, selector)
            assert found is not None, f"{owner.__name__} {selector}"
            assert len(found.arguments) == selector.count(":"), f"{owner.__name__} {selector}"
            assert "." not in {a.code for a in found.arguments}, f"{owner.__name__} {selector}"


def test_versions_are_of_selectors_that_exist(selectors):
    named = {selector for owner in runtime.SINCE.values() for selector in owner}
    assert named <= selectors
    assert all(
        12 <= v <= runtime.NEWEST for owner in runtime.SINCE.values() for v in owner.values()
    )


@pytest.mark.parametrize("text", ["", "??", "n^v[x]", "{MTLSize=QQQ"])
def test_malformed_types(text):
    with pytest.raises(ValueError, match="not a type"):
        signatures.argument(text)


def test_a_registered_reflection_is_returned(monkeypatch, device):
    library, _ = device.newLibraryWithSource_options_error_(
        "kernel void k(device float* out [[buffer(3)]], device const float* x [[buffer(1)]]) {"
        " out[0] = x[0]; }",
        None,
        None,
    )
    descriptor = softmetal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(library.newFunctionWithName_("k"))
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    wanted = softmetal.MTLPipelineOptionBindingInfo
    assert len(make(descriptor, wanted, None, None)) == 2
    selector = "newComputePipelineStateWithDescriptor:options:reflection:error:"
    result = {"type": b"^@", "type_modifier": b"o"}
    arguments = {2: {"type": b"@"}, 3: {"type": b"Q"}, 4: result, 5: result}
    monkeypatch.setitem(objc.registrations, ("NSObject", selector), {"arguments": arguments})
    state, reflection, error = make(descriptor, wanted, None, None)
    assert (state is not None, error) == (True, None)
    access = {b.index(): b.access() for b in reflection.bindings()}
    assert access == {1: softmetal.MTLBindingAccessReadOnly, 3: softmetal.MTLBindingAccessReadWrite}
    assert make(descriptor, softmetal.MTLPipelineOptionNone, None, None)[1] is None
