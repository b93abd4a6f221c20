"""What a model says of itself: its functions with inputs, outputs and states, and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from softcoreml.errors import InputError, ModelError

Shape = tuple[int, ...]


def _sizes(shape: Shape) -> str:
    return " x ".join(map(str, shape))


@dataclass(frozen=True)
class ArrayFeature:
    """A multi-array. `shape` is the default; `enumerated` or `ranges` say which others fit.

    A range is (lowest, highest), and its highest is None where there is no limit. With neither
    `enumerated` nor `ranges` only `shape` fits, and any shape where `shape` is empty too (outputs
    of flexible models have no shape).
    """

    shape: Shape
    dtype: str
    enumerated: tuple[Shape, ...] = ()
    ranges: tuple[tuple[int, int | None], ...] = ()
    default: float | None = None

    def __str__(self) -> str:
        if self.enumerated:
            shapes = " or ".join(_sizes(shape) for shape in self.enumerated)
        elif self.ranges:
            shapes = " x ".join(
                str(low) if low == high else f"{low}..{high or 'any'}" for low, high in self.ranges
            )
        else:
            shapes = _sizes(self.shape) or "any shape"
        return f"{self.dtype}, {shapes}"

    def misfit(self, shape: Shape) -> str:
        """Why an array of this shape does not fit, or "" where it does."""
        if self.enumerated:
            if shape in self.enumerated:
                return ""
            return f"shape {shape} is not one of {', '.join(map(str, self.enumerated))}"
        if self.ranges:
            if len(shape) != len(self.ranges):
                return f"shape {shape} has {len(shape)} dimensions instead of {len(self.ranges)}"
            for axis, (size, (low, high)) in enumerate(zip(shape, self.ranges, strict=True)):
                if size < low or (high is not None and size > high):
                    return f"dimension {axis} is {size}, outside {low} to {high or 'any size'}"
            return ""
        if self.shape and shape != self.shape:
            return f"shape {shape} where the model takes {self.shape}"
        return ""


@dataclass(frozen=True)
class ImageFeature:
    """An image; `color` is GRAYSCALE, RGB, BGR or GRAYSCALE_FLOAT16, sizes are (width, height)."""

    width: int
    height: int
    color: str
    sizes: tuple[tuple[int, int], ...] = ()
    ranges: tuple[tuple[int, int | None], ...] = ()

    def __str__(self) -> str:
        return f"{self.color} image, {self._possible()} pixels"

    @property
    def channels(self) -> int:
        return 3 if self.color in ("RGB", "BGR") else 1

    def misfit(self, width: int, height: int) -> str:
        """Why an image of this size does not fit, or ""."""
        if self.sizes:
            fits = (width, height) in self.sizes
        elif self.ranges:
            fits = all(
                low <= size and (high is None or size <= high)
                for size, (low, high) in zip((width, height), self.ranges, strict=True)
            )
        else:
            fits = (width, height) == (self.width, self.height)
        return "" if fits else f"{width}x{height} pixels where the model takes {self._possible()}"

    def _possible(self) -> str:
        if self.sizes:
            return " or ".join(f"{width}x{height}" for width, height in self.sizes)
        return f"{self.width}x{self.height}" + (" or another in its range" if self.ranges else "")


@dataclass(frozen=True)
class ScalarFeature:
    """`kind` is "int64", "double" or "string"."""

    kind: str

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class DictionaryFeature:
    """A dictionary of numbers with keys of the kind "int64" or "string"."""

    key: str

    def __str__(self) -> str:
        return f"dictionary of numbers by {self.key}"


@dataclass(frozen=True)
class StateFeature:
    """A state's buffer."""

    array: ArrayFeature

    def __str__(self) -> str:
        return str(self.array)


FeatureType = ArrayFeature | ImageFeature | ScalarFeature | DictionaryFeature | StateFeature


@dataclass(frozen=True)
class Feature:
    """One input, output or state."""

    name: str
    type: FeatureType
    optional: bool = False
    summary: str = ""


@dataclass(frozen=True)
class FunctionDescription:
    """The features of one function; a classifier also names those that it predicts."""

    name: str
    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]
    states: tuple[Feature, ...] = ()
    predicted_feature: str = ""
    predicted_probabilities: str = ""

    def input(self, name: str) -> Feature:
        for one in self.inputs:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.inputs) or "none"
        raise InputError(f"{name!r} is not an input of {self.name}: its inputs are {known}")


@dataclass(frozen=True)
class ModelDescription:
    """Every function by name; a model with one function calls it "main"."""

    functions: Mapping[str, FunctionDescription]
    default_function: str
    summary: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    user_defined: Mapping[str, str] = field(default_factory=dict)

    def function(self, name: str | None = None) -> FunctionDescription:
        """The function of this name, or the default one."""
        wanted = name or self.default_function
        if wanted not in self.functions:
            known = ", ".join(self.functions)
            raise ModelError(f"the model has no function {wanted!r}: its functions are {known}")
        return self.functions[wanted]
