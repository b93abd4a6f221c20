"""MLModelDescription, feature descriptions and their constraints."""

from __future__ import annotations

from typing import Any

from softcoreml import mil
from softcoreml.api import feature_values as kinds
from softcoreml.api.feature_values import MLFeatureValue, PixelBuffer
from softcoreml.api.multiarray import DATA_TYPES, MLMultiArray
from softcoreml.api.objects import Object
from softcoreml.description import (
    ArrayFeature,
    DictionaryFeature,
    Feature,
    FunctionDescription,
    ImageFeature,
    ModelDescription,
    ScalarFeature,
    StateFeature,
)

MLMultiArrayShapeConstraintTypeUnspecified = 1
MLMultiArrayShapeConstraintTypeEnumerated = 2
MLMultiArrayShapeConstraintTypeRange = 3
MLImageSizeConstraintTypeUnspecified = 0
MLImageSizeConstraintTypeEnumerated = 2
MLImageSizeConstraintTypeRange = 3
MLModelDescriptionKey = "MLModelDescriptionKey"
MLModelVersionStringKey = "MLModelVersionStringKey"
MLModelAuthorKey = "MLModelAuthorKey"
MLModelLicenseKey = "MLModelLicenseKey"
MLModelCreatorDefinedKey = "MLModelCreatorDefinedKey"

_PIXEL_FORMATS = {"RGB": "BGRA", "BGR": "BGRA", "GRAYSCALE": "L008", "GRAYSCALE_FLOAT16": "L00h"}
_NO_LIMIT = 2**63 - 1
_SCALARS = {
    "int64": kinds.MLFeatureTypeInt64,
    "double": kinds.MLFeatureTypeDouble,
    "string": kinds.MLFeatureTypeString,
}


class MLMultiArrayShapeConstraint(Object):
    """Which shapes a feature takes: `type`, `sizeRangeForDimension` and `enumeratedShapes`."""

    _readonly = {"type": 1, "sizeRangeForDimension": [], "enumeratedShapes": []}  # noqa: RUF012


class MLMultiArrayConstraint(Object):
    """Shape and type of a multi-array."""

    _readonly = {"shape": [], "dataType": 0, "shapeConstraint": None}  # noqa: RUF012


class MLImageSize(Object):
    _readonly = {"pixelsWide": 0, "pixelsHigh": 0}  # noqa: RUF012


class MLImageSizeConstraint(Object):
    """Which sizes an image may have."""

    _readonly = {  # noqa: RUF012
        "type": MLImageSizeConstraintTypeUnspecified,
        "pixelsWideRange": (0, 0),
        "pixelsHighRange": (0, 0),
        "enumeratedImageSizes": [],
    }


class MLImageConstraint(Object):
    """Size and pixel format (a four-character code as an integer) of an image."""

    _readonly = {  # noqa: RUF012
        "pixelsWide": 0,
        "pixelsHigh": 0,
        "pixelFormatType": 0,
        "sizeConstraint": None,
    }


class MLDictionaryConstraint(Object):
    _readonly = {"keyType": kinds.MLFeatureTypeString}  # noqa: RUF012


class MLStateConstraint(Object):
    """Shape and type of a state's buffer."""

    _readonly = {"bufferShape": [], "dataType": 0}  # noqa: RUF012


class MLFeatureDescription(Object):
    """One input, output or state of a model."""

    _readonly = {  # noqa: RUF012
        "name": "",
        "type": kinds.MLFeatureTypeInvalid,
        "isOptional": False,
        "multiArrayConstraint": None,
        "imageConstraint": None,
        "dictionaryConstraint": None,
        "sequenceConstraint": None,
        "stateConstraint": None,
    }

    def __init__(self, feature: Feature, **values: Any) -> None:
        super().__init__(name=feature.name, isOptional=feature.optional, **values)
        self._feature = feature

    # ML: -isAllowedValue:
    def isAllowedValue_(self, value: MLFeatureValue) -> bool:
        if value.isUndefined():
            return self._feature.optional
        kind, given = self._feature.type, value._value
        if isinstance(kind, ArrayFeature):
            return isinstance(given, MLMultiArray) and not kind.misfit(given.array.shape)
        if isinstance(kind, ImageFeature):
            return isinstance(given, PixelBuffer) and not kind.misfit(given.width, given.height)
        return bool(value.type() == self._values["type"])

    def __repr__(self) -> str:
        return f"{self._feature.name}: {self._feature.type}"


