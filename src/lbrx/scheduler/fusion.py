"""Which nodes become one kernel.

Every kernel computes one node, its root, into memory. Elementwise nodes whose results only one
kernel needs are computed inside it, element by element, and never stored. They are seen through
views: a transposed, sliced or broadcast use folds into the indices with which the kernel reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.kernels import elementwise, fused_rows
from lbrx.kernels.program import Step
from lbrx.kernels.row_program import REDUCTIONS
from lbrx.ops import Spec
from lbrx.scheduler.graph import Node, identity, node_of
from lbrx.shape import Layout, Shape
from lbrx.storage import Array

# A kernel has 31 buffers; some are for results, sizes and strides.
MAX_INPUTS = 26
MAX_NODES = 128
LONGEST_ROW = fused_rows.LONGEST
MAX_VIEWS = 2  # in which one node is computed: more cost more than they save


@dataclass
class Kernel:
    """A root and what is computed inside its kernel, each with the views it is seen through."""

    root: Node
    rows: Shape | None = None
    """The axes of the rows that are reduced; None if the kernel is elementwise."""
    length: int = 1
    """Elements in a row."""
    views: dict[Node, list[Layout]] = field(default_factory=dict)
    inputs: int = 0

    @property
    def space(self) -> Shape:
        """What the kernel walks through."""
        shape = self.root.outputs[0].shape
        return shape if self.rows is None else (*self.rows, self.length)

    @property
    def is_fused(self) -> bool:
        return len(self.views) > 1

    def seen(self, consumer: Node, array: Array) -> list[Layout] | None:
        """The views through which a consumer inside reads an array; None if one is no layout."""
        if is_row_reduction(consumer):
            found = [composed(sh.contiguous(self.space), array.layout)]
        else:
            shape = consumer.outputs[0].shape
            inner = sh.expand(array.layout, shape)
            found = [composed(view, inner) for view in self.views[consumer]]
        views = dict.fromkeys(view for view in found if view is not None)
        return list(views) if None not in found else None


def is_elementwise(node: Node) -> bool:
    return node.op.family in elementwise.FAMILIES or node.op.name == "copy"


def is_row_reduction(node: Node) -> bool:
    """Over the last axes, of floating elements: such a reduction can share a kernel."""
    if node.op.name not in REDUCTIONS or not node.outputs[0].dtype.is_float:
        return False
    (array,) = (x for x in node.inputs if x is not None)
    shape = array.layout.shape
    axes = sh.normalize_axes(node.attributes["axis"], len(shape))
    return bool(axes) and array.dtype.is_float and axes == tuple(range(axes[0], len(shape)))


def _row_space(node: Node) -> tuple[Shape, int]:
    """The rows of a reduction's operand, and their length."""
    (array,) = (x for x in node.inputs if x is not None)
    shape = array.layout.shape
    first = sh.normalize_axes(node.attributes["axis"], len(shape))[0]
    return shape[:first], math.prod(shape[first:])


def plan(order: Sequence[Node], targets: Iterable[Node]) -> list[Kernel]:
    """The kernels that compute the targets, in the order in which they can run."""
    wanted = set(targets)
    uses = _uses(order)
    kernels: dict[Node, Kernel] = {}
    home: dict[Node, Kernel] = {}
    for node in reversed(order):
        kernel = None if node in wanted else _inside(node, uses[node], home)
        if kernel is None:
            kernel = kernels[node] = _own_kernel(node)
        home[node] = kernel
    return [kernels[node] for node in order if node in kernels]


def _own_kernel(node: Node) -> Kernel:
    kernel = Kernel(node, inputs=_array_count(node))
    if is_row_reduction(node):
        kernel.rows, kernel.length = _row_space(node)
        kernel.views[node] = [_row_view(kernel)]
    else:
        kernel.views[node] = [sh.contiguous(node.outputs[0].shape)]
    return kernel


def _uses(order: Sequence[Node]) -> dict[Node, list[tuple[Node, Array]]]:
    """Who reads each node, and through which array."""
    uses: dict[Node, list[tuple[Node, Array]]] = {node: [] for node in order}
    for node in order:
        for array in node.inputs:
            below = None if array is None else node_of(array)
            if array is not None and below is not None:
                uses[below].append((node, array))
    return uses


def _array_count(node: Node) -> int:
    return sum(array is not None for array in node.inputs)


def _inside(
    node: Node, uses: Sequence[tuple[Node, Array]], home: dict[Node, Kernel]
) -> Kernel | None:
    """Put the node into the one kernel that needs it, if that can compute it as it goes along."""
    hosts = {id(home[consumer]): home[consumer] for consumer, _ in uses}
    if len(hosts) != 1 or not (is_elementwise(node) or is_row_reduction(node)):
        return None
    (kernel,) = hosts.values()
    if node.policy != kernel.root.policy:
        return None
    if not (is_elementwise(kernel.root) or is_row_reduction(kernel.root)):
        return None
    more = kernel.inputs + _array_count(node) - 1
    if more > MAX_INPUTS or len(kernel.views) >= MAX_NODES:
        return None
    views: dict[Layout, None] = {}
    for consumer, array in uses:
        seen = kernel.seen(consumer, array)
        if seen is None:
            return None
        views |= dict.fromkeys(seen)
    if len(views) > MAX_VIEWS or not (is_elementwise(node) or _takes_rows(kernel, node, views)):
        return None
    kernel.views[node] = [_row_view(kernel)] if is_row_reduction(node) else list(views)
    kernel.inputs = more
    return kernel


