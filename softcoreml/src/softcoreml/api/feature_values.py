"""Feature values and the objects that provide them by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from softcoreml.api.multiarray import MLMultiArray
from softcoreml.api.objects import Object, caught
from softcoreml.errors import InputError

MLFeatureTypeInvalid = 0
MLFeatureTypeInt64 = 1
MLFeatureTypeDouble = 2
MLFeatureTypeString = 3
MLFeatureTypeImage = 4
MLFeatureTypeMultiArray = 5
MLFeatureTypeDictionary = 6
MLFeatureTypeSequence = 7
MLFeatureTypeState = 8


class PixelBuffer:
    """An image in memory, in place of a CVPixelBuffer: `array` is height x width (x channels).

    Colour images hold red, green, blue in uint8; grey ones uint8, or float16 for
    OneComponent16Half.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        grey = array.ndim == 2 and array.dtype in (np.uint8, np.float16)
        if not grey and not (array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8):
            raise InputError(f"an image of shape {array.shape} in {array.dtype} is not possible")
        self.array = array

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    @property
    def height(self) -> int:
        return int(self.array.shape[0])


class MLFeatureValue(Object):
    """A value of one feature."""

    def __init__(self, kind: int, value: Any) -> None:
        self._kind = kind
        self._value = value

    # ML: +featureValueWithMultiArray:
    @classmethod
    def featureValueWithMultiArray_(cls, value: MLMultiArray) -> MLFeatureValue:
        if not isinstance(value, MLMultiArray):
            raise TypeError(f"{type(value).__name__} is not an MLMultiArray")
        return cls(MLFeatureTypeMultiArray, value)

    # ML: +featureValueWithInt64:
    @classmethod
    def featureValueWithInt64_(cls, value: int) -> MLFeatureValue:
        return cls(MLFeatureTypeInt64, int(value))

    # ML: +featureValueWithDouble:
    @classmethod
    def featureValueWithDouble_(cls, value: float) -> MLFeatureValue:
        return cls(MLFeatureTypeDouble, float(value))

    # ML: +featureValueWithString:
    @classmethod
    def featureValueWithString_(cls, value: str) -> MLFeatureValue:
        return cls(MLFeatureTypeString, str(value))

    # ML: +featureValueWithDictionary:error:
    @classmethod
    def featureValueWithDictionary_error_(
        cls, value: Mapping[Any, float], error: None
    ) -> tuple[MLFeatureValue | None, Any]:
        def make() -> MLFeatureValue:
            kinds = {str if isinstance(key, str) else int for key in value}
            if len(kinds) > 1:
                raise InputError("the keys of a dictionary are strings or integers, not both")
            return cls(MLFeatureTypeDictionary, dict(value))

        return caught(error, make)

    # ML: +featureValueWithPixelBuffer:
    @classmethod
    def featureValueWithPixelBuffer_(cls, value: PixelBuffer) -> MLFeatureValue:
        """Takes a `softcoreml.api.feature_values.PixelBuffer`, because CoreVideo is not here."""
        if not isinstance(value, PixelBuffer):
            raise TypeError(f"{type(value).__name__} is not a PixelBuffer")
        return cls(MLFeatureTypeImage, value)

    # ML: +undefinedFeatureValueWithType:
    @classmethod
    def undefinedFeatureValueWithType_(cls, kind: int) -> MLFeatureValue:
        return cls(kind, None)

    # ML: -type
    def type(self) -> int:
        return self._kind

    # ML: -isUndefined
    def isUndefined(self) -> bool:
        return self._value is None

    # ML: -multiArrayValue
    def multiArrayValue(self) -> MLMultiArray | None:
        return self._value if self._kind == MLFeatureTypeMultiArray else None

    # ML: -int64Value
    def int64Value(self) -> int:
        return self._value if self._kind == MLFeatureTypeInt64 and self._value is not None else 0

    # ML: -doubleValue
    def doubleValue(self) -> float:
        return self._value if self._kind == MLFeatureTypeDouble and self._value is not None else 0.0

    # ML: -stringValue
    def stringValue(self) -> str:
        return self._value if self._kind == MLFeatureTypeString and self._value is not None else ""

    # ML: -dictionaryValue
    def dictionaryValue(self) -> dict[Any, float]:
        return dict(self._value or {}) if self._kind == MLFeatureTypeDictionary else {}

    # ML: -imageBufferValue
    def imageBufferValue(self) -> PixelBuffer | None:
        return self._value if self._kind == MLFeatureTypeImage else None

    # ML: -isEqualToFeatureValue:
    def isEqualToFeatureValue_(self, other: MLFeatureValue) -> bool:
        if self._kind != other._kind:
            return False
        if isinstance(self._value, MLMultiArray | PixelBuffer) and other._value is not None:
            return np.array_equal(self._value.array, other._value.array)
        return bool(self._value == other._value)

    def __repr__(self) -> str:
        return f"MLFeatureValue({self._value!r})"