def feature_description(feature: Feature) -> MLFeatureDescription:
    """The description of a feature with the constraint that its type has."""
    kind = feature.type
    if isinstance(kind, ArrayFeature):
        return MLFeatureDescription(
            feature,
            type=kinds.MLFeatureTypeMultiArray,
            multiArrayConstraint=_array_constraint(kind),
        )
    if isinstance(kind, ImageFeature):
        return MLFeatureDescription(
            feature, type=kinds.MLFeatureTypeImage, imageConstraint=_image_constraint(kind)
        )
    if isinstance(kind, DictionaryFeature):
        constraint = MLDictionaryConstraint(keyType=_SCALARS[kind.key])
        return MLFeatureDescription(
            feature, type=kinds.MLFeatureTypeDictionary, dictionaryConstraint=constraint
        )
    if isinstance(kind, StateFeature):
        state = MLStateConstraint(
            bufferShape=list(kind.array.shape), dataType=_code(kind.array.dtype)
        )
        return MLFeatureDescription(feature, type=kinds.MLFeatureTypeState, stateConstraint=state)
    assert isinstance(kind, ScalarFeature)
    return MLFeatureDescription(feature, type=_SCALARS[kind.kind])


def _code(dtype: str) -> int:
    return DATA_TYPES[mil.DTYPES[dtype]]


def _array_constraint(kind: ArrayFeature) -> MLMultiArrayConstraint:
    if kind.enumerated:
        which = MLMultiArrayShapeConstraintTypeEnumerated
    elif kind.ranges:
        which = MLMultiArrayShapeConstraintTypeRange
    else:
        which = MLMultiArrayShapeConstraintTypeUnspecified
    shape = MLMultiArrayShapeConstraint(
        type=which,
        enumeratedShapes=[list(one) for one in kind.enumerated],
        sizeRangeForDimension=[_range(one) for one in kind.ranges],
    )
    return MLMultiArrayConstraint(
        shape=list(kind.shape), dataType=_code(kind.dtype), shapeConstraint=shape
    )


def _range(limits: tuple[int, int | None]) -> tuple[int, int]:
    """An NSRange: location and length."""
    low, high = limits
    return low, (_NO_LIMIT if high is None else high) - low + 1


def _image_constraint(kind: ImageFeature) -> MLImageConstraint:
    if kind.sizes:
        which = MLImageSizeConstraintTypeEnumerated
    elif kind.ranges:
        which = MLImageSizeConstraintTypeRange
    else:
        which = MLImageSizeConstraintTypeUnspecified
    wide, high = kind.ranges or ((kind.width, kind.width), (kind.height, kind.height))
    sizes = MLImageSizeConstraint(
        type=which,
        pixelsWideRange=_range(wide),
        pixelsHighRange=_range(high),
        enumeratedImageSizes=[
            MLImageSize(pixelsWide=width, pixelsHigh=height) for width, height in kind.sizes
        ],
    )
    code = int.from_bytes(_PIXEL_FORMATS[kind.color].encode(), "big")
    return MLImageConstraint(
        pixelsWide=kind.width,
        pixelsHigh=kind.height,
        pixelFormatType=code,
        sizeConstraint=sizes,
    )


class MLModelDescription(Object):
    """What a model, or one function of it, takes and gives."""

    _readonly = {  # noqa: RUF012
        "inputDescriptionsByName": {},
        "outputDescriptionsByName": {},
        "stateDescriptionsByName": {},
        "predictedFeatureName": None,
        "predictedProbabilitiesName": None,
        "metadata": {},
        "isUpdatable": False,
        "classLabels": None,
    }

    def __init__(self, model: ModelDescription, function: FunctionDescription) -> None:
        super().__init__(
            inputDescriptionsByName=_by_name(function.inputs),
            outputDescriptionsByName=_by_name(function.outputs),
            stateDescriptionsByName=_by_name(function.states),
            predictedFeatureName=function.predicted_feature or None,
            predictedProbabilitiesName=function.predicted_probabilities or None,
            metadata={
                MLModelDescriptionKey: model.summary,
                MLModelVersionStringKey: model.version,
                MLModelAuthorKey: model.author,
                MLModelLicenseKey: model.license,
                MLModelCreatorDefinedKey: dict(model.user_defined),
            },
        )


def _by_name(features: tuple[Feature, ...]) -> dict[str, MLFeatureDescription]:
    return {one.name: feature_description(one) for one in features}
