"""Fusion: which nodes share a kernel.

Every kernel computes one node, its root, into memory. Elementwise nodes that only this kernel needs
are computed inside it, element by element, and not stored. They are accessed through views:
transposing, slicing or broadcasting becomes part of the kernel's indexing. Nodes that other kernels
need too are stored by the kernel. Reductions of rows become loops of the kernel.

Fusion does not change results: see `program.value_types` for rounding, and `is_row_reduction` and
`epilogue` for reductions and products.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from lbrx import dtype as dt
from lbrx import env
from lbrx import shape as sh
from lbrx.kernels import elementwise, fused_rows
from lbrx.kernels.finishing import FINISHERS
from lbrx.kernels.program import ProgramStep
from lbrx.kernels.row_program import REDUCTIONS, UNORDERED
from lbrx.metal import context
from lbrx.ops import Spec
from lbrx.scheduler.epilogue import FinishedProduct, product_of
from lbrx.scheduler.graph import Node, identity, node_of
from lbrx.shape import Layout, Shape
from lbrx.storage import Array

if TYPE_CHECKING:
    from lbrx.scheduler.row_writes import RowsNode

MAX_BUFFERS = 28  # of 31: the root and the sizes and strides need one each
# Of the operations in one kernel, by `_cost`. A chain cut at this cost compiles sooner, and on
# a CPU it also runs faster than in one kernel, although values are stored between its segments.
# Segments of the same operations have the same text and are compiled once.
MAX_COST = 32
MAX_FINISH_READS = 16  # layouts that steps inside the kernel of another operation read
REDUCTION_COST = 4  # every reduction computes the elements below it once more
LONG_COST = 4
LONGEST_ROW = fused_rows.LONGEST
MANY_ROWS = 8
FEW_ELEMENTS = 1 << 14
MAX_VIEWS = 2  # of one node: computing it in more views costs more than storing it


# The layouts through which a kernel reads each node or storage: each layout takes a buffer.
Reads = dict[object, set[Layout]]


@dataclass
class KernelPlan:
    """A kernel: its root, and the nodes computed inside with the views they are read through."""

    root: Node
    rows: Shape | None = None
    """The shape over which rows are counted; None if the kernel has no reductions."""
    length: int = 1
    """Elements in a row."""
    views: dict[Node, list[Layout]] = field(default_factory=dict)
    stored: list[Node] = field(default_factory=list)
    """The nodes that are written to memory: the root, then those that other kernels need."""
    product: FinishedProduct | None = None
    """The product that the kernel computes and finishes, if any."""
    source: Node | None = None
    """The operation in whose kernel the nodes are computed, if it takes steps after it."""
    writes: tuple[RowsNode, ...] = ()
    """Rows that the kernel rotates or writes to a cache, if that is what it does."""
    prologue: Node | None = None
    """The operation before a product that its kernel computes, if any."""
    gated: Node | None = None
    """The product whose results the kernel takes: all of them, for its root or for `writes`."""
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

    @property
    def is_fused(self) -> bool:
        """Whether the kernel computes more than one operation."""
        return len(self.views) > 1

    def seen(self, consumer: Node, array: Array) -> list[Layout] | None:
        """The views through which a node inside reads an array; None if one is not a layout."""
        return views_of(array, consumer, self.space, self.views[consumer])


def views_of(
    array: Array, consumer: Node, space: Shape, views: Iterable[Layout]
) -> list[Layout] | None:
    """The layouts in which a kernel with this index space reads an operand of a node that is itself
    accessed through views; None if one of them cannot be expressed as a layout."""
    if is_row_reduction(consumer):
        found = [composed(sh.contiguous(space), array.layout)]
    else:
        shape = consumer.outputs[0].shape
        found = [_through(view, array.layout, shape) for view in views]
    layouts = dict.fromkeys(layout for layout in found if layout is not None)
    return list(layouts) if None not in found else None


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


def plan(order: Sequence[Node], targets: Iterable[Node]) -> list[KernelPlan]:
    """The kernels that compute the targets, in an order in which they can run."""
    if not env.fusion():
        return [_own_kernel(node) for node in order]
    wanted = set(targets)
    uses = _uses(order)
    place = {node: i for i, node in enumerate(order)}
    kernels: dict[Node, KernelPlan] = {}
    home: dict[Node, KernelPlan] = {}
    for node in reversed(order):
        kernel = _host(node, uses[node], home, place, node in wanted)
        if kernel is None:
            kernel = kernels[node] = _own_kernel(node)
        home[node] = kernel
    for node in order:
        if node in kernels:
            _finish_product(kernels, node, uses, wanted)
            _finish_source(kernels, node, uses, wanted)
    return [kernels[node] for node in order if node in kernels]


def _finish_product(
    kernels: dict[Node, KernelPlan],
    root: Node,
    uses: dict[Node, list[tuple[Node, Array]]],
    wanted: set[Node],
) -> None:
    """Move the operations of a kernel into that of the product which only they use, if possible."""
    kernel = kernels[root]
    if kernel.rows is not None or kernel.stored != [root] or not is_elementwise(root):
        return
    product = product_of(list(reversed(kernel.views)))
    if product is None or product.matmul in wanted or len(uses[product.matmul]) > 1:
        return
    kernel.product = product
    kernel.views[product.matmul] = [sh.contiguous(root.outputs[0].shape)]
    del kernels[product.matmul]


def _finish_source(
    kernels: dict[Node, KernelPlan],
    root: Node,
    uses: dict[Node, list[tuple[Node, Array]]],
    wanted: set[Node],
) -> None:
    """Move the operations of a kernel into that of an operation which only they use, in order."""
    kernel = kernels[root]
    if kernel.product is not None or kernel.rows is not None or kernel.stored != [root]:
        return
    if not is_elementwise(root) or sum(map(len, kernel.reads.values())) > MAX_FINISH_READS:
        return
    whole = {sh.contiguous(kernel.space)}
    for node, layouts in kernel.reads.items():
        if (
            isinstance(node, Node)
            and _takes_steps(node)
            and node in kernels
            and node not in wanted
            and node.policy == root.policy
            and node.outputs[0].shape == kernel.space
            and layouts == whole
            and all(consumer in kernel.views for consumer, _ in uses[node])
        ):
            kernel.source = node
            kernel.views[node] = list(whole)
            del kernels[node]
            return


def _takes_steps(node: Node) -> bool:
    """Whether the device computes steps after the operation in its kernel."""
    finisher = FINISHERS.get(node.op.name)
    return finisher is not None and len(node.outputs) == 1 and finisher.accepts(context().info)


def _own_kernel(node: Node) -> KernelPlan:
    kernel = KernelPlan(node, stored=[node], cost=_cost(node))
    kernel.views[node] = [sh.contiguous(node.outputs[0].shape)]
    if is_row_reduction(node) and _is_worthwhile(*_row_space(node)):
        kernel.rows, kernel.length = _row_space(node)
        kernel.views[node] = [_row_view(kernel)]
    if kernel.takes_nodes:
        kernel.reads = _reads(kernel, node, kernel.views[node]) or {}
    return kernel


def _uses(order: Sequence[Node]) -> dict[Node, list[tuple[Node, Array]]]:
    """The nodes that read each node, and the arrays through which they do."""
    uses: dict[Node, list[tuple[Node, Array]]] = {node: [] for node in order}
    for node in order:
        for array in node.inputs:
            below = None if array is None else node_of(array)
            if array is not None and below is not None:
                uses[below].append((node, array))
    return uses


def _reads(kernel: KernelPlan, node: Node, views: Sequence[Layout]) -> Reads | None:
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
        layouts = views_of(array, node, kernel.space, views)
        if layouts is None:
            return None
        reads.setdefault(node_of(array) or id(array.storage), set()).update(layouts)
    return reads


def _host(
    node: Node,
    uses: Sequence[tuple[Node, Array]],
    home: dict[Node, KernelPlan],
    place: dict[Node, int],
    wanted: bool,
) -> KernelPlan | None:
    """Put a node into the kernel that needs it, if that kernel can compute it inside.

    If several kernels need the node, the first one computes and stores it and the others read it:
    no earlier kernel needs it, so this cannot create a cycle of kernels.
    """
    hosts = {id(home[consumer]): home[consumer] for consumer, _ in uses}
    if not hosts or not (is_elementwise(node) or is_row_reduction(node)):
        return None
    kernel = min(hosts.values(), key=lambda host: place[host.root])
    stores = wanted or len(hosts) > 1
    cost = kernel.cost + _cost(node)
    if not kernel.takes_nodes or cost > MAX_COST:
        return None
    if node.policy != kernel.root.policy:
        return None
    views = _views_inside(kernel, uses)
    if (
        views is None
        or len(views) > MAX_VIEWS
        or (stores and not _is_storable(kernel, node, views))
    ):
        return None
    more = _reads(kernel, node, views)
    if more is None:
        return None
    reads = {x: kernel.reads.get(x, set()) | more.get(x, set()) for x in kernel.reads | more}
    reads.pop(node, None)
    if sum(map(len, reads.values())) + len(kernel.stored) + stores > MAX_BUFFERS:
        return None
    if is_row_reduction(node) and not _takes_rows(kernel, node, views):
        return None
    kernel.views[node] = [_row_view(kernel)] if is_row_reduction(node) else views
    kernel.reads = reads
    kernel.cost = cost
    if stores:
        kernel.stored.append(node)
    return kernel


def _views_inside(kernel: KernelPlan, uses: Sequence[tuple[Node, Array]]) -> list[Layout] | None:
    """The views through which the nodes of a kernel read a node that they use."""
    views: dict[Layout, None] = {}
    for consumer, array in uses:
        if consumer in kernel.views:
            seen = kernel.seen(consumer, array)
            if seen is None:
                return None
            views |= dict.fromkeys(seen)
    return list(views)


def _is_storable(kernel: KernelPlan, node: Node, views: Sequence[Layout]) -> bool:
    """Whether a kernel computes each element of a node exactly once, in row-major order."""
    whole = math.prod(node.outputs[0].shape) == math.prod(kernel.space)
    return whole and len(views) == 1 and _alike(views[0], sh.contiguous(kernel.space))


# ---- rows ----


def _row_view(kernel: KernelPlan) -> Layout:
    """The view in which all elements of a row read the same value."""
    assert kernel.rows is not None
    return Layout(kernel.space, (*sh.contiguous_strides(kernel.rows), 0))


def _is_worthwhile(rows: Shape, length: int) -> bool:
    """Whether one thread or threadgroup per row uses the device well."""
    count = math.prod(rows)
    return 2 <= length <= LONGEST_ROW and (count >= MANY_ROWS or count * length <= FEW_ELEMENTS)


def _takes_rows(kernel: KernelPlan, node: Node, views: Iterable[Layout]) -> bool:
    """Whether a kernel can compute a reduction inside; if so, it is changed to work on rows."""
    _, length = _row_space(node)
    (view, *others) = views
    if others:
        return False
    shape = kernel.space
    if kernel.rows is None and _alike(view, sh.contiguous(shape)):
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
    if kernel.rows is None and rows == shape:
        for inside, own in kernel.views.items():
            kernel.views[inside] = [
                Layout((*v.shape, length), (*v.strides, 0), v.offset) for v in own
            ]
    kernel.rows, kernel.length = rows, length
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
        return replace(view, offset=view.offset + inner.offset)
    axes, (strides,) = elementwise.collapsed(inner.shape, [inner])
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


# ---- from a kernel to a program ----

NAMED = 4  # operations in a kernel's name


def name_of(kernel: KernelPlan) -> str:
    """The operations in order of computation; only the last ones if there are many."""
    names = [node.op.name for node in reversed(kernel.views) if node.op.name != "copy"]
    if len(names) <= 1:
        return names[0] if names else "copy"
    more = f"{len(names)}_" if len(names) > NAMED else ""
    return f"fused_{more}{'_'.join(names[-NAMED:])}"


def computation(kernel: KernelPlan) -> elementwise.Computation | fused_rows.RowComputation:
    """The program of a fused kernel, with its input arrays in the layouts that it reads."""
    builder = _ProgramBuilder(kernel)
    for node in reversed(kernel.views):  # operands first, so that no call recurses deeply
        if node is kernel.source:
            continue
        for view in kernel.views[node]:
            builder.of_node(node, view)
    results = [builder.of_node(node, kernel.views[node][0]) for node in kernel.stored]
    inputs = tuple(builder.inputs.values())
    steps = tuple(builder.placed(step) for step in builder.steps)
    outputs = tuple(
        (builder.place(value), node.outputs[0])
        for value, node in zip(results, kernel.stored, strict=True)
    )
    name = name_of(kernel)
    if kernel.rows is None:
        return elementwise.Computation(name, kernel.space, inputs, steps, outputs)
    return fused_rows.RowComputation(name, kernel.rows, kernel.length, inputs, steps, outputs)


class ProgramValue(NamedTuple):
    """An input or the result of a step, before the number of inputs is known."""

    is_step: bool
    number: int


class _ProgramBuilder:
    """Collects the inputs and steps of a kernel, each once."""

    def __init__(self, kernel: KernelPlan) -> None:
        self.kernel = kernel
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
            whole = sh.contiguous(self.kernel.space)
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
        inside = below in self.kernel.views and below is not self.kernel.source
        if below is not None and inside:
            return self.of_node(below, seen)
        return self._input(replace(array, layout=seen))

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
