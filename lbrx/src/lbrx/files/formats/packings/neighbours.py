"""A tensor of a checkpoint and those beside it, and the way in which some packing uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError
from lbrx.files.formats.checks import bad
from lbrx.files.formats.descriptor import Encoding, FileRange, Inline, ModelFiles, TensorInfo
from lbrx.files.formats.recipe import PackedWeight, RepackedTensor

GROUPS = (128, 64, 32)  # values that share a scale in lbrx's schemes
FLOATS = (dt.float32, dt.float16, dt.bfloat16)
_MAX_BYTES = 1 << 20  # of a tensor that is read with the headers


class Neighbours:
    """The tensors whose names begin like that of a packed weight. Those that were asked for count
    as used."""

    def __init__(self, files: ModelFiles, name: str, stem: str) -> None:
        self.files = files
        self.stem = stem
        self.info = files.tensors[name]
        """The tensor with the codes."""
        self.used = {name}

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """config.json's settings of the quantization."""
        return settings_of(self.files.config)

    def find(self, suffix: str) -> TensorInfo | None:
        """The tensor of this name behind the stem, in row-major order."""
        info = self.files.tensors.get(self.stem + suffix)
        if info is not None:
            self.used.add(info.name)
        return info

    def need(self, suffix: str) -> TensorInfo:
        info = self.find(suffix)
        if info is None:
            raise self.wrong(f"has no {self.stem}{suffix}, which belongs to it")
        return info

    def leave(self, *suffixes: str) -> None:
        """Tensors that are not needed: scales of activations, which lbrx does not quantize."""
        for suffix in suffixes:
            self.find(suffix)

    def wrong(self, problem: str, field: str = "") -> FormatError:
        return bad(self.files.path, problem, tensor=self.info.name, field=field)

    def check(self, info: TensorInfo, *encodings: object) -> None:
        """Raise FormatError unless a tensor has one of these types, and no strides."""
        known = (info.encoding, info.encoding.dtype, info.encoding.name)
        if info.strides is not None or not any(each in encodings for each in known):
            names = ", ".join(str(each) for each in encodings)
            raise self.wrong(f"{info.name} is {info.encoding}: this packing has {names} there")

    def scales(self, info: TensorInfo, shapes: object) -> None:
        """Raise FormatError unless a tensor has floats in one of these shapes."""
        self.check(info, *FLOATS)
        if info.shape not in (shapes if isinstance(shapes, list) else [shapes]):
            raise self.wrong(f"{info.name} of shape {info.shape} does not fit it: {shapes} would")

    def group(self, columns: int, size: int) -> int | None:
        """The values that share a scale in lbrx, where `size` do so in the file; None if rows
        cannot be divided so."""
        return next((g for g in GROUPS if columns % g == 0 and size % g == 0), None)

    def integer(self, key: str, default: int) -> int:
        """A setting that is an integer."""
        value = self.settings.get(key, default)
        if type(value) is not int:
            raise self.wrong(f"{value!r:.40} is not an integer", f"quantization_config {key}")
        return value

    def content(self, info: TensorInfo) -> bytes:
        """The bytes of a small tensor that describes others."""
        source = info.source
        if isinstance(source, Inline):
            return source.data
        if not isinstance(source, FileRange) or source.nbytes > _MAX_BYTES:
            raise self.wrong(f"{info.name} is not a short plain tensor")
        with source.file.open("rb") as file:
            file.seek(source.offset)
            return file.read(source.nbytes)


class Packing(NamedTuple):
    """A way to pack weights: the end of the names of their codes, and a function that makes the
    weight, or None where the tensor is something else."""

    suffix: str
    read: Callable[[Neighbours], PackedWeight | RepackedTensor | None]


def seen_as(info: TensorInfo, encoding: Encoding, shape: tuple[int, ...]) -> TensorInfo:
    """The bytes of a stored tensor as other elements."""
    return TensorInfo(info.name, encoding, shape, info.source)


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What config.json says of the quantization, also that of a text part; empty if nothing."""
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part.get(key), Mapping) and part[key]:
                return part[key]  # type: ignore[no-any-return]
    return {}
