"""Models of random weights, which the suites beside `kernels` read: nothing is downloaded.

Speed does not depend on the values. The sizes are Llama's: attention, gated layers and norms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

import lbrx
from lbrx.files.stored.load_and_save import save

_BOS, _EOS = 1, 2
_NORMAL, _CONTROL = 1, 3  # GGUF's kinds of tokens


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Llama model."""

    hidden: int
    wide: int
    layers: int
    vocabulary: int
    heads: int
    groups: int
    context: int

    def shapes(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Names in Hugging Face's and in GGUF's checkpoints, and shapes."""
        rows = self.hidden // self.heads * self.groups
        yield "model.embed_tokens", "token_embd", (self.vocabulary, self.hidden)
        for n in range(self.layers):
            layer, block = f"model.layers.{n}", f"blk.{n}"
            yield f"{layer}.input_layernorm", f"{block}.attn_norm", (self.hidden,)
            for part, count in (("q", self.hidden), ("k", rows), ("v", rows)):
                yield f"{layer}.self_attn.{part}_proj", f"{block}.attn_{part}", (count, self.hidden)
            yield f"{layer}.self_attn.o_proj", f"{block}.attn_output", (self.hidden, self.hidden)
            yield f"{layer}.post_attention_layernorm", f"{block}.ffn_norm", (self.hidden,)
            for part in ("gate", "up"):
                yield f"{layer}.mlp.{part}_proj", f"{block}.ffn_{part}", (self.wide, self.hidden)
            yield f"{layer}.mlp.down_proj", f"{block}.ffn_down", (self.hidden, self.wide)
        yield "model.norm", "output_norm", (self.hidden,)
        yield "lm_head", "output", (self.vocabulary, self.hidden)

    @property
    def multiplied(self) -> int:
        """Weights that each token is multiplied with: all but the embedding's rows and norms."""
        shapes = [shape for name, _, shape in self.shapes() if "embed" not in name]
        return sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)


SHORT = Sizes(512, 1536, 4, 4096, 8, 4, 4096)
FULL = Sizes(1024, 4096, 12, 32000, 16, 8, 8192)


def _values(
    shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    centre = np.float32(len(shape) == 1)  # norms are near 1
    return centre + rng.standard_normal(shape, np.float32) * np.float32(0.02)


def write_folder(folder: Path, sizes: Sizes, seed: int) -> Path:
    """A folder in Hugging Face's layout in bfloat16. Different seeds are models near each other."""
    base, own = np.random.default_rng(0), np.random.default_rng(seed + 1)
    tensors = {}
    for name, _, shape in sizes.shapes():
        values = _values(shape, base) + own.standard_normal(shape, np.float32) * np.float32(0.002)
        array = values.astype(ml_dtypes.bfloat16)
        tensors[f"{name}.weight"] = lbrx.tensor(array, device="cpu")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": sizes.layers,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.wide,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.groups,
        "head_dim": sizes.hidden // sizes.heads,
        "vocab_size": sizes.vocabulary,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": sizes.context,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    save(folder, tensors, format="safetensors", config=config)
    return folder


def write_gguf(path: Path, sizes: Sizes, scheme: str = "q8_0") -> Path:
    """A quantized GGUF with a vocabulary of made-up tokens, which llama.cpp opens too."""
    rng = np.random.default_rng(0)
    tensors = {}
    for _, name, shape in sizes.shapes():
        made = lbrx.tensor(_values(shape, rng), device="cpu")
        tensors[f"{name}.weight"] = lbrx.quantize(made, scheme) if len(shape) == 2 else made
    tokens = vocabulary(sizes.vocabulary)
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "random",
        "llama.context_length": sizes.context,
        "llama.embedding_length": sizes.hidden,
        "llama.block_count": sizes.layers,
        "llama.feed_forward_length": sizes.wide,
        "llama.attention.head_count": sizes.heads,
        "llama.attention.head_count_kv": sizes.groups,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": sizes.hidden // sizes.heads,
        "llama.vocab_size": sizes.vocabulary,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(-i) for i in range(sizes.vocabulary)],
        "tokenizer.ggml.token_type": [_CONTROL] * 3 + [_NORMAL] * (sizes.vocabulary - 3),
        "tokenizer.ggml.bos_token_id": _BOS,
        "tokenizer.ggml.eos_token_id": _EOS,
    }
    save(path, tensors, metadata)
    return path


def vocabulary(count: int) -> list[str]:
    """Distinct tokens: three with a function, then words of made-up letters."""
    words = (f"{chr(97 + i % 26)}{i // 26}" for i in range(count))
    return ["<unk>", "<s>", "</s>", *words][:count]
