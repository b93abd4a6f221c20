"""Metal/Metal.h and the classes that programs name, written from the table of signatures."""

from __future__ import annotations

from collections.abc import Iterator

from softmetal.api import enums
from softmetal.native import encoding, signatures

_STRUCTURES = """\
typedef struct {
  NSUInteger width, height, depth;
} MTLSize;
typedef struct {
  NSUInteger x, y, z;
} MTLOrigin;
typedef struct {
  MTLOrigin origin;
  MTLSize size;
} MTLRegion;
typedef struct {
  NSUInteger size, align;
} MTLSizeAndAlign;
typedef struct {
  uint64_t _impl;
} MTLResourceID;
typedef struct {
  uint32_t location, length;
} MTLIndirectCommandBufferExecutionRange;
typedef struct {
  uint32_t threadgroupsPerGrid[3];
} MTLDispatchThreadgroupsIndirectArguments;
typedef uint64_t MTLTimestamp, MTLGPUAddress;

NS_INLINE MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  MTLSize size = {width, height, depth};
  return size;
}
NS_INLINE MTLOrigin MTLOriginMake(NSUInteger x, NSUInteger y, NSUInteger z) {
  MTLOrigin origin = {x, y, z};
  return origin;
}
"""
_FUNCTIONS = """\
FOUNDATION_EXPORT id<MTLDevice> MTLCreateSystemDefaultDevice(void) NS_RETURNS_RETAINED;
FOUNDATION_EXPORT NSArray<id<MTLDevice>> *MTLCopyAllDevices(void) NS_RETURNS_RETAINED;
"""
_INTEGERS = {"Q": "NSUInteger", "q": "NSInteger", "C": "uint8_t", "I": "uint32_t", "i": "int"}
# The class or protocol that each one extends, as far as programs use what it inherits.
_ABOVE = {
    "MTLBlitCommandEncoder": "MTLCommandEncoder",
    "MTLBuffer": "MTLResource",
    "MTLBufferBinding": "MTLBinding",
    "MTLComputeCommandEncoder": "MTLCommandEncoder",
    "MTLHeap": "MTLAllocation",
    "MTLIndirectCommandBuffer": "MTLResource",
    "MTLResource": "MTLAllocation",
    "MTLSharedEvent": "MTLEvent",
    "MTLThreadgroupBinding": "MTLBinding",
}
PROTOCOLS = frozenset(signatures.PROTOCOLS.split()) | {"MTLBufferBinding", "MTLThreadgroupBinding"}


def _words(types: str) -> list[str]:
    return types.split(",") if types else []


def spelled(type_: str) -> str:
    """A type of the table in Objective-C."""
    name, _, pointer = type_.partition("*")
    if type_.startswith("^("):
        return f"void (^)({', '.join(map(spelled, _words(type_[2:-1])))})"
    if type_ == "void*":
        return "void *"
    if name == "bytes":
        return "const void *"
    if "*" in type_:
        of = spelled(name)
        stars = f"{of} *" if not of.endswith("*") else f"{of}*"
        if pointer == "[o]":
            return stars.replace("* *", "**") if not _is_protocol(name) else f"{of} *"
        objects = _is_object(name)
        return f"const {of} __unsafe_unretained[]" if objects else f"const {of}[]"
    if _is_protocol(name):
        return f"id<{name}>"
    return f"{name} *" if _is_object(name) else name


def _is_protocol(name: str) -> bool:
    return name in PROTOCOLS


def _is_object(name: str) -> bool:
    if name in (
        "id",
        "dispatch_data_t",
        "dispatch_queue_t",
        "MTLAutoreleasedComputePipelineReflection",
    ):
        return False
    return encoding.kind(name) == "@"


def classes() -> list[str]:
    """The classes, not the protocols, that programs make objects of."""
    owners = {owner for owner, _ in encoding.table()} | _named()
    return sorted(name for name in owners if name.startswith("MTL") and name not in PROTOCOLS)


def _named() -> set[str]:
    """Classes that only occur as types."""
    types = {each for types in encoding.table().values() for each in types}
    bare = {each.partition("*")[0] for each in types if not each.startswith("^(")}
    return {each for each in bare if each.startswith("MTL") and each not in signatures.BLOCKS
            and _is_object(each)}  # fmt: skip


def _method(owner: str, selector: str, types: tuple[str, ...], sign: str) -> str:
    result = types[0]
    starts = selector.startswith("init") or (result == owner and sign == "+")
    text = "instancetype" if starts else spelled(result)
    names = selector.split(":")
    if len(types) == 1:
        return f"{sign} ({text}){selector};"
    parts = (
        f"{name}:({spelled(each)})a{i}"
        for i, (name, each) in enumerate(zip(names, types[1:], strict=False))
    )
    return f"{sign} ({text}){' '.join(parts)};"


