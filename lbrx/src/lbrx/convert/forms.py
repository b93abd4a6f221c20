"""The form of each written tensor: unchanged, another element type, or a quantization scheme."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.convert.source import columns_of, scheme_of
from lbrx.errors import QuantizationError
from lbrx.files.formats import file_formats
from lbrx.files.formats.recipe import PackedWeight, Recipe, sources_of

FLOATS = {
    "f32": dt.float32,
    "f16": dt.float16,
    "bf16": dt.bfloat16,
    **{d.name: d for d in (dt.float32, dt.float16, dt.bfloat16)},
}
# GGUF's `general.file_type` for models of one plain type.
FILE_TYPES = {dt.float32: 0, dt.float16: 1, dt.bfloat16: 32}


@dataclass(frozen=True)
class Form:
    """The element type, or a scheme; for MLX's schemes `dtype` is the type of the scales."""

    dtype: Dtype
    scheme: str | None = None


Chooser = Callable[[str, Recipe], Form]


def chooser(
    format: str,
    quantize: str | None,
    dtype: Dtype | None,
    facts: quant.ModelFacts,
    for_llama: bool,
) -> Chooser:
    """A function from a tensor's name and recipe to its form.

    Raises QuantizationError if the format cannot store the wanted type.
    """
    target = file_formats.find(format)
    mixtures = target.conventions.mixtures
    if quantize is None:
        return _stored(format, dtype, for_llama and mixtures)
    wanted = quantize.lower()
    if wanted in FLOATS:
        if dtype not in (None, FLOATS[wanted]):
            raise QuantizationError(f"{quantize} and {dtype} are both given: give one of them")
        return _plain(format, FLOATS[wanted], mixtures)
    if wanted.startswith("mlx:"):
        if not target.holds(wanted.upper()):
            raise QuantizationError(f"{format} cannot store {quantize}: write MLX")
        return _words(format, quant.find(wanted), dtype)
    if not mixtures:
        packs = target.conventions.packs_words
        known = "f32, f16, bf16" + (", mlx:4:64 and the like" if packs else "")
        problem = f"{format} has no type for {quantize!r}"
        raise QuantizationError(f"{problem}: give one of {known}, or write GGUF")
    if dtype not in (None, dt.float32):
        raise QuantizationError(
            f"tensors that {quantize} does not quantize are f32: leave {dtype} out"
        )
    return _mixture(format, wanted, facts)


def kept(format: str, recipe: Recipe, dtype: Dtype | None = None) -> Form:
    """The stored form if the format can hold it, otherwise float32, which loses nothing."""
    scheme = scheme_of(recipe)
    if scheme is None:
        assert recipe.encoding.dtype is not None
        stays = dtype is None or not recipe.encoding.dtype.is_float
        return Form(recipe.encoding.dtype if stays or dtype is None else dtype)
    if file_formats.find(format).holds(recipe.encoding.name):
        return Form(_scale_type(recipe), scheme)
    return Form(dtype or dt.float32)


def _scale_type(recipe: Recipe) -> Dtype:
    """The type of MLX's scales; other blocks contain their scales."""
    if isinstance(recipe, PackedWeight):
        return recipe.scales.encoding.decoded
    sources = sources_of(recipe)
    return _scale_type(sources[0]) if sources else dt.float32


def is_floating(recipe: Recipe) -> bool:
    return recipe.encoding.decoded.is_float


def _is_small(name: str, recipe: Recipe) -> bool:
    """Whether llama.cpp needs a tensor in F32, whatever the mixture."""
    return quant.mixture("q8_0", quant.ModelFacts(layers=1))(name, recipe.shape) is None


def _stored(format: str, dtype: Dtype | None, for_llama: bool) -> Chooser:
    def choose(name: str, recipe: Recipe) -> Form:
        if for_llama and is_floating(recipe) and _is_small(name, recipe):
            return Form(dt.float32)
        return kept(format, recipe, dtype)

    return choose


def _plain(format: str, wanted: Dtype, mixtures: bool) -> Chooser:
    def choose(name: str, recipe: Recipe) -> Form:
        if not is_floating(recipe):
            return kept(format, recipe)
        small = mixtures and _is_small(name, recipe)
        return Form(dt.float32 if small else wanted)

    return choose


def _mixture(format: str, name: str, facts: quant.ModelFacts) -> Chooser:
    type_of = quant.mixture(name, facts)

    def choose(tensor: str, recipe: Recipe) -> Form:
        if not is_floating(recipe):
            return kept(format, recipe)
        type = type_of(tensor, recipe.shape)
        if type is None:
            return Form(dt.float32)
        return Form(FLOATS[type]) if type in FLOATS else Form(dt.float32, type)

    return choose


def _words(format: str, scheme: quant.Scheme, dtype: Dtype | None) -> Chooser:
    def choose(name: str, recipe: Recipe) -> Form:
        if not is_floating(recipe):
            return kept(format, recipe)
        if scheme_of(recipe) == scheme.name and dtype is None:
            return kept(format, recipe)
        own = recipe.encoding.dtype
        values = dtype or (own if own in FILE_TYPES else dt.float32)
        packed = _is_projection(name, recipe) and columns_of(recipe) % scheme.elements == 0
        return Form(values, scheme.name if packed else None)

    return choose


def _is_projection(name: str, recipe: Recipe) -> bool:
    """Whether MLX quantizes a tensor: matrices of linear layers and embeddings, but not routers of
    experts."""
    is_router = name.endswith(("block_sparse_moe.gate.weight", "mlp.gate.weight"))
    return name.endswith(".weight") and len(recipe.shape) >= 2 and not is_router
