"""A language model as MIL functions: `prefill` reads a chunk of a prompt, `decode` one token.

Activations are (1, channels, 1, tokens) and projections 1x1 convolutions, which is what the Neural
Engine is fastest with. Shapes are static. What depends on the position (embeddings, RoPE, masks) is
computed from integers in front of the layers, where Core ML uses the CPU; the layers themselves
have no integers and stay on the Neural Engine. For the same reason the cache is written by two
products with masks of ones and zeros, unless a style asks for updates at an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.models.config import ModelConfig, RopeSettings
from lbrx.models.export.network_parts import LayerParts, PartsReader, Projection
from lbrx.neural_engine.binding import mil_builder, mil_types
from lbrx.neural_engine.mil_package import build_function
from lbrx.neural_engine.weight_forms import ProgramWeight

HIDDEN_SCORE = -1e4
"""Added to the scores of tokens that are not seen: exp of it is 0, and fp16 holds it."""
HEAD_ROWS = 16384
"""Rows of the output matrix in one convolution: more channels are slow to compile."""


CACHES = ("masks", "slices")
ATTENTIONS = ("operation", "products")


@dataclass(frozen=True)
class ProgramStyle:
    """Ways of writing the same computation, of which only a Mac can show the fastest."""

    cache: str = CACHES[0]
    """`masks` write the whole cache without integers; `slices` write new rows at an index."""
    attention: str = ATTENTIONS[0]
    """`operation` is Core ML's own; `products` are a product, a softmax and a product."""
    greedy: bool = False
    """Whether `decode` gives the most likely token in place of logits."""


USUAL_STYLE = ProgramStyle()


