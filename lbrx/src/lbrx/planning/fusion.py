"""Fusion: which nodes share a kernel.

Every kernel computes one node, its root, into memory. Elementwise nodes that only this kernel needs
are computed inside it, element by element, and not stored. They are accessed through views:
transposing, slicing or broadcasting becomes part of the kernel's indexing. Nodes that other kernels
need too are stored by the kernel. Reductions of rows become loops of the kernel.

Fusion does not change results: see `program.value_types` for rounding, and `is_row_reduction` for
reductions. `joins` says what else a kernel can compute.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Layout, Shape
from lbrx.arrays.storage import Array
from lbrx.graph.graph import Node, identity, node_of
from lbrx.kernels import layouts
from lbrx.kernels.elementwise import elementwise
from lbrx.kernels.fused_rows import fused_rows
from lbrx.ops import Spec
from lbrx.program.element_program import ProgramStep
from lbrx.program.row_program import REDUCTIONS, UNORDERED

MAX_BUFFERS = 28  # of 31: the root and the sizes and strides need one each
# Of the operations in one kernel, by `_cost`. A chain cut at this cost compiles sooner, and on
# a CPU it also runs faster than in one kernel, although values are stored between its segments.
# Segments of the same operations have the same text and are compiled once.
MAX_COST = 32
REDUCTION_COST = 4  # every reduction computes the elements below it once more
LONG_COST = 4
LONGEST_ROW = fused_rows.LONGEST
MANY_ROWS = 8
FEW_ELEMENTS = 1 << 14
MAX_VIEWS = 2  # of one node: computing it in more views costs more than storing it


# The layouts through which a kernel reads each node or storage: each layout takes a buffer.
Reads = dict[object, set[Layout]]
Uses = Mapping[Node, list[tuple[Node, Array]]]


@dataclass
class Cluster:
    """What a kernel could compute: its root, and the nodes inside with the views they are read
    through."""

    root: Node
    rows: Shape | None = None
    """The shape over which rows are counted; None if the kernel has no reductions."""
    length: int = 1
    """Elements in a row."""
    views: dict[Node, list[Layout]] = field(default_factory=dict)
    stored: list[Node] = field(default_factory=list)
    """The nodes that are written to memory: the root, then those that other kernels need."""
    reads: Reads = field(default_factory=dict)
    cost: int = 0
    """The sum of the costs of the nodes inside."""

    @property
    def space(self) -> Shape:
        """The index space of the kernel."""
        shape = self.root.outputs[0].shape
        return shape if self.rows is None else (*self.rows, self.length)

    @property
    def takes_nodes(self) -> bool:
        """Whether other nodes can be computed inside."""
        return self.rows is not None or is_elementwise(self.root)

    def seen(self, consumer: Node, array: Array) -> list[Layout] | None:
        """The views through which a node inside reads an array; None if one is not a layout."""
        return views_of(array, consumer, self.space, self.views[consumer])


def views_of(
    array: Array, consumer: Node, space: Shape, views: Iterable[Layout]
) -> list[Layout] | None:
    """The layouts in which a kernel with this index space reads an operand of a node that is itself
    accessed through views; None if one of them cannot be expressed as a layout."""
    if is_row_reduction(consumer):
        views_in_space = [composed(sh.contiguous(space), array.layout)]
    else:
        shape = consumer.outputs[0].shape
        views_in_space = [_through(view, array.layout, shape) for view in views]
    layouts = dict.fromkeys(layout for layout in views_in_space if layout is not None)
    return list(layouts) if None not in views_in_space else None


def is_elementwise(node: Node) -> bool:
    """Whether a node computes each element from the same place of its operands."""
    return elementwise.has_function(node.op) or node.op.name == "copy"


def is_row_reduction(node: Node) -> bool:
    """Whether a node is a reduction of floats over the last axes, which can share a kernel.

    Such a kernel adds in another order than the reduction's own kernel, so within `deterministic`
    only maxima and minima are fused.
    """
    if node.op.name not in REDUCTIONS or not node.outputs[0].dtype.is_float:
        return False
    if node.policy.deterministic and node.op.name not in UNORDERED:
        return False
    (array,) = (x for x in node.inputs if x is not None)
    shape = array.layout.shape
    axes = sh.normalize_axes(node.attributes["axis"], len(shape))
    return bool(axes) and array.dtype.is_float and axes == tuple(range(axes[0], len(shape)))


def _cost(node: Node) -> int:
    """What an operation counts towards `MAX_COST`, roughly as it takes to compile."""
    if is_row_reduction(node):
        return REDUCTION_COST
    return LONG_COST if node.op.name in elementwise.LONG else 1


def _row_space(node: Node) -> tuple[Shape, int]:
    """The shape over which rows of a reduction's operand are counted, and their length."""
    (array,) = (x for x in node.inputs if x is not None)
    shape = array.layout.shape
    first = sh.normalize_axes(node.attributes["axis"], len(shape))[0]
    return shape[:first], math.prod(shape[first:])


