"""The one table of signatures against its three sources, each of which is complete by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import tinygrad_bindings

from softmetal.bridge import pyobjc
from softmetal.bridge.classes import bridged_classes
from softmetal.native import encoding, headers, signatures

SCRIPTS = Path(__file__).parents[2] / "scripts"
# PyObjC declares these otherwise than Apple's headers, which the other two sources agree with.
PYOBJC_DIFFERS = {
    "concurrentDispatchThreadgroups:threadsPerThreadgroup:",  # structures as numbers
    "concurrentDispatchThreads:threadsPerThreadgroup:",
    "newComputePipelineStateWithDescriptor:options:reflection:error:",  # not marked as a result
    "newComputePipelineStateWithFunction:options:reflection:error:",
}
CTYPES = {
    "None": "v", "NSUInteger": "Q", "NSInteger": "q", "BOOL": "Z", "uint64_t": "Q", "uint32_t": "I",
    "uint8_t": "C", "ctypes.c_void_p": "^", "NSRange": "{2}", "MTLSize": "{3}", "CFTimeInterval": "d",
    "MTLSizeAndAlign": "{2}", "MTLResourceID": "{1}", "MTLTimestamp": "Q", "NSTimeInterval": "d",
}  # fmt: skip


def test_is_what_the_generator_writes(mlx_include, metal_wheel):
    page = subprocess.run(
        [sys.executable, str(SCRIPTS / "generate_native.py"),
         str(mlx_include / "metal_cpp" / "Metal"), str(metal_wheel)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert page == Path(signatures.__file__).read_text(), "run softmetal/scripts/generate_native.py"


def test_every_method_has_a_signature():
    """Methods of softmetal's that no row has would be called with wrong registers."""
    without = {
        f"{kind.__name__} {selector}"
        for kind in bridged_classes()
        if kind.__name__.startswith("MTL")
        for name in dir(kind)
        if not name.startswith("_") and hasattr(kind, name)
        for selector in [name.replace("_", ":")]
        if encoding.find((base.__name__ for base in kind.__mro__), selector) is None
    }
    python_only = {"properties", "retain", "release", "autorelease", "respondsToSelector:",
                   "isKindOfClass:", "conformsToProtocol:"}  # fmt: skip
    extensions = {"newComputePipelineStateWithDescriptor:error:"}
    assert {w for w in without if w.split()[1] not in python_only | extensions} == set()


def plain(kind: str) -> str:
    """A kind as the other sources can tell it: an address is an address, an object an object."""
    if kind[0] in "*&^o":
        return "^"
    return "?" if kind[0] == "?" else kind


def test_agrees_with_pyobjc():
    compared = 0
    for line in pyobjc.ROWS.splitlines():
        owner, selector, *types = line.split(" ")
        owners = [o for o, s in encoding.table() if s == selector and owner in (o, "NSObject")]
        if not owners or selector in PYOBJC_DIFFERS:
            continue
        ours = encoding.encoded(encoding.find(owners, selector), selector).split()
        for mine, theirs in zip(ours, types, strict=True):
            if theirs != ".":
                compared += 1
                assert plain(mine) in _pyobjc(theirs), (selector, mine, theirs)
    assert compared > 400


def _pyobjc(text: str) -> set[str]:
    """PyObjC does not always tell signed numbers from unsigned ones."""
    if text.startswith("@?"):
        return {"?"}
    bare = re.sub(r"^[onN]?(.*?)(\[.*\])?$", r"\1", text)
    if bare.startswith("^"):
        return {"^"}
    if bare.startswith("{"):
        return {f"{{{len(bare.partition('=')[2]) - 1}}}"}
    numbers = {
        "Q": {"Q", "q"},
        "q": {"Q", "q"},
        "I": {"I", "Q"},
        "z": {"C"},
        "t": {"C"},
        "Z": {"Z"},
    }
    return numbers.get(bare, {bare})


def test_agrees_with_tinygrads_bindings():
    """They are generated from Apple's headers by other means."""
    text = tinygrad_bindings().read_text()
    enums = set(re.findall(r"^(\w+): TypeAlias = NSU?Integer", text, re.MULTILINE))
    compared = 0
    for owner, body in re.findall(
        r"^(MTL\w+)\._(?:class)?methods_ = \[\n(.*?)^\]", text, re.M | re.S
    ):
        for selector, result, arguments in re.findall(
            r"\('([^']+)', (.+?), \[(.*?)\](?:, True)?\)", body
        ):
            types = encoding.table().get((owner, selector))
            if types is None:
                continue
            theirs = [result, *(part for part in re.split(r", (?![^\[]*\])", arguments) if part)]
            assert len(types) == len(theirs), (owner, selector)
            for mine, other in zip(types, theirs, strict=True):
                compared += 1
                if not _alike(encoding.kind(mine), mine, other, enums):
                    pytest.fail(f"[{owner} {selector}]: {mine} here, {other} there")
    assert compared > 500


def _alike(kind: str, mine: str, theirs: str, enums: set[str]) -> bool:
    if theirs in CTYPES:
        return plain(kind) == CTYPES[theirs]
    if theirs in enums:
        return kind in ("Q", "q")
    if theirs.startswith(("c.POINTER", "ctypes.POINTER")) or "Handler" in theirs:
        return plain(kind) in ("^", "?")
    return kind == "@" or plain(kind) == "^" or kind[0] == "?"


def test_the_header_names_every_class():
    header = headers.metal_header()
    for owner, _ in encoding.table():
        kind = "protocol" if owner in headers.PROTOCOLS else "interface"
        assert f"@{kind} {owner} " in header
