"""Which nodes become one kernel.

Every kernel computes one node, its root, into memory. Elementwise nodes whose results only one
kernel needs are computed inside it, element by element, and never stored. They are seen through
views: a transposed, sliced or broadcast use folds into the indices with which the kernel reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lbrx import shape as sh
from lbrx.kernels import elementwise
from lbrx.kernels.program import Step
from lbrx.ops import Spec
from lbrx.scheduler.graph import Node, node_of
from lbrx.shape import Layout, Shape
from lbrx.storage import Array

# A kernel has 31 buffers; some are for results, sizes and strides.
MAX_INPUTS = 26
MAX_NODES = 128
MAX_VIEWS = 2  # in which one node is computed: more cost more than they save


@dataclass
class Kernel:
    """A root and what is computed inside its kernel, each with the views it is seen through."""

    root: Node
    views: dict[Node, list[Layout]] = field(default_factory=dict)
    inputs: int = 0

    @property
    def inlined(self) -> list[Node]:
        return [node for node in self.views if node is not self.root]


def is_elementwise(node: Node) -> bool:
    return node.op.family in elementwise.FAMILIES or node.op.name == "copy"


def plan(order: Sequence[Node], targets: Iterable[Node]) -> list[Kernel]:
    """The kernels that compute the targets, in the order in which they can run."""
    wanted = set(targets)
    uses = _uses(order)
    kernels: dict[Node, Kernel] = {}
    home: dict[Node, Kernel] = {}
    for node in reversed(order):
        inside = None if node in wanted else _inside(node, uses[node], home)
        if inside is None:
            shape = node.outputs[0].shape
            made = Kernel(node, {node: [sh.contiguous(shape)]}, _array_count(node))
            kernels[node] = home[node] = made
        else:
            kernel, views = inside
            kernel.views[node] = views
            kernel.inputs += _array_count(node) - 1
            home[node] = kernel
    return [kernels[node] for node in order if node in kernels]


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
) -> tuple[Kernel, list[Layout]] | None:
    """The one kernel that can compute the node as part of its own work, and the views there."""
    hosts = {id(home[consumer]): home[consumer] for consumer, _ in uses}
    if len(hosts) != 1 or not is_elementwise(node):
        return None
    (kernel,) = hosts.values()
    if not is_elementwise(kernel.root) or len(kernel.views) >= MAX_NODES:
        return None
    if kernel.inputs + _array_count(node) - 1 > MAX_INPUTS:
        return None
    views: dict[Layout, None] = {}
    for consumer, array in uses:
        for view in kernel.views[consumer]:
            seen = through(view, consumer.outputs[0].shape, array)
            if seen is None:
                return None
            views[seen] = None
    return (kernel, list(views)) if len(views) <= MAX_VIEWS else None


def through(view: Layout, shape: Shape, array: Array) -> Layout | None:
    """Where an operand lies for a consumer of this shape that is itself seen through a view."""
    return composed(view, sh.expand(array.layout, shape))


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


def computation(kernel: Kernel) -> elementwise.Computation:
    """An elementwise kernel's steps, with every array as the kernel reads it."""
    (spec,) = kernel.root.outputs
    values = _Values(kernel)
    result = values.of_node(kernel.root, sh.contiguous(spec.shape))
    return elementwise.Computation(
        name_of(kernel),
        spec.shape,
        tuple(values.inputs.values()),
        tuple(values.placed(step) for step in values.steps),
        ((values.place(result), spec.dtype),),
    )


class Value(NamedTuple):
    """An input or the result of a step, before it is known how many inputs there are."""

    is_step: bool
    index: int


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
        arrays = node.arrays()
        shape = node.outputs[0].shape
        values = [self._operand(array, shape, view) for array in arrays]
        if node.op.name == "copy":
            return values[0]
        values += [self._input(elementwise.host_number(v)) for v in elementwise.numbers(node.attributes)]
        specs = [Spec(array.layout.shape, array.dtype) for array in arrays]
        step = elementwise.step_of(node.op, node.attributes, specs, node.outputs[0].dtype)
        self.steps.append((step, values))
        return Value(True, len(self.steps) - 1)

    def _operand(self, array: Array, shape: Shape, view: Layout) -> Value:
        if elementwise.is_host(array):
            return self._input(array)
        seen = through(view, shape, array)
        assert seen is not None
        below = node_of(array)
        if below in self.kernel.views:
            return self.of_node(below, seen)
        return self._input(replace(array, layout=seen))

    def _input(self, array: Array) -> Value:
        if elementwise.is_host(array):
            key: object = (array.dtype, array.numpy().tobytes())
        else:
            key = (id(array.storage), array.layout, array.dtype)
        self.inputs.setdefault(key, array)
        return Value(False, list(self.inputs).index(key))

    def place(self, value: Value) -> int:
        return value.index + (len(self.inputs) if value.is_step else 0)

    def placed(self, step: tuple[Step, list[Value]]) -> Step:
        """The step with its arguments in their final places."""
        what, values = step
        dtypes = [dtype for _, dtype in what.arguments]
        return replace(what, arguments=tuple(zip(map(self.place, values), dtypes, strict=True)))