def clusters(order: Sequence[Node], targets: Container[Node], uses: Uses) -> list[Cluster]:
    """The clusters that compute the targets, in an order in which they can run."""
    place = {node: i for i, node in enumerate(order)}
    by_node: dict[Node, Cluster] = {}
    home: dict[Node, Cluster] = {}
    for node in reversed(order):
        cluster = _host(node, uses[node], home, place, node in targets)
        if cluster is None:
            cluster = by_node[node] = _own_kernel(node)
        home[node] = cluster
    return [by_node[node] for node in order if node in by_node]


def _own_kernel(node: Node) -> Cluster:
    cluster = Cluster(node, stored=[node], cost=_cost(node))
    cluster.views[node] = [sh.contiguous(node.outputs[0].shape)]
    if is_row_reduction(node) and _is_worthwhile(*_row_space(node)):
        cluster.rows, cluster.length = _row_space(node)
        cluster.views[node] = [_row_view(cluster)]
    if cluster.takes_nodes:
        cluster.reads = _reads(cluster, node, cluster.views[node]) or {}
    return cluster


def uses_of(order: Sequence[Node]) -> Uses:
    """The nodes that read each node, and the arrays through which they do."""
    uses: Uses = {node: [] for node in order}
    for node in order:
        for array in node.inputs:
            below = None if array is None else node_of(array)
            if array is not None and below is not None:
                uses[below].append((node, array))
    return uses


def _reads(cluster: Cluster, node: Node, views: Sequence[Layout]) -> Reads | None:
    """What a kernel reads to compute a node in these views; None if that is not possible."""
    if is_row_reduction(node):
        return {node_of(array) or id(array.storage): {array.layout} for array in node.arrays()}
    reads: Reads = {}
    for array in (
        *node.arrays(),
        *map(elementwise.host_number, elementwise.numbers(node.attributes)),
    ):
        if elementwise.is_host(array):
            reads[identity(array)] = {array.layout}
            continue
        layouts = views_of(array, node, cluster.space, views)
        if layouts is None:
            return None
        reads.setdefault(node_of(array) or id(array.storage), set()).update(layouts)
    return reads


def _host(
    node: Node,
    uses: Sequence[tuple[Node, Array]],
    home: dict[Node, Cluster],
    place: dict[Node, int],
    wanted: bool,
) -> Cluster | None:
    """Put a node into the kernel that needs it, if that kernel can compute it inside.

    If several kernels need the node, the first one computes and stores it and the others read it:
    no earlier kernel needs it, so this cannot create a cycle of kernels.
    """
    hosts = {id(home[consumer]): home[consumer] for consumer, _ in uses}
    if not hosts or not (is_elementwise(node) or is_row_reduction(node)):
        return None
    cluster = min(hosts.values(), key=lambda host: place[host.root])
    stores = wanted or len(hosts) > 1
    cost = cluster.cost + _cost(node)
    if not cluster.takes_nodes or cost > MAX_COST:
        return None
    if node.policy != cluster.root.policy:
        return None
    views = _views_inside(cluster, uses)
    if (
        views is None
        or len(views) > MAX_VIEWS
        or (stores and not _is_storable(cluster, node, views))
    ):
        return None
    more = _reads(cluster, node, views)
    if more is None:
        return None
    reads = {x: cluster.reads.get(x, set()) | more.get(x, set()) for x in cluster.reads | more}
    reads.pop(node, None)
    if sum(map(len, reads.values())) + len(cluster.stored) + stores > MAX_BUFFERS:
        return None
    if is_row_reduction(node) and not _takes_rows(cluster, node, views):
        return None
    cluster.views[node] = [_row_view(cluster)] if is_row_reduction(node) else views
    cluster.reads = reads
    cluster.cost = cost
    if stores:
        cluster.stored.append(node)
    return cluster


