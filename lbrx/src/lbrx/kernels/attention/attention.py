"""Attention: blocks of queries against blocks of keys, or a few queries against a long cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Bool, Constants, Float, Long, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import kernel_name, size_class, whole_buffer
from lbrx.kernels.costs import EMULATED
from lbrx.kernels.matmul.matmul_tiles import COPIED, has_tensor_cores
from lbrx.kernels.movement import movement
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, DeviceInfo
from lbrx.metal.library import PipelineRequest
from lbrx.ops import Spec
from lbrx.ops.attention import check_lengths

USUAL = 16  # head sizes that are multiples of this have specialised kernels
ABSENT = bytes(4)  # bound instead of a missing mask or missing lengths
SERIAL_DEPTH = 256  # the largest head sizes of variants that keep a block in fast memory
LINE = 16  # queries in a vector register
SERIAL_VECTORS = (1, 4)  # vectors of queries per thread, for few and for many
PLAIN_VALUES = 64  # features of a result per thread
DECODE_QUERIES = 8  # the most for which reading the cache, not arithmetic, is the limit
DECODE_CHUNK = 256  # keys of a thread
SPLIT_FROM = 1024  # keys; with fewer, a second pass costs more than more threadgroups gain
SPLIT = 512  # keys per threadgroup above that
DECODE_THREADS = 256
FLASH_DEPTHS = (64, 80, 96, 128, 256)
GROUPED_ROWS = 8  # pairs of a query and a head that share keys, in a threadgroup
# Head sizes by the types of queries and of the cache. Quantized values are rounded to float16.
GROUPED_DEPTHS = {
    (dt.float16, "float16"): FLASH_DEPTHS,
    (dt.bfloat16, "bfloat16"): FLASH_DEPTHS,
    (dt.float32, "float16"): FLASH_DEPTHS,
    (dt.float16, "q8_0"): (64, 128, 256),
}
GROUPED_STAGES = 2  # tiles of a simdgroup in threadgroup memory, as in attention_grouped.h
GROUPED_CHUNKS = 128  # at most
JOIN_THREADS = 256
GROUPED_KEYS = 64  # of a chunk, at least
GROUPED_LONG = 512  # keys of a chunk, from which on two threadgroups of a core share it
GROUPED_ALONE = 128 << 10  # bytes of keys and values for which a second kernel is not worth it
SOME_CORES = 32  # of GPUs that do not say how many they have
MERGE_VALUES = 16  # features of a result that one thread merges


class PlacesRecord(Record, header="attention"):
    """Offsets and strides of rows in elements. The last axis is contiguous."""

    start: Long
    batch: Long
    head: Long
    row: Long


class AttentionRecord(Record, header="attention"):
    query: PlacesRecord
    key: PlacesRecord
    value: PlacesRecord
    mask: PlacesRecord
    mask_key: Long  # from one key to the next; 0 where the mask is the same for all
    heads: UInt
    group: UInt  # query heads that share a key head
    queries: UInt
    keys: UInt
    depth: UInt
    value_depth: UInt
    has_mask: UInt
    has_lengths: UInt
    has_sinks: UInt
    sinks: UInt  # where those of heads begin among the numbers of the mask
    causal: UInt
    window: UInt  # 0 for none
    chunks: UInt  # of keys, whose partial results attention_merge merges
    scale: Float
    cap: Float


class AttentionConstants(Constants, header="attention"):
    """Features of queries and keys, and of values and results: constants for the head sizes that
    models use, so that loops have a known length. 0 means that the record has them.
    """

    DEPTH: UInt = 0
    VALUE_DEPTH: UInt = 0
    CAPPED: Bool = False  # whether scores are cap * tanh(score / cap)


class SerialConstants(AttentionConstants, header="attention_serial"):
    VECTORS: UInt = 1  # of queries in a block


class FlashConstants(AttentionConstants, header="attention_flash"):
    ALIGNED: Bool  # rows begin at multiples of 16 bytes
    MASKED: Bool


class DecodeConstants(AttentionConstants, header="attention_simd"):
    SPLIT: UInt  # keys in a chunk


@dataclass(frozen=True)
class AttentionProblem:
    """The problem: sizes, dtypes and the masking of keys."""

    dtype: Dtype  # of the query and the result
    cached: str  # storage of keys and values: a dtype or a quantization scheme
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    value_depth: int
    causal: bool
    window: int
    scale: float
    cap: float  # 0 for none

    @property
    def rows(self) -> int:
        """Of the result."""
        return self.batch * self.heads * self.queries

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        kinds = f"{self.dtype} {self.cached} {self.depth}"
        group = self.heads // self.kv_heads
        return f"{kinds} {size_class(self.batch * self.kv_heads, group, self.queries, self.keys)}"


@dataclass(frozen=True)
class AttentionOperands:
    """Arrays of shape (batch, heads, rows, features) with contiguous features."""

    query: Array
    key: Array
    value: Array
    mask: Array | None
    lengths: Array | None
    sinks: Array | None  # in the memory of the mask, if there is one
    out: Array

    def arguments(self, problem: AttentionProblem, chunks: int = 1) -> list[Buffer | bytes]:
        """In the order of the kernels' parameters."""
        arrays = (self.query, self.key, self.value)
        buffers = [whole_buffer(x) for x in arrays]
        lengths = ABSENT if self.lengths is None else whole_buffer(self.lengths)
        record = self.record(problem, chunks)
        return [*buffers, self.scores, lengths, whole_buffer(self.out), record]

    @property
    def scores(self) -> Buffer | bytes:
        """The mask and the sinks."""
        added = self.sinks if self.mask is None else self.mask
        return ABSENT if added is None else whole_buffer(added)

    @property
    def aligned(self) -> bool:
        """Whether rows of queries, keys and values begin at multiples of what is copied at once."""
        return all(
            stride * array.dtype.itemsize % COPIED == 0
            for array in (self.query, self.key, self.value)
            for stride in (array.layout.offset, *array.layout.strides[:-1])
        ) and all(whole_buffer(x).offset % COPIED == 0 for x in (self.query, self.key, self.value))

    def record(self, problem: AttentionProblem, chunks: int) -> AttentionRecord:
        """What kernels read for so many chunks of keys."""
        query, key, value, mask = (
            _places(array) for array in (self.query, self.key, self.value, self.mask)
        )
        return AttentionRecord(
            query=query,
            key=key,
            value=value,
            mask=mask,
            mask_key=0 if self.mask is None else self.mask.layout.strides[-1],
            heads=problem.heads,
            group=problem.heads // problem.kv_heads,
            queries=problem.queries,
            keys=problem.keys,
            depth=problem.depth,
            value_depth=problem.value_depth,
            has_mask=self.mask is not None,
            has_lengths=self.lengths is not None,
            has_sinks=self.sinks is not None,
            sinks=0 if self.sinks is None else self.sinks.layout.offset,
            causal=problem.causal,
            window=problem.window,
            chunks=chunks,
            scale=problem.scale,
            cap=problem.cap,
        )


