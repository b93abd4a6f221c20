"""A model's tensors on a device, as its layers ask for them. Quantized ones stay as they are."""

from __future__ import annotations

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.errors import FormatError
from lbrx.formats import descriptor
from lbrx.formats.recipe import Recipe, Rows, renamed
from lbrx.shape import Shape
from lbrx.tensor.core import Tensor
from lbrx.tensor.model import Model

FLOAT8 = tuple(encoding.name.lower() for encoding in descriptor.FLOAT8)


class Weights:
    """Tensors by Hugging Face's names, below a prefix.

    A llama in GGUF has the rows of its queries and keys in pairs. They are taken as they lie in
    the mapped file, and `interleaved` says that RoPE has to turn neighbours.
    """

    def __init__(self, model: Model, device: str, dtype: Dtype) -> None:
        canonical = model.canonical()
        self.interleaved = any(isinstance(r, Rows) for r in canonical.recipes.values())
        recipes: dict[str, Recipe] = {}
        for full, recipe in canonical.recipes.items():
            name = full.replace("language_model.", "", 1)  # of a model that sees pictures too
            recipes[name] = renamed(recipe.source, name) if isinstance(recipe, Rows) else recipe
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

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """A weight or an embedding, as it is stored; eight-bit floats, for which there are no
        kernels, as halves."""
        tensor = self._tensor(name, (rows, columns))
        if tensor.metadata.quantization in FLOAT8:
            tensor = tensor.astype(dt.float16)
        return tensor.to_device(self.device)