def _views_inside(cluster: Cluster, uses: Sequence[tuple[Node, Array]]) -> list[Layout] | None:
    """The views through which the nodes of a kernel read a node that they use."""
    views: dict[Layout, None] = {}
    for consumer, array in uses:
        if consumer in cluster.views:
            seen = cluster.seen(consumer, array)
            if seen is None:
                return None
            views |= dict.fromkeys(seen)
    return list(views)


def _is_storable(cluster: Cluster, node: Node, views: Sequence[Layout]) -> bool:
    """Whether a kernel computes each element of a node exactly once, in row-major order."""
    whole = math.prod(node.outputs[0].shape) == math.prod(cluster.space)
    return whole and len(views) == 1 and _alike(views[0], sh.contiguous(cluster.space))


# ---- rows ----


def _row_view(cluster: Cluster) -> Layout:
    """The view in which all elements of a row read the same value."""
    assert cluster.rows is not None
    return Layout(cluster.space, (*sh.contiguous_strides(cluster.rows), 0))


def _is_worthwhile(rows: Shape, length: int) -> bool:
    """Whether one thread or threadgroup per row uses the device well."""
    count = math.prod(rows)
    return 2 <= length <= LONGEST_ROW and (count >= MANY_ROWS or count * length <= FEW_ELEMENTS)


def _takes_rows(cluster: Cluster, node: Node, views: Iterable[Layout]) -> bool:
    """Whether a kernel can compute a reduction inside; if so, it is changed to work on rows."""
    _, length = _row_space(node)
    (view, *others) = views
    if others:
        return False
    shape = cluster.space
    if cluster.rows is None and _alike(view, sh.contiguous(shape)):
        rows = shape  # the kernel has one result per row
    elif (
        shape
        and shape[-1] == length
        and _alike(view, Layout(shape, (*sh.contiguous_strides(shape[:-1]), 0)))
    ):
        rows = shape[:-1]
    else:
        return False
    (array,) = node.arrays()
    if math.prod(rows) != math.prod(node.outputs[0].shape) or not _is_worthwhile(rows, length):
        return False
    if views_of(array, node, (*rows, length), ()) is None:
        return False
    if cluster.rows is None and rows == shape:
        for inside, inside_views in cluster.views.items():
            cluster.views[inside] = [
                Layout((*v.shape, length), (*v.strides, 0), v.offset) for v in inside_views
            ]
    cluster.rows, cluster.length = rows, length
    return True


def _alike(a: Layout, b: Layout) -> bool:
    """Whether two layouts of a shape are equivalent: strides of axes of size 1 do not matter."""
    steps = zip(a.shape, a.strides, b.strides, strict=True)
    return a.offset == b.offset and all(n == 1 or s == t for n, s, t in steps)


# ---- views ----


@lru_cache(sh.KNOWN)
def _through(view: Layout, layout: Layout, shape: Shape) -> Layout | None:
    """An array, broadcast to a shape, as read through a view of that shape."""
    return composed(view, sh.expand(layout, shape))


def composed(view: Layout, inner: Layout) -> Layout | None:
    """A view of an array's row-major positions, as a layout of the array's own storage.

    None if there is no such layout: an axis of the view crosses axes of the array that cannot be
    merged.
    """
    if inner.is_contiguous:
        return Layout(view.shape, view.strides, view.offset + inner.offset)
    axes, (strides,) = layouts.collapsed(inner.shape, [inner])
    if view == sh.contiguous(inner.shape):
        return inner
    steps = sh.contiguous_strides(axes)
    first = _unravelled(view.offset, steps)
    low, high = list(first), list(first)
    result = []
    for n, stride in zip(view.shape, view.strides, strict=True):
        if n == 1 or stride == 0:
            result.append(0)
            continue
        axis = next((i for i, s in enumerate(steps) if s <= abs(stride)), len(steps) - 1)
        step, rest = divmod(stride, steps[axis])
        if rest:
            return None
        reach = step * (n - 1)
        low[axis] += min(reach, 0)
        high[axis] += max(reach, 0)
        result.append(step * strides[axis])
    if min(low) < 0 or any(h >= n for h, n in zip(high, axes, strict=True)):
        return None
    offset = inner.offset + sum(p * s for p, s in zip(first, strides, strict=True))
    return Layout(view.shape, tuple(result), offset)