def _places(array: Array | None) -> PlacesRecord:
    if array is None:
        return PlacesRecord(start=0, batch=0, head=0, row=0)
    batch, head, row, _ = array.layout.strides
    return PlacesRecord(start=array.layout.offset, batch=batch, head=head, row=row)


family: KernelFamily[AttentionProblem] = KernelFamily("attention")


@computes("attention")
def run(call: Call) -> tuple[Array, ...]:
    """Attention with keys and values of one floating-point dtype."""
    query, key, value = _typed(call.builder, *(x for x in call.inputs[:3] if x is not None))
    return _run(call, query, key, value, key.dtype.name)


@computes("quantized_attention")
def run_quantized(call: Call) -> tuple[Array, ...]:
    """Attention with quantized keys and values, which are arrays of bytes."""
    query, key, value = (x for x in call.inputs[:3] if x is not None)
    if query.dtype is not dt.float16:
        query = layouts.cast(call.builder, query, dt.float32)
    return _run(call, query, key, value, call.attributes["scheme"])


def _run(call: Call, query: Array, key: Array, value: Array, cached: str) -> tuple[Array, ...]:
    """Bring the operands into the form that kernels take, with as few copies as possible."""
    (spec,) = call.outputs
    *_, heads, queries, value_depth = spec.shape
    mask, lengths, sinks = [*call.inputs[3:], None, None, None][:3]
    depth = query.layout.shape[-1]
    kv_heads, keys, _ = key.layout.shape[-3:]
    batch = math.prod(spec.shape[:-3])
    out = call.builder.result(Spec(spec.shape, query.dtype))
    if out.layout.size == 0:
        return (layouts.cast(call.builder, out, spec.dtype),)
    scale = call.attributes["scale"]
    problem = AttentionProblem(
        *(query.dtype, cached, batch, heads, kv_heads, queries, keys, depth, value_depth),
        causal=bool(call.attributes["causal"]),
        window=int(call.attributes["window"]),
        scale=1 / math.sqrt(max(depth, 1)) if scale is None else float(scale),
        cap=float(call.attributes["cap"]),
    )
    mask = None if mask is None else _masking(call.builder, mask, (*spec.shape[:-1], keys))
    if sinks is not None:
        mask, sinks = _with_sinks(call.builder, mask, sinks)
    operands = AttentionOperands(
        query=_four_axes(call.builder, query),
        key=_four_axes(call.builder, key),
        value=_four_axes(call.builder, value),
        mask=mask,
        lengths=None if lengths is None else _counts(call.builder, lengths, keys),
        sinks=sinks,
        out=out,
    )
    family.run(call.builder, problem, operands)
    return (layouts.cast(call.builder, out, spec.dtype),)


