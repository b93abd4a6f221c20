"""Where examples come from: arrays, JSONL and Parquet files, folders of images.

A source is a sequence: it knows how many examples it has and reads any one of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lbrx.errors import FormatError, LbrxError, ShapeError
from lbrx.extras import install

Example = Any
PathLike = str | os.PathLike[str]
IMAGES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))
MOST_LINE = 1 << 26
"""Bytes of a line of JSONL: a longer one is not text that anybody trains on."""


class Source(Protocol):
    """Examples by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Example: ...


class Arrays:
    """Rows of arrays of one length: an example has a row of each."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = {name: np.asarray(array) for name, array in arrays.items()}
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise ShapeError(
                f"the arrays have {lengths or 'no'} rows: give the same number of each"
            )
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Example:
        return {name: array[index] for name, array in self.arrays.items()}


class JsonLines:
    """The objects of a JSONL file, one in each line that is not empty.

    Lines are found when the file is opened and parsed when they are read. A line that is not an
    object of JSON raises FormatError with its number.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._places: list[tuple[int, int, int]] = []
        """Offset, length and number of each line."""
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    self._places.append((offset, len(line), number))
                offset += len(line)
        self._file = self.path.open("rb", buffering=0)

    def __len__(self) -> int:
        return len(self._places)

    def where(self, index: int) -> str:
        """The file and the line of an example, for errors."""
        return f"{self.path}:{self._places[index][2]}"

    def __getitem__(self, index: int) -> Example:
        offset, length, _ = self._places[index]
        if length > MOST_LINE:
            raise FormatError(f"{self.where(index)}: a line of {length:,} bytes: split it")
        # Threads that prefetch share the file: the place is given with the read.
        text = os.pread(self._file.fileno(), length, offset)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise FormatError(f"{self.where(index)}: not JSON: {problem}") from None
        if not isinstance(found, dict):
            kind = type(found).__name__
            raise FormatError(f"{self.where(index)}: {kind} instead of an object: write {{...}}")
        return found

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


class Parquet:
    """The rows of a Parquet file. The row group of an example is read and kept until another one
    is needed."""

    def __init__(self, path: PathLike) -> None:
        try:
            from pyarrow import parquet
        except ModuleNotFoundError:
            raise LbrxError(f"Parquet files need pyarrow: {install('data')}") from None
        self._file: Any = parquet.ParquetFile(path)
        sizes = [
            self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)
        ]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._group: tuple[int, list[Example]] = (-1, [])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number = int(np.searchsorted(self._ends, index, side="right"))
        group, rows = self._group
        if group != number:
            rows = self._file.read_row_group(number).to_pylist()
            self._group = (number, rows)
        before = int(self._ends[number - 1]) if number else 0
        return rows[index - before]


class ImageFolder:
    """The images in the folders of a folder, whose names are the classes: an example has an `image`
    (height, width, 3), uint8, and a `label`, the number of the folder in the order of names."""

    def __init__(self, path: PathLike, size: tuple[int, int] | None = None) -> None:
        root = Path(path)
        self.classes = sorted(each.name for each in root.iterdir() if each.is_dir())
        self._size = size
        self._files = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in sorted((root / name).iterdir())
            if file.suffix.lower() in IMAGES
        ]
        if not self._files:
            raise FormatError(f"{root} has no images in folders: give a folder of a folder a class")

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        try:
            from PIL import Image
        except ModuleNotFoundError:
            raise LbrxError(f"images need Pillow: {install('data')}") from None
        file, label = self._files[index]
        try:
            with Image.open(file) as opened:
                image = opened.convert("RGB")
        except OSError as problem:
            raise FormatError(f"{file}: not an image: {problem}") from None
        if self._size is not None:
            height, width = self._size
            image = image.resize((width, height))
        return {"image": np.asarray(image), "label": label}


class Mapped:
    """A source whose examples are results of a function."""

    def __init__(self, source: Source, function: Any) -> None:
        self.source = source
        self._function = function

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        return self._function(self.source[index])
