"""Shapes of usual language models, to compile their kernels before there is a model.

The kernels depend on the architecture, the sizes of heads and the types of weights, and hardly on
other sizes. Models of two layers with undefined weights go through the steps of an engine within
`listing_pipelines`, so nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbrx import dtype as dt
from lbrx import quant
from lbrx.dtype import Dtype
from lbrx.metal.commands import recording
from lbrx.metal.library import PipelineRequest, listing_pipelines
from lbrx.models import architectures
from lbrx.models.config import ModelConfig, RopeSettings
from lbrx.models.engine import MIN_CAPACITY, Engine
from lbrx.models.kv_cache import CACHE_TYPES
from lbrx.models.loading import compute_dtype
from lbrx.models.memory_plan import CHUNK, MemoryPlan
from lbrx.models.weights import Weights
from lbrx.tensor.core import Tensor
from lbrx.tensor.creation import tensor
from lbrx.tensor.evaluation import start
from lbrx.tensor.long_lived import new_cache
from lbrx.tensor.quantized import pack

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
        self.interleaved = model.interleaved
        self.dtype = dtype
        self.device = DEVICE
        self.prefix = ""

    def __contains__(self, name: str) -> bool:
        return False

    def vector(self, name: str, size: int) -> Tensor:
        return new_cache((size,), self.dtype, self.device)

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
    with listing_pipelines() as requests:
        memory = MemoryPlan(0, 0, 0, 0, config.context)
        decoder = network(config, UndefinedWeights(model, dtype))
        engine = Engine(decoder, CACHE_TYPES["float16"], memory)
        for tokens in PROMPTS:
            engine.prefill([[0] * tokens], MIN_CAPACITY)
        assert engine.cache is not None
        token, position = (tensor([[0]], dtype=d, device=DEVICE) for d in (dt.int64, dt.int32))
        with recording():
            start(engine.decode_step(engine.cache)(token, position))
    return list(requests)