def _typed(b: Builder, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Cast key and value to one floating-point dtype, and the query to that or to float32."""
    kinds = [x.dtype if x.dtype.is_float else dt.float32 for x in (query, key, value)]
    of_cache = dt.promote(kinds[1], kinds[2])
    of_query = kinds[0] if kinds[0] is of_cache else dt.float32
    key, value = (layouts.cast(b, x, of_cache) for x in (key, value))
    return layouts.cast(b, query, of_query), key, value


def _four_axes(b: Builder, array: Array, *, gaps: bool = False) -> Array:
    """Merge the batch axes; copies if strides do not allow it or features are not contiguous."""
    shape = (math.prod(array.layout.shape[:-3]), *array.layout.shape[-3:])
    layout = sh.reshape(array.layout, shape)
    if layout is None or not (gaps or layout.strides[-1] == 1 or shape[-1] == 1):
        array = layouts.contiguous(b, array)
        layout = sh.reshape(array.layout, shape)
        assert layout is not None
    return replace(array, layout=layout)


def _masking(b: Builder, mask: Array, scores: tuple[int, ...]) -> Array:
    """The mask as float32 of shape (batch, heads, queries, keys).

    It has stride 0 where it is broadcast over heads, queries or keys.
    """
    mask = layouts.cast(b, b.placed(mask), dt.float32)
    shape = (1,) * (len(scores) - mask.layout.ndim) + mask.layout.shape
    mask = replace(mask, layout=sh.expand(mask.layout, (*scores[:-3], *shape[-3:])))
    mask = _four_axes(b, mask, gaps=True)
    return replace(mask, layout=sh.expand(mask.layout, (-1, *scores[-3:])))


def _with_sinks(b: Builder, mask: Array | None, sinks: Array) -> tuple[Array | None, Array]:
    """The mask and the sinks in one buffer, which kernels read both from."""
    sinks = layouts.contiguous(b, layouts.cast(b, b.placed(sinks), dt.float32))
    if mask is None:
        return None, sinks
    low, high = mask.layout.bounds()
    count = high - low
    both = b.result(Spec((count + sinks.layout.size,), dt.float32))
    stored = replace(mask, layout=sh.contiguous((count,), low))
    kept = replace(both, layout=sh.contiguous((count,)))
    movement.copy(b, stored, kept)
    placed_sinks = replace(both, layout=sh.contiguous(sinks.layout.shape, count))
    movement.copy(b, sinks, placed_sinks)
    layout = replace(mask.layout, offset=mask.layout.offset - low)
    return replace(both, layout=layout), placed_sinks


def _counts(b: Builder, lengths: Array, keys: int) -> Array:
    """The lengths as int32. Those that the host wrote are checked; kernels clamp others."""
    if lengths.storage.device != "metal":
        check_lengths(lengths.numpy(), keys)
    else:
        b.inspect("check of lengths", lengths, lambda values: check_lengths(values, keys))
    return layouts.contiguous(b, layouts.cast(b, b.placed(lengths), dt.int32))


def _function(problem: AttentionProblem, variant: str) -> str:
    return f"{kernel_name('attention', variant, problem.dtype)}_{problem.cached}"


def _pipeline(
    b: Builder,
    problem: AttentionProblem,
    variant: str,
    constants: AttentionConstants,
    stem: str = "attention",
) -> PipelineRequest:
    return b.pipeline(stem, _function(problem, variant), constants, safe_math=True)


def _sizes(problem: AttentionProblem) -> dict[str, Any]:
    """The function constants for these head sizes, or those for any size."""
    sizes = (problem.depth, problem.value_depth)
    depth, value_depth = sizes if all(size % USUAL == 0 for size in sizes) else (0, 0)
    return {"DEPTH": depth, "VALUE_DEPTH": value_depth, "CAPPED": problem.cap > 0}


def _plain_cost(info: DeviceInfo, problem: AttentionProblem) -> float:
    """The most expensive variant: scores are computed again for every few features."""
    return 2 * EMULATED


@family.variant("plain", cost=_plain_cost)
def plain(b: Builder, problem: AttentionProblem, operands: AttentionOperands) -> None:
    """One thread per query and group of features of its result."""
    parts = -(-problem.value_depth // PLAIN_VALUES)
    grid = (problem.queries, problem.batch * problem.heads, parts)
    b.launch(
        _pipeline(b, problem, "plain", AttentionConstants(**_sizes(problem))),
        operands.arguments(problem),
        grid,
        (min(grid[0], 32), 1, 1),
    )


def _fits(info: DeviceInfo, problem: AttentionProblem) -> bool:
    return max(problem.depth, problem.value_depth) <= SERIAL_DEPTH


# GPU compilers do not support wide vectors.
on_processors = partial(family.variant, can=_fits, made_for=DeviceKind.WIDE, only=True)


@on_processors("serial", cost=lambda info, problem: 10.0)
def serial(b: Builder, problem: AttentionProblem, operands: AttentionOperands) -> None:
    """One thread per block of queries, which are the lanes of its vector registers."""
    few, many = SERIAL_VECTORS
    vectors = few if problem.queries <= few * LINE else many
    constants = SerialConstants(**_sizes(problem), VECTORS=vectors)
    b.launch(
        _pipeline(b, problem, "serial", constants, stem="attention_serial"),
        operands.arguments(problem),
        (problem.batch * problem.heads, -(-problem.queries // (vectors * LINE)), 1),
        (1, 1, 1),
    )


def _few_queries(info: DeviceInfo, problem: AttentionProblem) -> bool:
    return _fits(info, problem) and problem.queries <= DECODE_QUERIES


# Not batch invariant: the number of queries decides the variant.
@on_processors(
    "decode_serial", can=_few_queries, cost=lambda info, problem: 5.0, batch_invariant=False
)
def decode_serial(b: Builder, problem: AttentionProblem, operands: AttentionOperands) -> None:
    """One thread per chunk of keys, read once for all heads that share them."""
    chunks = max(-(-problem.keys // DECODE_CHUNK), 1)
    constants = SerialConstants(**_sizes(problem))
    pipeline = _pipeline(b, problem, "decode_serial", constants, stem="attention_serial")
    shares = KeyShares.of(b, problem, chunks)
    b.launch(
        pipeline,
        [*operands.arguments(problem, chunks), shares.sums, shares.marks],
        (chunks, problem.batch * problem.kv_heads, 1),
        (1, 1, 1),
    )
    shares.merge(b, problem, operands)


@dataclass(frozen=True)
class FlashBlocks:
    """The blocks of a flash kernel, as the instances in attention_flash.metal have them."""

    name: str
    factor: Dtype  # what is multiplied
    rows: int  # queries of a simdgroup
    groups: int  # simdgroups
    keys: int  # at a time
    ahead: bool = False  # whether the next keys and values are copied while these are used

    @property
    def queries(self) -> int:
        """Queries of a threadgroup."""
        return self.groups * self.rows

    def memory(self, depth: int) -> int:
        """Bytes of threadgroup memory: keys and values in padded rows; or those of two blocks, and
        the queries, from a multiple of 1024 on."""
        if not self.ahead:
            return 2 * self.keys * (depth * self.factor.itemsize + COPIED)
        return (self.queries + 4 * self.keys) * depth * self.factor.itemsize + 1024


def flash_blocks(info: DeviceInfo, problem: AttentionProblem) -> FlashBlocks:
    """Large ones for tensor cores, else those that fit into an Apple GPU's threadgroup memory."""
    depth, dtype = problem.depth, problem.dtype
    if dtype.itemsize == 2 and has_tensor_cores(info):
        if depth in (64, 128):
            return FlashBlocks("flash_large", dtype, 16, 4, 8192 // depth, ahead=True)
        return FlashBlocks("flash_large", dtype, 16, 4, 32 if depth == 256 else 64)
    if dtype is dt.float16:
        return FlashBlocks("flash", dtype, 8, 4, 16 if depth == 256 else 32)
    return FlashBlocks("flash", dt.float32, 8, 4, {128: 16, 256: 8}.get(depth, 32))


def _flash_can(info: DeviceInfo, problem: AttentionProblem) -> bool:
    same = problem.depth == problem.value_depth
    return info.simdgroup_matrix and same and problem.depth in FLASH_DEPTHS


@family.variant(
    "flash", can=_flash_can, cost=lambda info, problem: 10.0, made_for=DeviceKind.TENSOR
)
def flash(b: Builder, problem: AttentionProblem, operands: AttentionOperands) -> None:
    """One threadgroup per block of queries; simdgroups multiply tiles."""
    blocks = flash_blocks(b.info, problem)
    function = f"{_function(problem, blocks.name)}_{problem.depth}"
    constants = FlashConstants(
        DEPTH=problem.depth,
        VALUE_DEPTH=problem.value_depth,
        CAPPED=problem.cap > 0,
        ALIGNED=operands.aligned,
        MASKED=operands.mask is not None,
    )
    count = -(-problem.queries // blocks.queries)
    threads = blocks.groups * 32
    b.launch(
        b.pipeline("attention_flash", function, constants, safe_math=True),
        operands.arguments(problem),
        (count * threads, problem.batch * problem.heads, 1),
        (threads, 1, 1),
        threadgroup_memory=(blocks.memory(problem.depth),),
    )


def _decode_cost(info: DeviceInfo, problem: AttentionProblem) -> float:
    """For few queries, since each reads all keys; for many if no other variant fits."""
    return 5.0 if problem.queries <= DECODE_QUERIES else 50.0


@family.variant(
    "decode", can=_fits, cost=_decode_cost, batch_invariant=False, made_for=DeviceKind.SIMD
)
def decode(b: Builder, problem: AttentionProblem, operands: AttentionOperands) -> None:
    """One threadgroup per query and chunk of keys."""
    split = SPLIT if problem.keys > SPLIT_FROM else SPLIT_FROM
    chunks = max(-(-problem.keys // split), 1)
    constants = DecodeConstants(
        DEPTH=problem.depth,
        VALUE_DEPTH=problem.value_depth,
        CAPPED=problem.cap > 0,
        SPLIT=split,
    )
    shares = KeyShares.of(b, problem, chunks)
    b.launch(
        b.pipeline("attention_simd", _function(problem, "decode"), constants, safe_math=True),
        [*operands.arguments(problem, chunks), shares.sums, shares.marks],
        (chunks * DECODE_THREADS, problem.queries, problem.batch * problem.heads),
        (DECODE_THREADS, 1, 1),
    )
    shares.merge(b, problem, operands)


def _grouped_can(info: DeviceInfo, problem: AttentionProblem) -> bool:
    depths = GROUPED_DEPTHS.get((problem.dtype, problem.cached), ())
    return _flash_can(info, problem) and problem.depth in depths


def _grouped_cost(info: DeviceInfo, problem: AttentionProblem) -> float:
    """Below `decode`, and above `flash` where there are many queries."""
    rows = problem.queries * (problem.heads // problem.kv_heads)
    return 4.0 if rows <= 4 * GROUPED_ROWS else 40.0


@dataclass(frozen=True)
class GroupedBlocks:
    """How keys are divided among threadgroups, and those of one among its simdgroups."""

    chunks: int
    simdgroups: int
    memory: int  # bytes of threadgroup memory


def grouped_blocks(info: DeviceInfo, problem: AttentionProblem) -> GroupedBlocks:
    """Enough threadgroups for all cores, unless there are so few keys that one is as fast."""
    tensor = has_tensor_cores(info)
    quantized = problem.cached == "q8_0"
    cores = info.cores or SOME_CORES
    threadgroups = problem.batch * problem.kv_heads * _row_blocks(problem)
    alone = 4 * problem.keys * problem.depth <= GROUPED_ALONE
    if tensor:
        simdgroups = 8 if problem.depth < 128 or (alone and problem.depth == 128) else 4
    else:
        simdgroups = 4 if problem.depth <= 128 else 2
    keys = 16 if tensor else 8
    stages = GROUPED_STAGES if tensor and not quantized else 1
    tile = keys * (problem.depth + 8) * 2
    raw = -(-keys * problem.depth * 34 // 32 // 16) * 16 if quantized else 0
    memory = simdgroups * (stages * 2 * tile + raw)
    # One a core, as its simdgroups have enough bytes on their way; two where one leaves cores idle.
    wanted = (1 if cores >= 4 * threadgroups else 2) * cores // threadgroups
    has_room = tensor and 2 * memory <= info.threadgroup_memory
    if has_room and problem.keys >= wanted * GROUPED_LONG:
        # As many as fit: of fewer, that come while the kernel in front of theirs ends, the cores
        # that are free first would take two and leave others idle.
        wanted = 2 * cores // threadgroups
    chunks = max(min(wanted, -(-problem.keys // GROUPED_KEYS), GROUPED_CHUNKS), 1)
    return GroupedBlocks(1 if alone else chunks, simdgroups, memory)


def _row_blocks(problem: AttentionProblem) -> int:
    """Blocks of rows that share keys."""
    return -(-problem.queries * problem.heads // problem.kv_heads // GROUPED_ROWS)


@family.variant(
    "grouped",
    can=_grouped_can,
    cost=_grouped_cost,
    batch_invariant=False,
    made_for=DeviceKind.TENSOR,
)
def grouped(b: Builder, problem: AttentionProblem, operands: AttentionOperands) -> None:
    """One threadgroup per eight rows that share keys, and chunk of keys."""
    if not all(_in_words(array) for array in (operands.key, operands.value)):
        named = b.named(family.name, "decode", lambda: "grouped for memory not in words")
        decode(named, problem, operands)
        return
    blocks = grouped_blocks(b.info, problem)
    threads = blocks.simdgroups * 32
    shares = KeyShares.of(b, problem, blocks.chunks)
    function = f"{_function(problem, 'grouped')}_{problem.depth}"
    constants = AttentionConstants(
        DEPTH=problem.depth, VALUE_DEPTH=problem.value_depth, CAPPED=problem.cap > 0
    )
    b.launch(
        b.pipeline("attention_grouped", function, constants, safe_math=True),
        [*operands.arguments(problem, blocks.chunks), shares.sums, shares.marks],
        (blocks.chunks * threads, _row_blocks(problem), problem.batch * problem.kv_heads),
        (threads, 1, 1),
        threadgroup_memory=(blocks.memory,),
    )
    shares.join(b, problem, operands)


def _in_words(array: Array) -> bool:
    """Whether every row starts at a whole word of the kernel: 16 bytes, or 4 of quantized rows."""
    word = 4 if array.dtype is dt.uint8 else 16
    places = (array.layout.offset, *array.layout.strides[:-1])
    return all(place * array.dtype.itemsize % word == 0 for place in places)


@dataclass(frozen=True)
class KeyShares:
    """The contributions of chunks of keys to each result, which a second pass merges."""

    chunks: int
    sums: Buffer
    marks: Buffer

    @classmethod
    def of(cls, b: Builder, problem: AttentionProblem, chunks: int) -> KeyShares:
        """With a single chunk the result is written directly and the buffers are dummies."""
        count = problem.rows * chunks if chunks > 1 else 1
        sums = b.scratch(count * problem.value_depth * 4)
        return cls(chunks, sums, b.scratch(count * 8))

    def merge(self, b: Builder, problem: AttentionProblem, operands: AttentionOperands) -> None:
        """Add up the chunks' partial sums; nothing to do where there is one chunk."""
        if self.chunks == 1:
            return
        record = operands.record(problem, self.chunks)
        name = kernel_name("attention", "merge", problem.dtype)
        grid = (-(-problem.value_depth // MERGE_VALUES), problem.rows, 1)
        b.launch(
            b.pipeline("attention", name, AttentionConstants(), safe_math=True),
            [self.sums, self.marks, whole_buffer(operands.out), record, operands.scores],
            grid,
            (grid[0], 1, 1),
            part="merge",
        )

    def join(self, b: Builder, problem: AttentionProblem, operands: AttentionOperands) -> None:
        """Add up the chunks' partial sums, with one threadgroup per row of the result."""
        if self.chunks == 1:
            return
        name = kernel_name("attention", "join", problem.dtype)
        b.launch(
            b.pipeline("attention_grouped", name, AttentionConstants(), safe_math=True),
            [
                self.sums,
                self.marks,
                whole_buffer(operands.out),
                operands.record(problem, self.chunks),
                operands.scores,
            ],
            (problem.rows * JOIN_THREADS, 1, 1),
            (JOIN_THREADS, 1, 1),
            part="join",
        )


family.samples += [
    Sample(
        "attention",
        (Spec((1, 8, 512, 64), dt.float32), *[Spec((1, 2, 512, 64), dt.float32)] * 2),
        {"causal": True, "window": 0, "scale": None, "cap": 0.0},
    ),
    Sample(
        "attention",
        (Spec((1, 8, 1, 128), dt.float16), *[Spec((1, 2, 2048, 128), dt.float16)] * 2),
        {"causal": True, "window": 0, "scale": None, "cap": 0.0},
    ),
]
