"""Names, values and selectors are Apple's and PyObjC's own."""

from __future__ import annotations

import importlib.util
import inspect
import re
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import softmetal
from softmetal import mps
from softmetal.api import enums, objects

ROOT = Path(__file__).parent.parent.parent
API = ROOT / "src" / "softmetal" / "api"

# NSObject's own methods, which the list of Metal's selectors does not hold.
NSOBJECT = {"alloc", "new", "init", "copy", "retain", "release", "autorelease", "isEqual:",
            "description"}  # fmt: skip
ALLOWED = {
    "libraryDataContents",  # private to Apple, and used by real clients (tinygrad)
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
    assert softmetal.__all__[:2] == ["checking", "install"]
    for name in softmetal.__all__:
        assert getattr(softmetal, name) is not None
    assert set(softmetal.__all__) <= set(dir(softmetal))
    with pytest.raises(AttributeError, match="compute part"):
        _ = softmetal.MTLPixelFormatRGBA8Unorm
    with pytest.raises(AttributeError):
        _ = softmetal.nonsense


def test_the_page_of_deviations_is_fresh():
    assert (ROOT.parent / "docs" / "deviations.md").read_text() == script("deviations").page()


def test_structures_behave_as_pyobjcs():
    size = softmetal.MTLSizeMake(1, 2, 3)
    width, _, depth = size
    assert (width, depth) == (1, 3)
    size.height = 7
    assert size == (1, 7, 3)
    assert size == softmetal.MTLSize(width=1, height=7, depth=3)
    assert repr(size) == "<Metal.MTLSize width=1 height=7 depth=3>"
    assert softmetal.MTLSize() == (0, 0, 0)
    for bad in ((1, 2, 3, 4), (1.5, 1, 1)):
        with pytest.raises(TypeError):
            softmetal.MTLSize(*bad)
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
