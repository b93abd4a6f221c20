"""Names, values and selectors are Apple's and PyObjC's own."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import softmetal
from softmetal import mps
from softmetal.api import enums, foundation, objc, objects

ROOT = Path(__file__).parent.parent.parent
API = ROOT / "src" / "softmetal" / "api"

# NSObject's own methods, which the list of Metal's selectors does not hold.
NSOBJECT = {"alloc", "new", "init", "copy", "retain", "release", "autorelease", "isEqual:",
            "description", "isKindOfClass:", "respondsToSelector:",
            "conformsToProtocol:"}  # fmt: skip
ALLOWED = {
    "libraryDataContents",  # private to Apple, and used by real clients (tinygrad)
    "newComputePipelineStateWithDescriptor:error:",  # private to Apple, and used by real clients
    *("beginScope", "endScope", "commandQueue"),  # MTLCaptureScope's, kept in a header of its own
}


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_enumerations_are_those_of_pyobjc(metal_wheel):
    generate = script("generate_enums")
    text = generate.metadata(metal_wheel)
    theirs = generate.values(text)
    ours = {n: v for n, v in vars(enums).items() if n.startswith("MTL") and isinstance(v, int)}
    shared = ours.keys() & theirs.keys()
    assert {n: ours[n] for n in shared} == {n: theirs[n] for n in shared}
    assert len(shared) > 300
    # An older or newer PyObjC has a few names less or more; ours must not invent any.
    assert len(ours.keys() - theirs.keys()) <= 10


def test_enumeration_types_can_be_called():
    assert softmetal.MTLPipelineOption(0) == 0
    assert softmetal.MTLResourceOptions(32) == softmetal.MTLResourceStorageModePrivate
    assert softmetal.MTLIndirectCommandType(softmetal.MTLIndirectCommandTypeConcurrentDispatch)


def test_mps_data_types_are_those_of_pyobjc(mps_wheel):
    with zipfile.ZipFile(mps_wheel) as wheel:
        text = wheel.read("MetalPerformanceShaders/_metadata.py").decode()
    theirs = dict(re.findall(r"\$(MPSDataType\w+)@(\d+)", text))
    for name in mps.__all__:
        if name.startswith("MPSDataType") and name != "MPSDataType":
            assert getattr(mps, name) == int(theirs[name]), name


def public_classes() -> list[type]:
    values = (getattr(softmetal, name) for name in softmetal.__all__ if name.startswith("MTL"))
    return [v for v in values if inspect.isclass(v) and issubclass(v, objects.Object)]


def public_methods(owner: type) -> list[str]:
    return [
        name for name, value in inspect.getmembers(owner)
        if callable(value) and not name.startswith("_")
    ]  # fmt: skip


@pytest.mark.parametrize("owner", public_classes(), ids=lambda c: c.__name__)
def test_every_public_method_is_a_selector(owner, selectors):
    spelled = {name.replace("_", ":") for name in public_methods(owner)}
    assert spelled - selectors - NSOBJECT - ALLOWED == set()


def test_every_method_has_its_selector_above_it():
    """`# MTL: -a:b:` stands above `def a_b_`, and every public method of an MTL class has one."""
    for path in API.glob("*.py"):
        for owner, body in re.findall(
            r"^class (MTL\w+|Capabilities)[^\n]*:\n((?:[ \n][^\n]*\n|\n)*)",
            path.read_text(),
            re.MULTILINE,
        ):
            for comment, name in re.findall(
                r"((?:^    #[^\n]*\n|^    @classmethod\n)*)^    def ([a-zA-Z]\w*)\(",
                body,
                re.MULTILINE,
            ):
                stated = re.search(r"# MTL: [-+]([\w:]+)", comment)
                if stated:
                    assert stated.group(1).replace(":", "_") == name, f"{path.name}: {owner}.{name}"
                else:
                    assert name in DERIVED, f"{path.name}: no selector above {owner}.{name}"


# Methods that are spelled out though they are a property's getter or setter, or are not Apple's.
DERIVED = {
    *("storageMode", "setStorageMode_", "cpuCacheMode", "setCpuCacheMode_", "hazardTrackingMode"),
    *("setHazardTrackingMode_", "fastMathEnabled", "setFastMathEnabled_", "libraryDataContents"),
    *("copy",),
}


def test_public_names():
    assert softmetal.__all__[:3] == ["checking", "declare_extent", "install"]
    for name in softmetal.__all__:
        assert getattr(softmetal, name) is not None
    assert set(softmetal.__all__) <= set(dir(softmetal))
    with pytest.raises(AttributeError):
        _ = softmetal.nonsense


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("MTLPixelFormatRGBA8Unorm", "textures and samplers are not supported"),
        ("MTLRenderPassDescriptor", "rendering is not supported"),
        ("MTL4CommandQueueDescriptor", "Metal 4's command model is not supported"),
        ("MTLVisibleFunctionTableDescriptor", "function tables"),
        ("MTLNonsense", "compute part"),
    ],
)
def test_a_missing_class_or_constant_says_why(name: str, why: str):
    with pytest.raises(AttributeError, match=rf"softmetal has no {name}: .*{why}"):
        getattr(softmetal, name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("newTextureWithDescriptor_", "textures and samplers are not supported"),
        ("newAccelerationStructureWithSize_", "ray tracing is not supported"),
        ("newMTL4CommandQueue", "Metal 4's command model is not supported"),
        ("newDynamicLibrary_error_", "dynamic libraries are not supported"),
        ("newIOCommandQueueWithDescriptor_error_", "IO command queues are not supported"),
        ("newNonsense", "compute part"),
    ],
)
def test_a_missing_method_says_why(name: str, why: str):
    device = softmetal.MTLCreateSystemDefaultDevice()
    assert not hasattr(device, name)
    assert not device.respondsToSelector_(name.replace("_", ":"))
    with pytest.raises(AttributeError, match=rf"softmetal's MTLDevice has no '{name}': .*{why}"):
        getattr(device, name)


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("MTLBuffer", "newTextureWithDescriptor_offset_bytesPerRow_", "textures and samplers"),
        ("MTLCommandBuffer", "renderCommandEncoderWithDescriptor_", "rendering is not"),
        ("MTLComputeCommandEncoder", "setTexture_atIndex_", "textures and samplers"),
        ("MTLBlitCommandEncoder", "generateMipmapsForTexture_", "textures and samplers"),
    ],
)
def test_missing_methods_of_commands_and_buffers_say_why(kind: str, name: str, why: str):
    device = softmetal.MTLCreateSystemDefaultDevice()
    commands = device.newCommandQueue().commandBuffer()
    items = {
        "MTLBuffer": lambda: device.newBufferWithLength_options_(4, 0),
        "MTLCommandBuffer": lambda: commands,
        "MTLComputeCommandEncoder": commands.computeCommandEncoder,
        "MTLBlitCommandEncoder": commands.blitCommandEncoder,
    }
    item = items[kind]()
    assert not hasattr(item, name)
    assert not item.respondsToSelector_(name.replace("_", ":"))
    with pytest.raises(AttributeError, match=rf"softmetal's {kind} has no '{name}': {why}"):
        getattr(item, name)


def test_the_page_of_deviations_is_fresh():
    assert (ROOT.parent / "docs" / "reference" / "deviations.md").read_text() == script(
        "deviations"
    ).page()


def test_structures_behave_as_pyobjcs():
    size = softmetal.MTLSizeMake(1, 2, 3)
    width, _, depth = size
    assert (width, depth) == (1, 3)
    size.height = 7
    assert size == (1, 7, 3)
    assert size == softmetal.MTLSize(width=1, height=7, depth=3)
    assert repr(size) == "<Metal.MTLSize width=1 height=7 depth=3>"
    assert softmetal.MTLSize() == (0, 0, 0)
    for bad in ((1, 2, 3, 4), ("1", 1, 1), (None, 1, 1)):
        with pytest.raises(TypeError):
            softmetal.MTLSize(*bad)
    for number in (8, 8.0, 8.75, np.uint32(8), np.float32(8), np.uint8(8)):
        size = softmetal.MTLSizeMake(number, 1, 1)
        assert size == (8, 1, 1)
        assert all(type(value) is int for value in size)
    with pytest.raises(TypeError):
        softmetal.MTLSize(wide=1)


def test_descriptors_copy_and_reset():
    descriptor = softmetal.MTLComputePipelineDescriptor.alloc().init()
    descriptor.setLabel_("a")
    twin = descriptor.copy()
    twin.setLabel_("b")
    assert (descriptor.label(), twin.label()) == ("a", "b")
    descriptor.reset()
    assert descriptor.label() is None
    with pytest.raises(AttributeError, match="no property"):
        descriptor.setNonsense_(1)


# ---- what published programs import ----


def test_a_star_import_has_the_constants():
    names: dict[str, object] = {}
    exec("from softmetal import *", names)
    assert names["MTLResourceStorageModeShared"] == 0
    assert names["MTLSizeMake"] is softmetal.MTLSizeMake
    assert names["NSObject"] is softmetal.NSObject
    assert len([name for name in names if name.startswith("MTL")]) > 300


def test_stand_ins(monkeypatch):
    for name in ("Metal", "MetalPerformanceShaders", "Foundation", "Cocoa", "libdispatch", "objc"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    softmetal.install(force=True)
    from Cocoa import NSURL
    from Foundation import NSObject
    from Metal import MPSMatrix

    assert (NSURL, MPSMatrix) == (softmetal.NSURL, mps.MPSMatrix)

    class Delegate(NSObject):
        def init(self):
            self = objc.super(Delegate, self).init()
            self.calls = 3
            return self

    assert Delegate.alloc().init().calls == 3
    for name in ("Metal", "MetalPerformanceShaders", "Foundation", "Cocoa", "libdispatch", "objc"):
        monkeypatch.delitem(sys.modules, name)


def test_factories_of_foundation_give_pythons_types():
    number, text = foundation.NSNumber, foundation.NSString
    made = foundation.NSDictionary.dictionaryWithObjects_forKeys_(
        [number.numberWithInt_(3), number.numberWithFloat_(0.5), number.numberWithBool_(True)],
        foundation.NSArray.arrayWithArray_(("N", "F", text.stringWithUTF8String_(b"B"))),
    )
    assert made == {"N": 3, "F": 0.5, "B": True}
    assert [type(value) for value in made.values()] == [int, float, bool]


def test_log_and_pools(capsys):
    foundation.NSLog("%d of %@: 100%%", 3, "five")
    foundation.NSLog("100% or 100%%")
    assert capsys.readouterr().err == "3 of five: 100%\n100% or 100%\n"
    pool = foundation.NSAutoreleasePool.alloc().init()
    pool.drain()


@pytest.mark.parametrize(
    "question",
    [
        *("supports32BitFloatFiltering", "supports32BitMSAA", "areRasterOrderGroupsSupported"),
        *(
            "supportsBCTextureCompression",
            "supportsRaytracingFromRender",
            "supportsQueryTextureLOD",
        ),
        "maxArgumentBufferSamplerCount",
    ],
)
def test_a_device_says_that_it_does_not_render(device, question):
    assert not getattr(device, question)()
    assert not device.supportsTextureSampleCount_(4)


def test_protocols_and_selectors(device):
    buffer = device.newBufferWithLength_options_(16, 0)
    cases = {"MTLBuffer": True, "MTLResource": True, "NSObject": True, "MTLTexture": False}
    for name, expected in cases.items():
        assert buffer.conformsToProtocol_(objc.protocolNamed(name)) == expected
    with pytest.raises(objc.ProtocolError, match="MTLNonsense"):
        objc.protocolNamed("MTLNonsense")
    assert buffer.respondsToSelector_("setLabel:")
    assert buffer.respondsToSelector_(b"contents")
    assert not buffer.respondsToSelector_("setNonsense:")
    assert buffer.isKindOfClass_(softmetal.MTLBuffer)
    assert objc.registerMetaDataForSelector(b"NSObject", b"contents", {"retval": {}}) is None


PYOBJC_NUMBERS = [np.uint8, np.uint32, np.int64, np.float32, float, int]
SCALE = (
    "kernel void scale(device uint* x, constant uint& n, threadgroup uint* t [[threadgroup(0)]],"
    " uint i [[thread_position_in_grid]]) { x[i] = n * i; }"
)


@pytest.mark.parametrize("number", PYOBJC_NUMBERS)
def test_numbers_of_every_type_are_arguments(device, number):
    """PyObjC takes any number for NSUInteger; sums of addresses and numpy's would overflow."""
    library, error = device.newLibraryWithSource_options_error_(SCALE, None, None)
    assert library is not None, error
    function = library.newFunctionWithName_("scale")
    pipeline, _ = device.newComputePipelineStateWithFunction_error_(function, None)
    x = device.newBufferWithLength_options_(number(128), number(0))
    y = device.newBufferWithBytes_length_options_(bytes(128), number(128), number(0))
    commands = device.newCommandQueueWithMaxCommandBufferCount_(number(4)).commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffers_offsets_withRange_([x], [number(0)], (number(0), number(1)))
    encoder.setBufferOffset_atIndex_(number(64), number(0))
    encoder.setBuffer_offset_atIndex_(x, number(64), number(0))
    encoder.setBytes_length_atIndex_(np.uint32(3).tobytes(), number(4), number(1))
    encoder.setThreadgroupMemoryLength_atIndex_(number(64), number(0))
    one = (number(16), number(1), number(1))
    encoder.dispatchThreads_threadsPerThreadgroup_(one, one)
    groups = softmetal.MTLSizeMake(number(1), 1, 1)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_(groups, one)
    encoder.endEncoding()
    blit = commands.blitCommandEncoder()
    blit.fillBuffer_range_value_(x, (number(0), number(64)), number(1))
    copy = blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_
    copy(x, number(64), y, number(0), number(64))
    blit.endEncoding()
    event = device.newSharedEvent()
    commands.encodeSignalEvent_value_(event, number(5))
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None
    assert event.signaledValue() == 5
    assert bytes(x.contents().as_buffer(number(64))) == bytes([1]) * 64
    assert np.array_equal(np.frombuffer(y.contents().as_buffer(64), np.uint32), np.arange(16) * 3)