def feature_value(value: Any) -> MLFeatureValue:
    """A feature value of what a dictionary of features may hold."""
    if isinstance(value, MLFeatureValue):
        return value
    if isinstance(value, MLMultiArray):
        return MLFeatureValue.featureValueWithMultiArray_(value)
    if isinstance(value, PixelBuffer):
        return MLFeatureValue.featureValueWithPixelBuffer_(value)
    if isinstance(value, str):
        return MLFeatureValue.featureValueWithString_(value)
    if isinstance(value, int | np.integer):
        return MLFeatureValue.featureValueWithInt64_(int(value))
    if isinstance(value, float | np.floating):
        return MLFeatureValue.featureValueWithDouble_(float(value))
    if isinstance(value, Mapping):
        made, error = MLFeatureValue.featureValueWithDictionary_error_(value, None)
        if made is None:
            raise InputError(error.localizedDescription())
        return made
    raise InputError(f"{type(value).__name__} is not a value of a feature")


class MLDictionaryFeatureProvider(Object):
    """Features from a dictionary."""

    # ML: -initWithDictionary:error:
    def initWithDictionary_error_(
        self, dictionary: Mapping[str, Any], error: None
    ) -> tuple[Self | None, Any]:
        def make() -> Any:
            self._features = {name: feature_value(value) for name, value in dictionary.items()}
            return self

        return caught(error, make)

    # ML: -dictionary
    def dictionary(self) -> dict[str, MLFeatureValue]:
        return dict(self._features)

    # ML: -featureNames
    def featureNames(self) -> set[str]:
        return set(self._features)

    # ML: -featureValueForName:
    def featureValueForName_(self, name: str) -> MLFeatureValue | None:
        return self._features.get(name)

    # ML: -objectForKeyedSubscript:
    def objectForKeyedSubscript_(self, name: str) -> MLFeatureValue | None:
        return self._features.get(name)

    def __getitem__(self, name: str) -> MLFeatureValue:
        return self._features[name]


class MLArrayBatchProvider(Object):
    """Features of several predictions."""

    # ML: -initWithFeatureProviderArray:
    def initWithFeatureProviderArray_(self, providers: Sequence[Any]) -> Self:
        self._providers = list(providers)
        return self

    # ML: -initWithDictionary:error:
    def initWithDictionary_error_(
        self, dictionary: Mapping[str, Sequence[Any]], error: None
    ) -> tuple[Self | None, Any]:
        """A dictionary of columns, all of one length."""

        def make() -> Any:
            lengths = {len(column) for column in dictionary.values()}
            if len(lengths) > 1:
                raise InputError(f"the columns of a batch have the lengths {sorted(lengths)}")
            rows = range(lengths.pop() if lengths else 0)
            features = [{name: col[row] for name, col in dictionary.items()} for row in rows]
            return self.initWithFeatureProviderArray_([provider(one) for one in features])

        return caught(error, make)

    # ML: -count
    def count(self) -> int:
        return len(self._providers)

    # ML: -featuresAtIndex:
    def featuresAtIndex_(self, index: int) -> Any:
        return self._providers[index]

    # ML: -array
    def array(self) -> list[Any]:
        return list(self._providers)


def provider(features: Mapping[str, Any]) -> MLDictionaryFeatureProvider:
    """A provider of these features.

    Raises:
        InputError: a value cannot be one of a feature.
    """
    made, error = MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(features, None)
    if made is None:
        raise InputError(error.localizedDescription())
    return made