def _unravelled(position: int, steps: Shape) -> list[int]:
    places = []
    for step in steps:
        places.append(position // step)
        position %= step
    return places


# ---- from a cluster to a program ----

NAMED = 4  # operations in a kernel's name


def name_of(nodes: Sequence[Node]) -> str:
    """The operations of a kernel in order of computation, given with the root first; only the last
    ones if there are many."""
    if len(nodes) == 1:
        return nodes[0].op.name
    names = [node.op.name for node in reversed(nodes) if node.op.name != "copy"]
    if len(names) <= 1:
        return names[0] if names else "copy"
    more = f"{len(names)}_" if len(names) > NAMED else ""
    return f"fused_{more}{'_'.join(names[-NAMED:])}"


def computation(cluster: Cluster) -> elementwise.Computation | fused_rows.RowComputation:
    """The program of a cluster, with its input arrays in the layouts that it reads."""
    builder = _ProgramBuilder(cluster)
    for node in reversed(cluster.views):  # operands first, so that no call recurses deeply
        for view in cluster.views[node]:
            builder.of_node(node, view)
    results = [builder.of_node(node, cluster.views[node][0]) for node in cluster.stored]
    inputs = tuple(builder.inputs.values())
    steps = tuple(builder.placed(step) for step in builder.steps)
    outputs = tuple(
        (builder.place(value), node.outputs[0])
        for value, node in zip(results, cluster.stored, strict=True)
    )
    name = name_of(tuple(cluster.views))
    if cluster.rows is None:
        return elementwise.Computation(name, cluster.space, inputs, steps, outputs)
    return fused_rows.RowComputation(name, cluster.rows, cluster.length, inputs, steps, outputs)


class ProgramValue(NamedTuple):
    """An input or the result of a step, before the number of inputs is known."""

    is_step: bool
    number: int


class _ProgramBuilder:
    """Collects the inputs and steps of a kernel, each once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.inputs: dict[object, Array] = {}
        self.steps: list[tuple[ProgramStep, list[ProgramValue]]] = []
        self.known: dict[tuple[Node, Layout], ProgramValue] = {}

    def of_node(self, node: Node, view: Layout) -> ProgramValue:
        """The value of a node that is computed inside, read through a view."""
        if (node, view) not in self.known:
            self.known[node, view] = self._computed(node, view)
        return self.known[node, view]

    def _computed(self, node: Node, view: Layout) -> ProgramValue:
        if is_row_reduction(node):
            (array,) = node.arrays()
            whole = sh.contiguous(self.cluster.space)
            operand = self._operand(array, composed(whole, array.layout))
            gives = node.outputs[0].dtype
            return self._step(ProgramStep(node.op.name, ((0, dt.float32),), gives), [operand])
        arrays = node.arrays()
        shape = node.outputs[0].shape
        values = [
            self._input(array)
            if elementwise.is_host(array)
            else self._operand(array, _through(view, array.layout, shape))
            for array in arrays
        ]
        if node.op.name == "copy":
            return values[0]
        numbers = map(elementwise.host_number, elementwise.numbers(node.attributes))
        values += map(self._input, numbers)
        specs = [Spec(array.layout.shape, array.dtype) for array in arrays]
        step = elementwise.step_of(node.op, node.attributes, specs, node.outputs[0].dtype)
        return self._step(step, values)

    def _step(self, step: ProgramStep, values: list[ProgramValue]) -> ProgramValue:
        self.steps.append((step, values))
        return ProgramValue(True, len(self.steps) - 1)

    def _operand(self, array: Array, seen: Layout | None) -> ProgramValue:
        assert seen is not None
        below = node_of(array)
        if below is not None and below in self.cluster.views:
            return self.of_node(below, seen)
        return self._input(Array(array.storage, seen, array.dtype))

    def _input(self, array: Array) -> ProgramValue:
        key = identity(array)
        self.inputs.setdefault(key, array)
        return ProgramValue(False, list(self.inputs).index(key))

    def place(self, value: ProgramValue) -> int:
        return value.number + (len(self.inputs) if value.is_step else 0)

    def placed(self, step: tuple[ProgramStep, list[ProgramValue]]) -> ProgramStep:
        """The step with its arguments numbered as in the program."""
        what, values = step
        dtypes = [dtype for _, dtype in what.arguments]
        return replace(what, arguments=tuple(zip(map(self.place, values), dtypes, strict=True)))
