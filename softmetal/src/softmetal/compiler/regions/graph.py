"""The control flow of a function, and its values by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from softmetal.compiler.ir import Function, Instruction

_NUMBER = re.compile(r"%(\d+)\b")
_NAMED = re.compile(r'%(?:"[^"]*"|[-\w.$]+)')


class Unsplittable(Exception):
    """Why a kernel's threads cannot run as loops between barriers."""


@dataclass(eq=False)
class Node:
    """A basic block."""

    name: str  # with %
    phis: list[Instruction]
    body: list[Instruction]
    end: Instruction  # the branch, return or switch
    boundary: Instruction | None = None  # the meeting of threads that comes before it
    is_head: bool = False  # all threads arrive before one goes on
    vote: str = ""  # a value of each thread: the block's branch asks whether it holds for any

    @property
    def successors(self) -> list[str]:
        return list(dict.fromkeys(label.value for label in self.end.labels))

    @property
    def instructions(self) -> Iterator[Instruction]:
        yield from (*self.phis, *self.body, self.end)


@dataclass(eq=False)
class Graph:
    """Basic blocks by name, the first being the entry."""

    nodes: dict[str, Node]
    parameters: list[str]
    predecessors: dict[str, list[str]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # reverse post-order
    exits: dict[str, str | None] = field(default_factory=dict)  # immediate post-dominators
    definitions: dict[str, Instruction] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # of what blocks define
    # Functions of lanes, and what all lanes do together; for accesses to matrices no lane waits.
    accesses: dict[str, str] = field(default_factory=dict)
    meetings: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # named ones, as they are defined

    @property
    def entry(self) -> str:
        return next(iter(self.nodes))

    def refresh(self) -> None:
        """Look at the nodes again, which have been changed. Removes those that are not reached."""
        self.order = _reverse_post_order(self.entry, lambda n: self.nodes[n].successors)
        self.nodes = {name: self.nodes[name] for name in self.order}
        self.predecessors = {name: [] for name in self.order}
        for name in self.order:
            for successor in self.nodes[name].successors:
                self.predecessors[successor].append(name)
        self.exits = self._post_dominators()
        self.definitions, self.places = {}, {}
        for name, node in self.nodes.items():
            for each in node.instructions:
                if each.result:
                    self.definitions[each.result], self.places[each.result] = each, name
            if node.boundary and node.boundary.result:
                self.definitions[node.boundary.result] = node.boundary

    def uses(self, instruction: Instruction) -> list[str]:
        """The values of the function that it has as operands."""
        known, parameters = self.definitions, self.parameters
        text = instruction.text
        start = text.index("=") if instruction.result else 0
        found = _NAMED.findall(text, start)
        return [name for name in found if name in known or name in parameters]

    def influence(self, branch: str) -> set[str]:
        """The blocks that only some of the threads may reach that part at a branch."""
        last = self.exits[branch]
        found: set[str] = set()
        pending = [name for name in self.nodes[branch].successors if name != last]
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += [n for n in self.nodes[name].successors if n != last]
        return found

    def loop(self, header: str) -> set[str]:
        """The blocks of the loop that begins at a block; empty if none does."""
        found = {header}
        pending = [p for p in self.predecessors[header] if self._reaches(header, p)]
        if not pending:
            return set()
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += self.predecessors[name]
        return found

    def _reaches(self, header: str, latch: str) -> bool:
        """Whether an edge from `latch` to `header` goes back."""
        return header in self._dominators(latch)

    def _dominators(self, name: str) -> set[str]:
        found = {name}
        while name in self._idom:
            name = self._idom[name]
            found.add(name)
        return found

    @property
    def _idom(self) -> dict[str, str]:
        if self._cached is None or self._cached[0] != id(self.order):
            tree = _dominator_tree(self.order, self.predecessors)
            self._cached = (id(self.order), tree)
        return self._cached[1]

    _cached: tuple[int, dict[str, str]] | None = None

    def _post_dominators(self) -> dict[str, str | None]:
        """Threads that never return, because they loop or fault, meet nobody."""
        last = "exit"
        ends = [n for n in self.order if self.nodes[n].end.opcode == "ret"]
        after = {name: list(self.nodes[name].successors) for name in self.order}
        for name in ends:
            after[name] = [last]
        before = {**{name: list(p) for name, p in self.predecessors.items()}, last: ends}
        order = _reverse_post_order(last, lambda n: before[n])
        tree = _dominator_tree(order, {**after, last: []})
        found = {name: tree.get(name) for name in self.order}
        return {name: None if exit == last else exit for name, exit in found.items()}


def read(function: Function) -> Graph:
    """The graph of a function. Numbers become names, since moved ones would be out of order."""
    parameters = [with_names(each.value) for each in function.parameters]
    nodes = {}
    for block in function.blocks:
        label = f"%{block.name}" if block.name else f"%{len(parameters)}"
        found = [Instruction(with_names(each.text)) for each in block.instructions]
        found = [each for each in found if not each.text.lstrip().startswith("#dbg")]
        phis = [each for each in found if each.opcode == "phi"]
        label = with_names(label)
        nodes[label] = Node(label, phis, found[len(phis) : -1], found[-1])
    graph = Graph(nodes, parameters)
    graph.refresh()
    return graph


def with_names(text: str) -> str:
    """A text in which values without a name have one."""
    return _NUMBER.sub(r"%v\1", text)


def replaced(text: str, names: dict[str, str]) -> str:
    """A text with other names for values and blocks."""
    return _NAMED.sub(lambda found: names.get(found[0], found[0]), text)


def _reverse_post_order(entry: str, successors: Callable[[str], list[str]]) -> list[str]:
    seen, order = {entry}, []
    stack = [(entry, iter(successors(entry)))]
    while stack:
        name, rest = stack[-1]
        for each in rest:
            if each not in seen:
                seen.add(each)
                stack.append((each, iter(successors(each))))
                break
        else:
            order.append(name)
            stack.pop()
    return order[::-1]


def _dominator_tree(order: list[str], before: dict[str, list[str]]) -> dict[str, str]:
    """The immediate dominator of each block but the first (Cooper, Harvey and Kennedy)."""
    place = {name: i for i, name in enumerate(order)}
    tree = {order[0]: order[0]}

    def common(a: str, b: str) -> str:
        while a != b:
            while place[a] > place[b]:
                a = tree[a]
            while place[b] > place[a]:
                b = tree[b]
        return a

    changed = True
    while changed:
        changed = False
        for name in order[1:]:
            known = [p for p in before[name] if p in tree and p in place]
            found = known[0]
            for each in known[1:]:
                found = common(found, each)
            if tree.get(name) != found:
                tree[name], changed = found, True
    del tree[order[0]]
    return tree