def test_a_pipeline_from_a_descriptor_alone(device):
    library, _ = device.newLibraryWithSource_options_error_(SCALE, None, None)
    descriptor = softmetal.MTLComputePipelineDescriptor.alloc().init()
    descriptor.setComputeFunction_(library.newFunctionWithName_("scale"))
    pipeline, error = device.newComputePipelineStateWithDescriptor_error_(descriptor, None)
    assert error is None
    assert pipeline.maxTotalThreadsPerThreadgroup() > 0


def test_contents_are_a_list_of_unknown_length(device):
    """As objc.varlist: elements are byte strings of length 1, and the end must be given."""
    buffer = device.newBufferWithLength_options_(32, 0)
    memory = buffer.contents()
    memory.as_buffer(32)[:] = bytes(range(32))
    assert memory[28:32] == (b"\x1c", b"\x1d", b"\x1e", b"\x1f")
    assert memory[:2] == memory.as_tuple(count=2) == (b"\0", b"\1")
    assert memory[5:3] == ()
    assert (memory[3], memory[np.int64(3)]) == (b"\3", b"\3")
    memory[0:2] = [b"\x09", bytearray(b"\x08")]
    memory[4] = b"\4"
    assert bytes(memory.as_buffer(5)) == bytes((9, 8, 2, 3, 4))
    for bad in (slice(0, 33), 32, -1, slice(-4, 4), slice(0, -1), slice(3, None), slice(0, 8, 2)):
        with pytest.raises(ValueError, match=r"pass|give|ask"):
            memory[bad]
    for place, value in ((0, 5), (slice(0, 2), b"ab"), (slice(0, 2), [b"a"]), (0, b"ab")):
        with pytest.raises(ValueError, match="byte"):
            memory[place] = value