def _integers(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@dataclass(frozen=True)
class NetworkParts:
    """All constants of a program. Its functions share their bytes."""

    config: ModelConfig
    embedding: ProgramWeight
    head: ProgramWeight
    layers: tuple[LayerParts, ...]
    norm: NDArray[np.float16]

    @classmethod
    def read(cls, reader: PartsReader) -> NetworkParts:
        config = reader.config
        layers = tuple(reader.layer(index) for index in range(config.layers))
        embedding = reader.embedding()
        return cls(config, embedding, reader.head() or embedding, layers, reader.final_norm())


def rope_tables(
    rope: RopeSettings, context: int, size: int
) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Cosines and signed sines (context, size) of x * cos + swapped(x) * sin, where `swapped`
    exchanges the two halves of the rotated features."""
    half = rope.dims // 2
    rates = rope.base ** (-np.arange(half) / half)
    if rope.factors is not None:
        rates = rates / np.asarray(rope.factors, np.float64)
    angles = np.arange(context)[:, None] * rope.scale * rates
    cos, sin = np.cos(angles) * rope.amplitude, np.sin(angles) * rope.amplitude
    rest = size - rope.dims
    cosines = np.concatenate((cos, cos, np.ones((context, rest))), axis=1)
    sines = np.concatenate((-sin, sin, np.zeros((context, rest))), axis=1)
    return cosines.astype(np.float16), sines.astype(np.float16)


def language_function(
    parts: NetworkParts, context: int, tokens: int, style: ProgramStyle | None = None
) -> Any:
    """The MIL function for so many tokens at a time: with one it gives `logits`, with more the
    normalised `hidden` states. `context` is a multiple of `tokens`."""
    builder = FunctionBuilder(parts.config, context, tokens, style or USUAL_STYLE)

    def body(ids: Any, position: Any, keys: Any, values: Any) -> Any:
        x = builder.embedded(parts.embedding, ids)
        builder.find_positions(position, {layer.window for layer in parts.layers})
        x = builder.layers(parts.layers, x, (keys, values))
        return builder.result(parts.norm, parts.head, x)

    states = builder.states(len(parts.layers))
    return build_function({**builder.token_inputs(), **states}, body)


class FunctionBuilder:
    """Emits the operations of one function, or of a part of it."""

    def __init__(self, config: ModelConfig, context: int, tokens: int, style: ProgramStyle) -> None:
        self.mb = mil_builder()
        self.style = style
        self.config = config
        self.context = context
        self.tokens = tokens
        self.group = config.heads // config.kv_heads

    def token_inputs(self) -> dict[str, Any]:
        """Placeholders of token ids and of the position of the first."""
        integers = mil_types().int32
        return {
            "tokens": self.mb.placeholder((1, self.tokens), dtype=integers),
            "position": self.mb.placeholder((1,), dtype=integers),
        }

    def states(self, layers: int) -> dict[str, Any]:
        """Placeholders of the caches of so many layers."""
        shape = (layers, self.config.kv_heads, self.context, self.config.head_size)
        kind = mil_types().fp16
        make = self.mb.state_tensor_placeholder
        return {name: make(shape, dtype=kind) for name in ("keys", "values")}

    def layers(self, layers: Sequence[LayerParts], x: Any, states: tuple[Any, Any]) -> Any:
        """The hidden states after some layers, whose caches are the states."""
        mb = self.mb
        self.caches = states
        # What is in the states, as of the layer that is written.
        self.held = [mb.read_state(input=state) for state in states]
        self.kept: tuple[list[Any], list[Any]] = ([], [])  # parts of whole new states, by layer
        if self.style.cache == "slices":
            self.end = mb.add(x=self.place, y=np.int32(self.tokens))
        else:
            self.elsewhere = mb.sub(x=np.float16(1), y=self.here)
        for index, layer in enumerate(layers):
            normed = self._norm(x, layer.attention_norm, 1, f"layer{index}_norm1")
            attended = self._attention(index, layer, normed)
            x = mb.add(x=x, y=attended)
            normed = self._norm(x, layer.mlp_norm, 1, f"layer{index}_norm2")
            x = mb.add(x=x, y=self._mlp(index, layer, normed))
        for state, rows in zip(states, self.kept, strict=True) if self.kept[0] else ():
            whole = mb.concat(values=rows, axis=0) if len(rows) > 1 else rows[0]
            mb.coreml_update_state(state=state, value=whole)
        return x

    def embedded(self, embedding: ProgramWeight, tokens: Any) -> Any:
        """The hidden states in front of the first layer."""
        mb, hidden = self.mb, self.config.hidden
        matrix = embedding.emit("embedding")
        rows = mb.gather(x=matrix, indices=tokens, axis=0)  # (1, tokens, hidden, 1, 1)
        rows = mb.reshape(x=rows, shape=(1, self.tokens, 1, hidden))
        return mb.transpose(x=rows, perm=(0, 3, 2, 1))

    def find_positions(self, position: Any, windows: Iterable[int]) -> None:
        """What depends on the position of the first token, a multiple of `tokens`."""
        mb, count, size = self.mb, self.tokens, self.config.head_size
        places = mb.add(x=position, y=np.arange(count, dtype=np.int32))
        tables = rope_tables(self.config.rope, self.context, size)
        self.cos, self.sin = (
            mb.reshape(
                x=mb.transpose(x=mb.gather(x=table, indices=places, axis=0), perm=(1, 0)),
                shape=(1, 1, size, count),
            )
            for table in tables
        )
        self.place = position
        starts = np.arange(0, self.context, count, dtype=np.int32)
        here = mb.cast(x=mb.equal(x=starts, y=position), dtype="fp16")
        self.here = mb.reshape(x=here, shape=(1, 1, len(starts), 1))
        rows = mb.reshape(x=places, shape=(count, 1))
        self.masks = {window: self._mask(rows, window) for window in sorted(windows)}

    def _mask(self, rows: Any, window: int) -> Any:
        """0 where a token sees another, else HIDDEN_SCORE: (1, 1, group * tokens, context)."""
        mb, columns = self.mb, np.arange(self.context, dtype=np.int32)[None]
        seen = mb.cast(x=mb.less_equal(x=columns, y=rows), dtype="fp16")
        if window:
            near = mb.greater(x=columns, y=mb.sub(x=rows, y=np.int32(window)))
            seen = mb.mul(x=seen, y=mb.cast(x=near, dtype="fp16"))
        hidden = mb.mul(x=mb.sub(x=np.float16(1), y=seen), y=np.float16(HIDDEN_SCORE))
        mask = mb.reshape(x=hidden, shape=(1, 1, self.tokens, self.context))
        return mb.tile(x=mask, reps=(1, 1, self.group, 1)) if self.group > 1 else mask

    def _norm(self, x: Any, weight: NDArray[np.float16], axis: int, name: str) -> Any:
        """RMSNorm as a layer norm of (x, -x), whose mean is zero: squares stay inside it."""
        mb, width = self.mb, len(weight)
        both = mb.concat(values=(x, mb.mul(x=x, y=np.float16(-1))), axis=axis)
        gamma = np.concatenate((weight, np.zeros(width, np.float16)))
        normed = mb.layer_norm(
            x=both, axes=[axis], gamma=gamma, epsilon=np.float16(self.config.norm_eps), name=name
        )
        end = [width if place == axis else size for place, size in enumerate(x.shape)]
        return mb.slice_by_index(x=normed, begin=[0] * x.rank, end=end)

    def _project(self, x: Any, map_: Projection, name: str) -> Any:
        bias = {} if map_.bias is None else {"bias": map_.bias}
        return self.mb.conv(x=x, weight=map_.weight.emit(name), pad_type="valid", **bias)

    def _attention(self, index: int, layer: LayerParts, x: Any) -> Any:
        mb, config, count = self.mb, self.config, self.tokens
        query = self._heads(x, layer, layer.query, config.heads, f"layer{index}_query")
        key = self._heads(x, layer, layer.key, config.kv_heads, f"layer{index}_key")
        value = self._project(x, layer.value, f"layer{index}_value")
        value = self._rows(mb.reshape(x=value, shape=(1, config.kv_heads, config.head_size, count)))
        joined = (1, config.kv_heads, self.group * count, config.head_size)
        query = mb.reshape(x=self._rows(query), shape=joined)
        write = self._updated if self.style.cache == "slices" else self._masked
        keys, values = write(index, 0, self._rows(key)), write(index, 1, value)
        attended = self._attended(query, keys, values, layer)
        heads = mb.reshape(x=attended, shape=(1, config.heads, count, config.head_size))
        width = config.heads * config.head_size
        flat = mb.reshape(x=self._rows(heads), shape=(1, width, 1, count))
        return self._project(flat, layer.output, f"layer{index}_output")

    def _rows(self, x: Any) -> Any:
        """(1, heads, features, tokens) to (1, heads, tokens, features), or back."""
        return self.mb.transpose(x=x, perm=(0, 1, 3, 2))

    def _heads(self, x: Any, layer: LayerParts, map_: Projection, heads: int, name: str) -> Any:
        """Rotated queries or keys: (1, heads, features, tokens)."""
        mb, size = self.mb, self.config.head_size
        flat = self._project(x, map_, name)
        made = mb.reshape(x=flat, shape=(1, heads, size, self.tokens))
        norm = layer.query_norm if map_ is layer.query else layer.key_norm
        if norm is not None:
            made = self._norm(made, norm, 2, f"{name}_norm")
        if not layer.uses_rope:
            return made
        half, dims = self.config.rope.dims // 2, self.config.rope.dims
        ranges = ((half, dims), (0, half), (dims, size))
        pieces = [self._features(made, *bounds) for bounds in ranges if bounds[0] < bounds[1]]
        swapped = mb.concat(values=pieces, axis=2)
        return mb.add(x=mb.mul(x=made, y=self.cos), y=mb.mul(x=swapped, y=self.sin))

    def _features(self, x: Any, first: int, end: int) -> Any:
        shape = (*x.shape[:2], end, x.shape[3])
        return self.mb.slice_by_index(x=x, begin=(0, 0, first, 0), end=shape)

    def _attended(self, query: Any, keys: Any, values: Any, layer: LayerParts) -> Any:
        mb, mask = self.mb, self.masks[layer.window]
        # The operation multiplies scores by the inverse root of the head size itself.
        own = self.config.head_size**-0.5 if self.style.attention == "operation" else 1.0
        if abs(layer.scale / own - 1) > 1e-6:
            query = mb.mul(x=query, y=np.float16(layer.scale / own))
        if self.style.attention == "operation":
            return mb.scaled_dot_product_attention(
                query=query, key=keys, value=values, attn_mask=mask
            )
        scores = mb.add(x=mb.matmul(x=query, y=keys, transpose_y=True), y=mask)
        return mb.matmul(x=mb.softmax(x=scores, axis=-1), y=values)

    def _masked(self, index: int, part: int, rows: Any) -> Any:
        """A layer's part of the cache with the new rows at the position, where masks say."""
        mb, config = self.mb, self.config
        whole = (1, config.kv_heads, self.context, config.head_size)
        blocks = (
            *(1, config.kv_heads),
            *(self.context // self.tokens, self.tokens * config.head_size),
        )
        old = mb.reshape(x=self._layer_of(self.held[part], index), shape=blocks)
        new = mb.reshape(x=rows, shape=(1, config.kv_heads, 1, blocks[3]))
        kept, put = mb.mul(x=old, y=self.elsewhere), mb.mul(x=new, y=self.here)
        made = mb.reshape(x=mb.add(x=kept, y=put), shape=whole)
        self.kept[part].append(made)
        return made

    def _updated(self, index: int, part: int, rows: Any) -> Any:
        """The same by an update of the new rows alone."""
        mb, config = self.mb, self.config
        first, last = _integers(index, 0), _integers(index + 1, config.kv_heads)
        begin = mb.concat(values=(first, self.place, _integers(0)), axis=0)
        end = mb.concat(values=(last, self.end, _integers(config.head_size)), axis=0)
        changed = mb.slice_update(x=self.held[part], update=rows, begin=begin, end=end)
        self.held[part] = mb.coreml_update_state(state=self.caches[part], value=changed)
        return self._layer_of(self.held[part], index)

    def _layer_of(self, state: Any, index: int) -> Any:
        end = (index + 1, self.config.kv_heads, self.context, self.config.head_size)
        return self.mb.slice_by_index(x=state, begin=(index, 0, 0, 0), end=end)

    def _mlp(self, index: int, layer: LayerParts, x: Any) -> Any:
        mb = self.mb
        gate = self._project(x, layer.gate, f"layer{index}_gate")
        up = self._project(x, layer.up, f"layer{index}_up")
        if layer.activation == "silu":
            gate = mb.silu(x=gate)
        else:
            exact = layer.activation == "gelu"
            gate = mb.gelu(x=gate, mode="EXACT" if exact else "TANH_APPROXIMATION")
        return self._project(mb.mul(x=gate, y=up), layer.down, f"layer{index}_down")

    def result(self, norm: NDArray[np.float16], matrix: ProgramWeight, x: Any) -> Any:
        """What follows the last layer: logits or the most likely token; of several tokens, the
        normalised hidden states."""
        mb, rows = self.mb, self.config.vocabulary
        normed = self._norm(x, norm, 1, "norm")
        if self.tokens > 1:
            return mb.identity(x=normed, name="hidden")
        pieces = []
        for first in range(0, rows, HEAD_ROWS):
            part = matrix.take(slice(first, first + HEAD_ROWS)).emit(f"head{first}")
            pieces.append(mb.conv(x=normed, weight=part, pad_type="valid"))
        every = mb.concat(values=pieces, axis=1) if len(pieces) > 1 else pieces[0]
        if not self.style.greedy:
            return mb.reshape(x=every, shape=(1, rows), name="logits")
        logits = mb.reshape(x=every, shape=(1, rows))
        return mb.reduce_argmax(x=logits, axis=1, keep_dims=False, name="token")
