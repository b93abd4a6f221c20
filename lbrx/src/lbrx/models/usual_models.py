"""Shapes of usual language models, to compile their kernels before there is a model.

The kernels depend on the architecture, the sizes of heads and the types of weights, and hardly on
other sizes. Steps of models of two layers with undefined weights are planned, so nothing is
computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.metal.library import PipelineRequest, distinct
from lbrx.models import architectures
from lbrx.models.config import ModelConfig, RopeSettings
from lbrx.models.engine import MIN_CAPACITY, Engine, Prediction
from lbrx.models.kv_cache import CACHE_TYPES, ForwardStep, KVCache
from lbrx.models.loading import compute_dtype
from lbrx.models.memory_plan import CHUNK, MemoryPlan
from lbrx.models.weights import Weights
from lbrx.scheduler.graph_plan import pipelines
from lbrx.scheduler.metal_device import copy_pipelines
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import zeros
from lbrx.tensors.long_lived import new_cache
from lbrx.tensors.quantized import pack

LAYERS = 2  # the first has no sum before its norm
CONTEXT = 8192
PROMPTS = (40, CHUNK)  # tokens
DEVICE = "metal"


@dataclass(frozen=True)
class UsualModel:
    """The facts of a model that its kernels depend on."""

    name: str
    config: ModelConfig
    weights: tuple[str, str]
    """The types of the layers' matrices, and of the embedding and output matrix."""
    interleaved: bool = False
    """Whether queries and keys are stored as in a Llama's GGUF."""


# Model type; sizes of hidden states and MLP; heads, heads of keys, and their size; vocabulary.
SIZES = {
    "SmolLM2 135M": ("llama", (576, 1536), (9, 3, 64), 49152),
    "Llama 3.2 1B": ("llama", (2048, 8192), (32, 8, 64), 128256),
    "Llama 3.1 8B": ("llama", (4096, 14336), (32, 8, 128), 128256),
    "Qwen3 0.6B": ("qwen3", (1024, 3072), (16, 8, 128), 151936),
}


def _config(name: str) -> ModelConfig:
    kind, (hidden, intermediate), (heads, kv_heads, size), vocabulary = SIZES[name]
    factors = (1.0,) * (size // 2) if name.startswith("Llama 3") else None
    rope = RopeSettings(10000.0, size, factors=factors)
    sizes = (LAYERS, hidden, intermediate, heads, kv_heads, size, vocabulary, CONTEXT)
    return ModelConfig(kind, *sizes, 1e-5, True, rope, frozenset(), {})


def usual_models() -> Iterator[UsualModel]:
    """SmolLM2 as it is packaged, and Llama 3 and Qwen3 in the usual quantizations of GGUF."""
    yield UsualModel("SmolLM2 135M", _config("SmolLM2 135M"), ("q4_1", "q8_0"), True)
    for types in (("q4_k", "q6_k"), ("q8_0", "q8_0")):
        for name in ("Llama 3.2 1B", "Llama 3.1 8B", "Qwen3 0.6B"):
            config = _config(name)
            yield UsualModel(name, config, types, interleaved=config.model_type == "llama")


class UndefinedWeights(Weights):
    """Tensors of the right types and shapes in memory that was not written."""

    def __init__(self, model: UsualModel, dtype: Dtype) -> None:
        self.usual = model
        self.dtype = dtype
        self.device = DEVICE
        self.adapters = None
        self.head_size = model.config.head_size
        self.prefix = ""

    @property
    def interleaved(self) -> bool:
        return self.usual.interleaved

    @property
    def has_pairs(self) -> bool:
        return self.interleaved and self.prefix.endswith(("q_proj.", "k_proj."))

    def __contains__(self, name: str) -> bool:
        return False

    def vector(self, name: str, *shape: int) -> Tensor:
        return new_cache(shape, self.dtype, self.device)

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        layers, others = self.usual.weights
        scheme = quant.find(layers if "layers." in self.prefix else others)
        width = columns // scheme.elements * scheme.block_bytes
        return pack(scheme.name, new_cache((rows, width), dt.uint8, self.device))


def model_pipelines(model: UsualModel) -> list[PipelineRequest]:
    """The pipelines that generating text with a model uses on the Metal device."""
    config = model.config
    network = architectures.find(config.model_type)
    dtype = compute_dtype(DEVICE, network)
    memory = MemoryPlan(0, 0, 0, 0, config.context)
    decoder = network(config, UndefinedWeights(model, dtype))
    engine = Engine(decoder, CACHE_TYPES["float16"], memory)
    cache = engine.reserve(1, max(PROMPTS) + MIN_CAPACITY)
    found: list[PipelineRequest] = []
    for count in PROMPTS:
        tokens, places = (zeros((1, count), dtype=dt.int32, device=DEVICE) for _ in range(2))
        length = zeros(1, dtype=dt.int32, device=DEVICE)
        logits = decoder.logits(tokens, ForwardStep(cache, places, length))
        found += _pipelines(engine.predict(logits, places[:, -1:]), replayed=False)
    token, position = (zeros((1, 1), dtype=d, device=DEVICE) for d in (dt.int64, dt.int32))
    found += _pipelines(engine.decode_step(cache)(token, position), replayed=True)
    return distinct(found + _growth_pipelines(engine, cache))


def _growth_pipelines(engine: Engine, cache: KVCache) -> list[PipelineRequest]:
    """Those that copy what a full cache has into one with more room."""
    config, kind = engine.network.config, engine.cache_type
    full = KVCache(config, cache.batch, MIN_CAPACITY, kind, DEVICE).store[..., : PROMPTS[0], :]
    return copy_pipelines(full.array, cache.store[..., : PROMPTS[0], :].array)


def _pipelines(prediction: Prediction, *, replayed: bool) -> list[PipelineRequest]:
    return pipelines([each.array.storage for each in prediction], replayed=replayed)
