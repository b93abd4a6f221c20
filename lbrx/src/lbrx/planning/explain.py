"""Explanations: which operations of a pending graph share which kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from lbrx.arrays.storage import Array, Storage
from lbrx.graph.graph import LOCK, Node, in_order, node_of, nodes_of
from lbrx.metal import context
from lbrx.planning.joins import joined
from lbrx.planning.joins.planned_graph import Joined

LINE, INDENT, MARGIN = 18, 16, 12  # pixels
CHARACTER = 7.3


@dataclass(frozen=True)
class ExplainedOperation:
    """An operation inside a kernel, numbered over all kernels."""

    number: int
    sources: tuple[int, ...]
    """The numbers of the operations whose results it reads."""
    name: str
    result: str  # dtype and shape
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class ExplainedKernel:
    """A kernel that will run."""

    name: str
    steps: tuple[ExplainedOperation, ...]
    reads: int  # bytes
    writes: int
    saved: int  # bytes that unfused kernels would write and read again


@dataclass(frozen=True)
class Explanation:
    """The kernels that compute some tensors, in order; `print` shows them as a tree.

    >>> x = lbrx.ones(4, device="metal")
    >>> [kernel.name for kernel in lbrx.explain(x.exp() * 2).kernels]
    ['fused_exp_multiply']
    """

    kernels: tuple[ExplainedKernel, ...]

    @property
    def saved(self) -> int:
        """Bytes of traffic that fusion saves."""
        return sum(kernel.saved for kernel in self.kernels)

    def __str__(self) -> str:
        if not self.kernels:
            return "nothing is pending: the values are in memory"
        return "\n".join(text for _, text in self._lines())

    def _lines(self) -> list[tuple[int, str]]:
        """The lines of the tree, each with its depth."""
        operations = sum(len(kernel.steps) for kernel in self.kernels)
        lines = [
            (
                0,
                f"{_plural(operations, 'operation')} in {_plural(len(self.kernels), 'kernel')}, "
                f"{_size(self.saved)} of traffic saved",
            )
        ]
        for i, kernel in enumerate(self.kernels):
            last = i == len(self.kernels) - 1
            head = f"reads {_size(kernel.reads)}, writes {_size(kernel.writes)}"
            more = f", saves {_size(kernel.saved)}" if kernel.saved else ""
            lines.append((1, f"{'└─' if last else '├─'} {kernel.name}: {head}{more}"))
            for j, step in enumerate(kernel.steps):
                mark = "└─" if j == len(kernel.steps) - 1 else "├─"
                inputs = ", ".join(step.inputs)
                stem = "   " if last else "│  "
                lines.append((2, f"{stem}{mark} {step.name}({inputs}) -> {step.result}"))
        return lines

    def mermaid(self) -> str:
        """The kernels as a Mermaid flow chart whose arrows follow the data."""
        lines = ["flowchart TD"]
        for i, kernel in enumerate(self.kernels):
            lines.append(f'  subgraph k{i}["{kernel.name}: saves {_size(kernel.saved)}"]')
            lines += [f'    s{step.number}["{step.name} {step.result}"]' for step in kernel.steps]
            lines.append("  end")
        steps = [step for kernel in self.kernels for step in kernel.steps]
        lines += [f"  s{below} --> s{step.number}" for step in steps for below in step.sources]
        return "\n".join(lines)

    def svg(self) -> str:
        """The tree as an SVG picture."""
        lines = self._lines() if self.kernels else [(0, str(self))]
        width = MARGIN * 2 + max(len(text) for _, text in lines) * CHARACTER
        height = MARGIN * 2 + len(lines) * LINE
        texts = [
            f'<text x="{MARGIN}" y="{MARGIN + LINE * (i + 0.75):.0f}" '
            f'font-weight="{"bold" if depth < 2 else "normal"}" xml:space="preserve">'
            f"{escape(text)}</text>"
            for i, (depth, text) in enumerate(lines)
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
            f'font-family="monospace" font-size="12">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(texts) + "\n</svg>\n"
        )


def explain(storages: Iterable[Storage]) -> Explanation:
    """The plan for the nodes that storages depend on. Nothing is run."""
    with LOCK:
        nodes = nodes_of(storages)
        kernels = joined(in_order(nodes), nodes, context().info)
        numbers = {n: i for i, n in enumerate(n for k in kernels for n in _inside(k))}
        return Explanation(tuple(_planned(kernel, numbers) for kernel in kernels))


def _inside(kernel: Joined) -> list[Node]:
    """The nodes of a kernel, each after its inputs."""
    return list(reversed(kernel.nodes))


def _planned(kernel: Joined, numbers: Mapping[Node, int]) -> ExplainedKernel:
    inside = _inside(kernel)
    read: dict[object, int] = {}
    for node in inside:
        for array in node.arrays():
            below = node_of(array)
            if below is None or below not in inside:
                size = min(array.layout.size, array.storage.nbytes // array.dtype.itemsize)
                read[id(array.storage)] = size * array.dtype.itemsize
    return ExplainedKernel(
        kernel.name,
        tuple(_step(node, numbers) for node in inside),
        sum(read.values()),
        sum(sum(_bytes(node)) for node in kernel.stored),
        2 * sum(sum(_bytes(node)) for node in inside if node not in kernel.stored),
    )


def _step(node: Node, numbers: Mapping[Node, int]) -> ExplainedOperation:
    below = (node_of(array) for array in node.arrays())
    return ExplainedOperation(
        numbers[node],
        tuple(numbers[n] for n in dict.fromkeys(below) if n is not None),
        node.op.name,
        ", ".join(map(str, node.outputs)),
        tuple(_operand(array) for array in node.arrays()),
    )


def _operand(array: Array) -> str:
    below = node_of(array)
    if below is not None:
        return below.op.name
    if array.storage.device == "cpu" and array.layout.size == 1:
        return f"{array.numpy().item():g}"
    return f"{array.dtype}{list(array.layout.shape)}"


def _bytes(node: Node) -> list[int]:
    return [math.prod(spec.shape) * spec.dtype.itemsize for spec in node.outputs]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _size(nbytes: int) -> str:
    value = float(nbytes)
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