# ---- rows ----


def _row_view(kernel: Kernel) -> Layout:
    """How the elements of a row see a value that the row has one of."""
    assert kernel.rows is not None
    return Layout(kernel.space, (*sh.contiguous_strides(kernel.rows), 0))


def _takes_rows(kernel: Kernel, node: Node, views: Iterable[Layout]) -> bool:
    """Whether a kernel can make a reduction one of its loops; if so, it becomes one over rows."""
    _, length = _row_space(node)
    (view, *others) = views
    if others or length < 2 or length > LONGEST_ROW:
        return False
    shape = kernel.space
    if kernel.rows is None and _alike(view, sh.contiguous(shape)):
        rows = shape  # the results are values of rows
    elif (
        shape
        and shape[-1] == length
        and _alike(view, Layout(shape, (*sh.contiguous_strides(shape[:-1]), 0)))
    ):
        rows = shape[:-1]
    else:
        return False
    if math.prod(rows) != math.prod(node.outputs[0].shape):
        return False
    if kernel.rows is None and rows == shape:
        for inside, own in kernel.views.items():
            kernel.views[inside] = [
                Layout((*v.shape, length), (*v.strides, 0), v.offset) for v in own
            ]
    kernel.rows, kernel.length = rows, length
    return True


def _alike(a: Layout, b: Layout) -> bool:
    """Whether two layouts of a shape are the same: the stride of a single element is none."""
    steps = zip(a.shape, a.strides, b.strides, strict=True)
    return a.offset == b.offset and all(n == 1 or s == t for n, s, t in steps)


# ---- views ----


def composed(view: Layout, inner: Layout) -> Layout | None:
    """A view of the row-major positions of an array, as a layout of what the array shows.

    None where that is no layout: an axis of the view crosses axes of the array that lie apart.
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


# ---- from a kernel to steps ----

NAMED = 4  # operations in a kernel's name


def name_of(kernel: Kernel) -> str:
    """The operations in the order in which they are computed; of many the last ones."""
    names = [node.op.name for node in reversed(kernel.views) if node.op.name != "copy"]
    if len(names) <= 1:
        return names[0] if names else "copy"
    more = f"{len(names)}_" if len(names) > NAMED else ""
    return f"fused_{more}{'_'.join(names[-NAMED:])}"


def computation(kernel: Kernel) -> elementwise.Computation | fused_rows.RowComputation:
    """A fused kernel's steps, with every array as the kernel reads it."""
    (spec,) = kernel.root.outputs
    values = _Values(kernel)
    (view,) = kernel.views[kernel.root]
    result = values.of_node(kernel.root, view)
    place = values.place(result)
    inputs = tuple(values.inputs.values())
    steps = tuple(values.placed(step) for step in values.steps)
    name = name_of(kernel)
    if kernel.rows is None:
        outputs = ((place, spec.dtype),)
        return elementwise.Computation(name, spec.shape, inputs, steps, outputs)
    return fused_rows.RowComputation(
        name, kernel.rows, kernel.length, inputs, steps, ((place, spec),)
    )


class Value(NamedTuple):
    """An input or the result of a step, before it is known how many inputs there are."""

    is_step: bool
    number: int


class _Values:
    """The inputs and steps of a kernel, each once."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.inputs: dict[object, Array] = {}
        self.steps: list[tuple[Step, list[Value]]] = []
        self.known: dict[tuple[Node, Layout], Value] = {}

    def of_node(self, node: Node, view: Layout) -> Value:
        """A node computed inside, seen through a view."""
        if (node, view) not in self.known:
            self.known[node, view] = self._computed(node, view)
        return self.known[node, view]

    def _computed(self, node: Node, view: Layout) -> Value:
        if is_row_reduction(node):
            (array,) = node.arrays()
            whole = sh.contiguous(self.kernel.space)
            operand = self._operand(array, composed(whole, array.layout))
            return self._step(Step(node.op.name, ((0, dt.float32),), dt.float32), [operand])
        arrays = node.arrays()
        shape = node.outputs[0].shape
        values = [
            self._input(array)
            if elementwise.is_host(array)
            else self._operand(array, composed(view, sh.expand(array.layout, shape)))
            for array in arrays
        ]
        if node.op.name == "copy":
            return values[0]
        numbers = map(elementwise.host_number, elementwise.numbers(node.attributes))
        values += map(self._input, numbers)
        specs = [Spec(array.layout.shape, array.dtype) for array in arrays]
        step = elementwise.step_of(node.op, node.attributes, specs, node.outputs[0].dtype)
        return self._step(step, values)

    def _step(self, step: Step, values: list[Value]) -> Value:
        self.steps.append((step, values))
        return Value(True, len(self.steps) - 1)

    def _operand(self, array: Array, seen: Layout | None) -> Value:
        assert seen is not None
        below = node_of(array)
        if below is not None and below in self.kernel.views:
            return self.of_node(below, seen)
        return self._input(replace(array, layout=seen))

    def _input(self, array: Array) -> Value:
        key = identity(array)
        self.inputs.setdefault(key, array)
        return Value(False, list(self.inputs).index(key))

    def place(self, value: Value) -> int:
        return value.number + (len(self.inputs) if value.is_step else 0)

    def placed(self, step: tuple[Step, list[Value]]) -> Step:
        """The step with its arguments in their final places."""
        what, values = step
        dtypes = [dtype for _, dtype in what.arguments]
        return replace(what, arguments=tuple(zip(map(self.place, values), dtypes, strict=True)))
