"""A stored model's tensors on a device, by name. Quantized weights stay quantized."""

from __future__ import annotations

import hashlib

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.errors import FormatError
from lbrx.formats import Inline, ModelFiles, descriptor
from lbrx.formats.descriptor import FileRange, Source
from lbrx.formats.recipe import Recipe, ReorderedHeads, renamed, stored
from lbrx.shape import Shape
from lbrx.tensor.core import Tensor
from lbrx.tensor.long_lived import keep
from lbrx.tensor.stored_model import StoredModel

SAMPLE = 256  # bytes per tensor for fingerprints, from its middle: the first are often zeros
FLOAT8 = tuple(encoding.name.lower() for encoding in descriptor.FLOAT8)


def bytes_in_memory(files: ModelFiles) -> int:
    """The bytes that a model's tensors take in memory: 8-bit floats are expanded to float16."""
    expanded = sum(t.nbytes for t in files.tensors.values() if t.encoding in descriptor.FLOAT8)
    return files.nbytes + expanded


class Weights:
    """Tensors by Hugging Face's names, below a prefix.

    A Llama GGUF stores the rows of queries and keys interleaved. They are used as they are in the
    mapped file; `interleaved` says that RoPE has to rotate neighbouring features.
    """

    def __init__(self, model: StoredModel, device: str, dtype: Dtype) -> None:
        canonical = model.canonical()
        self.interleaved = any(isinstance(r, ReorderedHeads) for r in canonical.recipes.values())
        recipes: dict[str, Recipe] = {}
        for full, recipe in canonical.recipes.items():
            name = full.replace("language_model.", "", 1)  # the text part of a multimodal model
            recipes[name] = (
                renamed(recipe.source, name) if isinstance(recipe, ReorderedHeads) else recipe
            )
        self.model = StoredModel(model.files, recipes)
        self.device = device
        self.dtype = dtype
        self.prefix = ""

    def inside(self, name: str | int) -> Weights:
        """The tensors whose names continue with `name` and a dot."""
        inner = object.__new__(type(self))
        inner.__dict__ = {**self.__dict__, "prefix": f"{self.prefix}{name}."}
        return inner

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.model

    def _tensor(self, name: str, shape: Shape) -> Tensor:
        full = self.prefix + name
        if full not in self.model:
            raise FormatError(
                f"{self.model.path} has no tensor {full}: the file is incomplete, or config.json "
                "is another model's"
            )
        tensor = self.model[full]
        if tensor.shape != shape:
            raise FormatError(
                f"{self.model.path}: tensor {full} has shape {tensor.shape}, and config.json "
                f"says {shape}: one of them is another model's"
            )
        if not tensor.dtype.is_float:
            raise FormatError(
                f"{self.model.path}: tensor {full} has the type {tensor.dtype}: weights are "
                "floats, so these are codes of a quantization that lbrx does not read"
            )
        return tensor

    def fingerprint(self) -> str:
        """A hash of the tensors' names, types, shapes and a few bytes of each."""
        seen = hashlib.sha256()
        for name, recipe in sorted(self.model.recipes.items()):
            for info in stored(recipe):
                facts = (name, info.name, info.encoding.name, info.shape, self.interleaved)
                seen.update(repr(facts).encode() + _sample(info.source))
        return seen.hexdigest()

    def vector(self, name: str, size: int) -> Tensor:
        """A norm's weight or a bias, in the network's dtype."""
        return keep(self._tensor(name, (size,)).astype(self.dtype), self.device)

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """A weight or an embedding as it is stored. 8-bit floats become float16, as there are no
        kernels for them."""
        tensor = self._tensor(name, (rows, columns))
        if tensor.metadata.quantization in FLOAT8:
            tensor = tensor.astype(dt.float16)
        return keep(tensor, self.device)


def _sample(source: Source) -> bytes:
    if isinstance(source, Inline):
        return source.data[:SAMPLE]
    size = source.nbytes if isinstance(source, FileRange) else source.packed
    with source.file.open("rb") as file:
        file.seek(source.offset + max(size - SAMPLE, 0) // 2)
        return file.read(min(size, SAMPLE))
