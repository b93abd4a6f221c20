"""Names and numbers of the API against the metadata in PyObjC's own wheel for Core ML."""

from __future__ import annotations

import importlib
import re
from zipfile import ZipFile

import pytest
from wheels import wheel

import softcoreml

softcoreml.install()
CoreML = importlib.import_module("CoreML")

# Classes and selectors that are not here: model updates, collections, custom layers, and pictures
# of other frameworks.
ABSENT_CLASSES = {
    "MLModelCollection",
    "MLModelCollectionEntry",
    "MLUpdateProgressHandlers",
    "MLUpdateTask",
    "NSObject",
}
ABSENT = re.compile(
    r"featureValueWith(CGImage|ImageAtURL):|parameterValueForKey:error:|setOptional:|"
    r"modelAssetWithSpecificationData:blobMapping:error$"
)
ABSENT_NUMBERS = re.compile(r"MLTaskState|MLUpdateProgressEvent")


@pytest.fixture(scope="module")
def metadata() -> str:
    with ZipFile(wheel("pyobjc-framework-CoreML")) as file:
        return file.read("CoreML/_metadata.py").decode()


def test_numbers_are_pyobjcs(metadata: str) -> None:
    found = re.search(r'^enums = """(.*?)"""', metadata, re.MULTILINE)
    assert found
    numbers = dict(one.split("@") for one in found[1].strip("$").split("$"))
    assert len(numbers) > 40
    for name, value in numbers.items():
        if not ABSENT_NUMBERS.match(name):
            assert getattr(CoreML, name) == int(value), name


def test_selectors_that_pyobjc_knows_are_methods(metadata: str) -> None:
    entries = re.findall(r'\br\(\s*b"(\w+)",\s*b"([^"]+)"', metadata)
    assert len(entries) > 40
    missing = []
    for owner, selector in entries:
        if owner in ABSENT_CLASSES or ABSENT.match(selector):
            continue
        if not callable(getattr(getattr(CoreML, owner), selector.replace(":", "_"), None)):
            missing.append(f"{owner} {selector}")
    assert missing == []


def test_constants_are_there(metadata: str) -> None:
    found = re.search(r'^constants = """(.*?)"""', metadata, re.MULTILINE)
    assert found
    absent = {
        "MLFeatureValueImageOptionCropAndScale",
        "MLFeatureValueImageOptionCropRect",
        "MLModelCollectionDidChangeNotification",
    }
    for name in set(found[1].strip("$").split("$")) - absent:
        assert isinstance(getattr(CoreML, name), str)
