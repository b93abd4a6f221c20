"""A model's tensors on a device, as its layers ask for them. Quantized ones stay as they are."""

from __future__ import annotations

from lbrx import dtype as dt
from lbrx import quant
from lbrx.dtype import Dtype
from lbrx.errors import FormatError, QuantizationError
from lbrx.formats.recipe import Rows, renamed
from lbrx.ops.quantized import stored_names
from lbrx.shape import Shape
from lbrx.storage import PackedStorage
from lbrx.tensor.core import Tensor
from lbrx.tensor.derived import packed_rows
from lbrx.tensor.model import Model
from lbrx.tensor.operands import move


class Weights:
    """Tensors by Hugging Face's names, below a prefix.

    A llama in GGUF has the rows of its queries and keys in pairs. They are taken as they lie in
    the mapped file, and `interleaved` says that RoPE has to turn neighbours.
    """

    def __init__(self, model: Model, device: str, dtype: Dtype) -> None:
        canonical = model.canonical()
        self.interleaved = any(isinstance(r, Rows) for r in canonical.recipes.values())
        recipes = {
            name: renamed(recipe.source, name) if isinstance(recipe, Rows) else recipe
            for name, recipe in canonical.recipes.items()
        }
        self.model = Model(model.files, recipes)
        self.device = device
        self.dtype = dtype
        self.prefix = ""

    def inside(self, name: str | int) -> Weights:
        """Those whose names begin with this one."""
        inner = object.__new__(Weights)
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
        return tensor

    def vector(self, name: str, size: int) -> Tensor:
        """A norm's weight or a bias, in the type that is computed in."""
        tensor = self._tensor(name, (size,))
        return tensor.to_device(self.device).astype(self.dtype)

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        tensor = self._tensor(name, (rows, columns))
        if isinstance(tensor.array.storage, PackedStorage):
            made = _packed(tensor, self.device)
            if made is not None:
                return made
            tensor = tensor.astype(dt.float16)
        return Plain(tensor.to_device(self.device))


class Plain:
    """A matrix of floating numbers, multiplied in their own type."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def times(self, x: Tensor) -> Tensor:
        """x times the transposed matrix."""
        return (x.astype(self.values.dtype) @ self.values.T).astype(x.dtype)

    def rows(self, numbers: Tensor, dtype: Dtype) -> Tensor:
        taken: Tensor = self.values.take(numbers, axis=0)
        return taken.astype(dtype)


class Quantized:
    """A matrix that stays as it is stored."""

    def __init__(self, scheme: str, parts: tuple[Tensor, ...]) -> None:
        self.scheme = scheme
        self.parts = parts

    def times(self, x: Tensor) -> Tensor:
        codes, *beside = self.parts
        product: Tensor = x.quantized_matmul(codes, self.scheme, *beside)
        return product

    def rows(self, numbers: Tensor, dtype: Dtype) -> Tensor:
        codes, *beside = (part.take(numbers, axis=0) for part in self.parts)
        decoded: Tensor = codes.decode_blocks(self.scheme, *beside, dtype=dtype)
        return decoded


Matrix = Plain | Quantized


def _packed(tensor: Tensor, device: str) -> Quantized | None:
    """The stored parts on the device; None of what no kernel takes, as eight-bit floats."""
    storage = tensor.array.storage
    assert isinstance(storage, PackedStorage)
    parts = packed_rows(tensor.array)
    try:
        scheme = quant.find(storage.scheme)
    except QuantizationError:
        return None
    if parts is None:
        return None
    placed = (Tensor(move(parts[name], device)) for name in stored_names(scheme))
    return Quantized(storage.scheme, tuple(placed))