def _property(selector: str, types: tuple[str, ...], owned: set[str]) -> str | None:
    """A property, for a getter; `isX` is the getter of `x`."""
    if len(types) != 1 or types[0] == "void" or selector.startswith(("new", "init", "copy")):
        return None
    is_ = selector.startswith("is") and types[0] == "BOOL"
    name = selector[2].lower() + selector[3:] if is_ else selector
    if name == selector and name in ("description", "hash"):
        return None
    setter = f"set{name[0].upper()}{name[1:]}:"
    traits = [f"getter={selector}"] if is_ else []
    traits += [] if setter in owned else ["readonly"]
    traits += ["copy"] if types[0] == "NSString" else []
    type_ = spelled(types[0])
    space = "" if type_.endswith("*") else " "
    return f"@property{'(' + ', '.join(traits) + ')' if traits else ''} {type_}{space}{name};"


_ACTIONS = frozenset("""
    commandBuffer commandBufferWithUnretainedReferences computeCommandEncoder blitCommandEncoder
    """.split())  # fmt: skip


def _declarations(owner: str) -> Iterator[str]:
    static = {line.split()[1][1:] for line in signatures.ROWS.splitlines()
              if line.startswith(f"{owner} +")}  # fmt: skip
    rows = {
        selector: types for (each, selector), types in encoding.table().items() if each == owner
    }
    for selector, types in rows.items():
        if selector in static:
            yield _method(owner, selector, types, "+")
            continue
        text = None if selector in _ACTIONS else _property(selector, types, set(rows))
        setter = selector.startswith("set") and selector.count(":") == 1
        getter = selector[3:4].lower() + selector[4:-1]
        if setter and (getter in rows or f"is{selector[3:-1]}" in rows):
            continue
        yield text or _method(owner, selector, types, "-")


def _interface(owner: str) -> str:
    above = _ABOVE.get(owner, "NSObject")
    lines = "\n".join(_declarations(owner))
    if owner in PROTOCOLS:
        return f"@protocol {owner} <{above}>\n{lines}\n@end\n"
    return f"@interface {owner} : {above}<NSCopying>\n{lines}\n@end\n"


def _enumerations() -> Iterator[str]:
    for name, code in signatures.ENUMERATIONS.items():
        yield f"typedef {_INTEGERS[code]} {name};"
    for name, value in vars(enums).items():
        if name.startswith("MTL") and isinstance(value, int):
            text = f"{value}ul" if value >= 1 << 63 else f"{value}"
            kind = "unsigned long" if value >= 1 << 31 else "long"
            yield f"enum : {kind} {{ {name} = {text} }};"


def _constants() -> dict[str, str]:
    return {
        name: value
        for name, value in vars(enums).items()
        if name.startswith("MTL") and isinstance(value, str)
    }


def _in_order(names: set[str]) -> list[str]:
    """Every class after the one that it extends."""
    ordered: list[str] = []
    for name in sorted(names):
        chain = [name]
        while (above := _ABOVE.get(chain[-1])) is not None:
            chain.append(above)
        ordered += (each for each in reversed(chain) if each not in ordered)
    return ordered


def metal_header() -> str:
    names = set(classes()) | {n for n in PROTOCOLS if n.startswith("MTL")}
    forward = [f"@protocol {n};" if n in PROTOCOLS else f"@class {n};" for n in sorted(names)]
    blocks = (
        f"typedef void (^{name})({', '.join(map(spelled, types.split()))});"
        for name, types in signatures.BLOCKS.items()
    )
    constants = (f"FOUNDATION_EXPORT NSString *const {name};" for name in _constants())
    reflection = "typedef MTLComputePipelineReflection *MTLAutoreleasedComputePipelineReflection;"
    parts = [
        "/* Metal, as far as softmetal has it. Written by softmetal/native/headers.py. */",
        "#pragma once\n",
        "#import <CoreFoundation/CoreFoundation.h>",
        "#import <Foundation/Foundation.h>\n",
        *_enumerations(),
        _STRUCTURES,
        "#ifdef __OBJC__",
        *forward,
        reflection,
        *blocks,
        *map(_interface, _in_order(names)),
        *constants,
        _FUNCTIONS,
        "#endif",
    ]
    return "\n".join(parts) + "\n"


def class_source() -> str:
    """The implementations, which are empty: their methods are Python's; and the constants."""
    lines = [
        '#include "native.h"',
        "#import <Foundation/Foundation.h>",
        "@interface SoftmetalObject : NSObject",
        "@end",
    ]
    for name in classes():
        lines += [f"@interface {name} : SoftmetalObject", "@end", f"@implementation {name}", "@end"]
    lines += [f'NSString *const {name} = @"{value}";' for name, value in _constants().items()]
    return "\n".join(lines) + "\n"
