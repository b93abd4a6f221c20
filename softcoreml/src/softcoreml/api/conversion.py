"""Between feature values and the arrays that the interpreter takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from softcoreml.api.feature_values import (
    MLFeatureTypeDouble,
    MLFeatureTypeInt64,
    MLFeatureTypeString,
    MLFeatureValue,
    PixelBuffer,
    feature_value,
)
from softcoreml.api.multiarray import DATA_TYPES, MLMultiArray
from softcoreml.description import ArrayFeature, Feature, FunctionDescription, ImageFeature
from softcoreml.errors import InputError


def arrays(provider: Any, description: FunctionDescription) -> dict[str, Any]:
    """The inputs of a prediction from a feature provider; undefined values are left out."""
    found: dict[str, Any] = {}
    names = provider.featureNames()
    for feature in description.inputs:
        if feature.name not in names:
            continue
        value = provider.featureValueForName_(feature.name)
        if value is not None and not value.isUndefined():
            found[feature.name] = _array(feature, value)
    return found


def _array(feature: Feature, value: MLFeatureValue) -> Any:
    if isinstance(feature.type, ArrayFeature):
        array = value.multiArrayValue()
        if array is not None:
            return array.array
        if value.type() in (MLFeatureTypeInt64, MLFeatureTypeDouble):
            return np.array([value._value])
        raise InputError(f"input {feature.name!r} is a multi-array, and {value!r} is not")
    if isinstance(feature.type, ImageFeature):
        pixels = value.imageBufferValue()
        if pixels is None:
            raise InputError(f"input {feature.name!r} is an image, and {value!r} is not")
        return _planes(feature, feature.type, pixels)
    return value._value


def _planes(feature: Feature, kind: ImageFeature, pixels: PixelBuffer) -> Any:
    """An image as a program takes it: 1 x channels x height x width, 0 to 255."""
    if reason := kind.misfit(pixels.width, pixels.height):
        raise InputError(f"input {feature.name!r}: {reason}")
    image = pixels.array
    if (image.ndim == 3) != (kind.channels == 3):
        raise InputError(f"input {feature.name!r} is {kind.color}, and the image is not")
    if kind.color == "BGR":
        image = image[:, :, ::-1]
    return image.transpose(2, 0, 1)[None] if image.ndim == 3 else image[None, None]


def values(
    results: Mapping[str, Any], description: FunctionDescription, backings: Mapping[str, Any]
) -> dict[str, MLFeatureValue]:
    """The outputs of a prediction as feature values; a backing takes its output's values."""
    made = {}
    for feature in description.outputs:
        result = results[feature.name]
        backing = backings.get(feature.name)
        if backing is not None:
            result = _backed(feature.name, result, backing)
        made[feature.name] = _value(feature, result)
    return made


def _backed(name: str, result: Any, backing: Any) -> MLMultiArray:
    if not isinstance(backing, MLMultiArray):
        raise InputError(f"the output backing of {name!r} is not an MLMultiArray")
    if backing.array.shape != result.shape:
        raise InputError(
            f"the output backing of {name!r} has the shape {backing.shape()} "
            f"where the output has {list(result.shape)}"
        )
    if backing.array.dtype != result.dtype:
        raise InputError(
            f"the output backing of {name!r} holds {backing.array.dtype} "
            f"where the output is {result.dtype}"
        )
    np.copyto(backing.array, result)
    return backing


def _value(feature: Feature, result: Any) -> MLFeatureValue:
    if isinstance(feature.type, ImageFeature):
        return MLFeatureValue.featureValueWithPixelBuffer_(_pixels(feature.type, result))
    if isinstance(result, np.ndarray) and isinstance(feature.type, ArrayFeature):
        array = result if result.dtype in DATA_TYPES else result.astype(np.float32)
        return MLFeatureValue.featureValueWithMultiArray_(MLMultiArray.over(array))
    if isinstance(result, np.ndarray) and result.size == 1:
        return feature_value(result.reshape(())[()].item())
    if isinstance(result, str):
        return MLFeatureValue(MLFeatureTypeString, result)
    return feature_value(result)


def _pixels(kind: ImageFeature, result: Any) -> PixelBuffer:
    planes = np.asarray(result)
    planes = planes.reshape(planes.shape[-3:])
    if kind.color == "GRAYSCALE_FLOAT16":
        return PixelBuffer(planes[0].astype(np.float16))
    whole = np.clip(np.rint(planes.astype(np.float32)), 0, 255).astype(np.uint8)
    if kind.channels == 1:
        return PixelBuffer(whole[0])
    image = whole.transpose(1, 2, 0)
    return PixelBuffer(np.ascontiguousarray(image[:, :, ::-1] if kind.color == "BGR" else image))
