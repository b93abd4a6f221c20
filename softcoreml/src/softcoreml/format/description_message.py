"""The description of a model from its decoded protobuf message."""

from __future__ import annotations

from typing import Any

from softcoreml.description import (
    ArrayFeature,
    DictionaryFeature,
    Feature,
    FeatureType,
    FunctionDescription,
    ImageFeature,
    ModelDescription,
    ScalarFeature,
    StateFeature,
)
from softcoreml.errors import ModelError
from softcoreml.format.wire import Decoded

ARRAY_TYPES = {65552: "fp16", 65568: "fp32", 65600: "fp64", 131104: "int32", 131080: "int8"}
"""ArrayDataType of the model format, which PyObjC's MLMultiArrayDataType shares."""

_COLORS = {10: "GRAYSCALE", 20: "RGB", 30: "BGR", 40: "GRAYSCALE_FLOAT16"}
_MAX_RANK = 64


def description(message: Decoded) -> ModelDescription:
    """The records of a message ModelDescription."""
    functions = [_function(one, one.get("name", "")) for one in message.get("functions", [])]
    if not functions:
        functions = [_function(message, "main")]
    names = [one.name for one in functions]
    if len(set(names)) != len(names):
        raise ModelError(f"two functions of the description have one name: {', '.join(names)}")
    metadata = message.get("metadata", {})
    return ModelDescription(
        functions={one.name: one for one in functions},
        default_function=message.get("defaultFunctionName") or names[0],
        summary=metadata.get("shortDescription", ""),
        version=metadata.get("versionString", ""),
        author=metadata.get("author", ""),
        license=metadata.get("license", ""),
        user_defined={
            one.get("key", ""): one.get("value", "") for one in metadata.get("userDefined", [])
        },
    )


def _function(message: Decoded, name: str) -> FunctionDescription:
    def features(key: str) -> tuple[Feature, ...]:
        return tuple(_feature(one) for one in message.get(key, []))

    return FunctionDescription(
        name=name,
        inputs=features("input"),
        outputs=features("output"),
        states=features("state"),
        predicted_feature=message.get("predictedFeatureName", ""),
        predicted_probabilities=message.get("predictedProbabilitiesName", ""),
    )


def _feature(message: Decoded) -> Feature:
    name, kind = message.get("name", ""), message.get("type", {})
    return Feature(
        name=name,
        type=_type(kind, name),
        optional=kind.get("isOptional", False),
        summary=message.get("shortDescription", ""),
    )


def _type(kind: Decoded, name: str) -> FeatureType:
    if "multiArrayType" in kind:
        return _array(kind["multiArrayType"], name)
    if "stateType" in kind:
        return StateFeature(_array(kind["stateType"].get("arrayType", {}), name))
    if "imageType" in kind:
        return _image(kind["imageType"], name)
    if "dictionaryType" in kind:
        return DictionaryFeature("int64" if "int64KeyType" in kind["dictionaryType"] else "string")
    for scalar in ("int64", "double", "string"):
        if f"{scalar}Type" in kind:
            return ScalarFeature(scalar)
    raise ModelError(f"feature {name!r} has a type that softcoreml does not have")


def _array(message: Decoded, name: str) -> ArrayFeature:
    code = message.get("dataType", 0)
    if code not in ARRAY_TYPES:
        raise ModelError(f"feature {name!r} has the unknown data type {code}")
    shapes = message.get("enumeratedShapes", {}).get("shapes", [])
    defaults = ("intDefaultValue", "floatDefaultValue", "doubleDefaultValue")
    return ArrayFeature(
        shape=_shape(message, name),
        dtype=ARRAY_TYPES[code],
        enumerated=tuple(_shape(one, name) for one in shapes),
        ranges=_ranges(message.get("shapeRange", {}).get("sizeRanges", []), name),
        default=next((message[key] for key in defaults if key in message), None),
    )


def _image(message: Decoded, name: str) -> ImageFeature:
    color = _COLORS.get(message.get("colorSpace", 0))
    if color is None:
        raise ModelError(f"image {name!r} has an unknown colour space")
    sizes = message.get("enumeratedSizes", {}).get("sizes", [])
    between = message.get("imageSizeRange", {})
    ranges = [between.get("widthRange", {}), between.get("heightRange", {})] if between else []
    return ImageFeature(
        width=message.get("width", 0),
        height=message.get("height", 0),
        color=color,
        sizes=tuple((one.get("width", 0), one.get("height", 0)) for one in sizes),
        ranges=_ranges(ranges, name),
    )


def _shape(message: Decoded, name: str) -> tuple[int, ...]:
    sizes: list[Any] = [size for part in message.get("shape", []) for size in part.tolist()]
    if len(sizes) > _MAX_RANK or any(size < 0 for size in sizes):
        raise ModelError(f"feature {name!r} has the impossible shape {tuple(sizes[:8])}")
    return tuple(sizes)


def _ranges(messages: list[Decoded], name: str) -> tuple[tuple[int, int | None], ...]:
    if len(messages) > _MAX_RANK:
        raise ModelError(f"feature {name!r} has {len(messages)} dimensions")
    found = []
    for one in messages:
        low, high = one.get("lowerBound", 0), one.get("upperBound", 0)
        found.append((low, None if high < 0 else high))
    return tuple(found)
