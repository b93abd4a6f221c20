"""A stored model's tensors on a device, by name. Quantized weights stay quantized."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.errors import FormatError
from lbrx.files.formats import Inline, ModelFiles, TensorInfo, descriptor, translate
from lbrx.files.formats.descriptor import FileRange, Source
from lbrx.files.formats.recipe import (
    Recipe,
    ReorderedHeads,
    computed_tensors,
    nbytes_of,
    renamed,
    stored,
)
from lbrx.files.formats.translate import stack_of
from lbrx.files.stored.stored_model import StoredModel
from lbrx.models.adapters import Adapters, LowRankUpdate
from lbrx.models.config import ModelConfig
from lbrx.tensors.core import Tensor
from lbrx.tensors.long_lived import keep

_PAIRED_HEADS = ("q_proj", "k_proj")
SAMPLE = 256  # bytes per tensor for fingerprints, from its middle: the first are often zeros
FLOAT8 = tuple(encoding.name.lower() for encoding in descriptor.FLOAT8)


def bytes_in_memory(files: ModelFiles) -> int:
    """The bytes that a model's tensors take in memory: 8-bit floats without scales are expanded to
    float16."""
    recipes = translate.to_huggingface(files).values()
    return sum(nbytes_of(r) * (2 if r.encoding in descriptor.FLOAT8 else 1) for r in recipes)


class Weights:
    """Tensors by Hugging Face's names, below a prefix.

    A Llama GGUF stores the rows of queries and keys in pairs. A layer that has all of them so uses
    them as they are in the mapped file, and its RoPE rotates neighbouring features. In layers of
    other files, and where one of the tensors is computed, all have Hugging Face's order.
    """

    def __init__(
        self,
        model: StoredModel,
        config: ModelConfig,
        device: str,
        dtype: Dtype,
        adapters: Adapters | None = None,
    ) -> None:
        # The text part of a multimodal model has a longer prefix.
        recipes = {
            name.replace("language_model.", "", 1): recipe
            for name, recipe in model.canonical().recipes.items()
        }
        self._paired = _paired_modules(recipes, config)
        for name, recipe in recipes.items():
            if isinstance(recipe, ReorderedHeads) and _module(name)[0] in self._paired:
                recipes[name] = renamed(recipe.source, name)
        self.model = StoredModel(model.files, recipes)
        self.device = device
        self.dtype = dtype
        self.head_size = config.head_size
        self.adapters = adapters
        self._heads = {"q_proj": config.heads, "k_proj": config.kv_heads}
        self.prefix = ""

    @property
    def interleaved(self) -> bool:
        """Whether the queries and keys below this prefix have in neighbouring rows what RoPE
        rotates together."""
        return self.prefix.removesuffix(".") in self._paired

    @property
    def has_pairs(self) -> bool:
        """Whether the weight below this prefix is one of queries or keys whose rows are so."""
        outer, own = _module(f"{self.prefix}weight")
        return outer in self._paired and own in _PAIRED_HEADS

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
        """A hash of the tensors' names, types, shapes and a few bytes of each, and of the functions
        that compute them."""
        seen = hashlib.sha256()
        if self.adapters is not None:
            seen.update(self.adapters.fingerprint().encode())
        for name, recipe in sorted(self.model.recipes.items()):
            is_paired = _module(name)[0] in self._paired
            computing = [each.function for each in computed_tensors(recipe)]
            seen.update(repr((name, is_paired, computing)).encode())
            for info in stored(recipe):
                facts = (info.name, info.encoding.name, info.shape)
                seen.update(repr(facts).encode() + _sample(info.source))
        return seen.hexdigest()

    def update(self, weight: Tensor) -> LowRankUpdate | None:
        """What adapters make of products with the matrix below this prefix."""
        if self.adapters is None:
            return None
        module, order = self.prefix.removesuffix("."), None
        outer, _, own = module.rpartition(".")
        if outer in self._paired and own in self._heads:
            rows = weight.shape[0]
            like = TensorInfo(module, descriptor.plain(dt.float32), (rows,), Inline(b""))
            order = ReorderedHeads(module, like, self._heads[own], pairs=True).order()
        return self.adapters.update(module, weight, order, self.dtype)

    def vector(self, name: str, *shape: int) -> Tensor:
        """A norm's weight, a bias or another small tensor, in the network's dtype."""
        return keep(self._tensor(name, shape).astype(self.dtype), self.device)

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """A weight or an embedding."""
        return self._kept(self._tensor(name, (rows, columns)))

    def stack(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        """The matrices of all experts, (count, rows, columns), as they are stored. Files that have
        them stacked are used in place, and matrices of their own are copied together."""
        return self._kept(self._stack(name, count, rows, columns))

    def stored_stack(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        """The matrices of all experts where the file has one tensor of them: packed as
        `<name>.weight`, or as `<name>` with inputs first, which are put last once."""
        if f"{name}.weight" in self:
            return self._kept(self._tensor(f"{name}.weight", (count, rows, columns)))
        return keep(self._tensor(name, (count, columns, rows)).mT.contiguous(), self.device)

    def _stack(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        names = [f"{self.prefix}{i}.{name}.weight" for i in range(count)]
        for i in range(count):
            self.inside(i)._tensor(f"{name}.weight", (rows, columns))
        whole = stack_of(self.prefix + name, [self.model.recipes[each] for each in names])
        return self.model.made(whole, whole.name)

    def _kept(self, tensor: Tensor) -> Tensor:
        """A weight as it is stored. 8-bit floats become float16, as there are no kernels for
        them."""
        if tensor.metadata.quantization in FLOAT8:
            tensor = tensor.astype(dt.float16)
        return keep(tensor, self.device)


class CheckedWeights(Weights):
    """For a network that computes nothing: tensors are checked, and stay as they are stored."""

    def vector(self, name: str, *shape: int) -> Tensor:
        return self._tensor(name, shape)

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        return self._tensor(name, (rows, columns))

    def stack(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        return self._stack(name, count, rows, columns)


def _module(name: str) -> tuple[str, str]:
    """The name of a tensor's module, as the module around it and its own name there."""
    outer, _, own = name.rpartition(".")[0].rpartition(".")
    return outer, own


def _paired_modules(recipes: Mapping[str, Recipe], config: ModelConfig) -> frozenset[str]:
    """The modules whose queries and keys are all stored in the pairs of this model's heads."""
    heads = dict(zip(_PAIRED_HEADS, (config.heads, config.kv_heads), strict=True))
    if config.rope.dims != config.head_size:
        return frozenset()  # Hugging Face's pairs are those of the rotated part
    found: dict[str, bool] = {}
    for name, recipe in recipes.items():
        module, own = _module(name)
        if own in heads:
            wanted = (heads[own], False)
            is_paired = (
                isinstance(recipe, ReorderedHeads) and (recipe.heads, recipe.pairs) == wanted
            )
            found[module] = found.get(module, True) and is_paired
    return frozenset(module for module, is_paired in found.items() if is_paired)


def _sample(source: Source) -> bytes:
    if isinstance(source, Inline):
        return source.data[:SAMPLE]
    size = source.nbytes if isinstance(source, FileRange) else source.packed
    with source.file.open("rb") as file:
        file.seek(source.offset + max(size - SAMPLE, 0) // 2)
        return file.read(min(size, SAMPLE))
