"""Kernels that can be ended: a trap and a loop that has run for too long leave by `exit`.

CUDA has no call that stops a kernel, and a trap ends the process's access to the GPU. So a trap
writes its reason to memory of the host and ends its thread, and loops look there every few seconds:
each counts its iterations in a register, now and then reads the clock, and looks when the clock's
upper half has changed. A loop that counts in fixed steps to a number that it does not change ends
by itself soon enough and does not look, if loops inside it take a constant number of iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from softmetal.compiler.ir import Block, Instruction, Module

# Offsets in sm_launch and sm_control of launch.h.
_CONTROL, _KERNEL, _LIST = 0, 8, 16
_STOP, _CURRENT, _ENDED = 0, 8, 16
_LISTS, _SHIFT, _STOPPED, _TRAPPED = 256, 56, 1, 2

_TRAPS = ("@llvm.trap", "@llvm.debugtrap", "@llvm.ubsantrap")
_STEPS = ("add", "sub", "lshr", "shl")
_NUMBER = re.compile(r"-?\d+")
_MOST_ITERATIONS = 1 << 16  # of loops with a constant number of them in a loop that does not look
# Iterations between two reads of the clock: in a loop without others inside, and in one with them.
_INTERVAL, _OUTER_INTERVAL = 4096, 16
# Assembly that touches none of the program's memory: loads and stores may move across it. Loops
# with it are not unrolled.
_PRIVATE = "nounwind willreturn noduplicate memory(inaccessiblemem: readwrite)"
_CLOCK = f'call i32 asm sideeffect "mov.u32 $0, %clock_hi;", "=r"() {_PRIVATE}'
_RARELY = '!prof !{!"branch_weights", i32 1, i32 4096}'


def soften_traps(module: Module, entry: str) -> None:
    """Traps as an error of their command buffer."""
    leave = _leave(entry, _TRAPPED)
    for function in module.functions.values():
        if any(f"{name}(" in function.body for name in _TRAPS):
            function.rewrite(lambda call: [leave] if call.callee in _TRAPS else None, "call")


def end_loops(module: Module, entry: str) -> None:
    """Loops that may not end look whether they have to."""
    function = module.functions.get(entry)
    if function is None:
        return
    body = Body(function.blocks)
    headers = [header for header in body.loops if not body.ends_soon(header)]
    if headers:
        function.blocks = _with_looks(body, headers)
        module.append(_look(entry))


class Body:
    """The basic blocks of a function by name, and its loops."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = {block.name: block for block in blocks}
        self.successors = {block.name: block.successors for block in blocks}
        self._defined_in: dict[str, dict[str, Instruction]] = {}

    def defined(self, names: Iterable[str]) -> dict[str, Instruction]:
        """The instructions of some blocks that have a result, by its name."""
        found: dict[str, Instruction] = {}
        for name in names:
            if name not in self._defined_in:
                instructions = self.blocks[name].instructions
                self._defined_in[name] = {each.result: each for each in instructions if each.result}
            found |= self._defined_in[name]
        return found

    @cached_property
    def loops(self) -> dict[str, set[str]]:
        """The blocks of each loop, by its first block."""
        before: dict[str, list[str]] = {name: [] for name in self.blocks}
        for name, following in self.successors.items():
            for each in following:
                before[each].append(name)
        found: dict[str, set[str]] = {}
        for latch, header in self._back_edges():
            loop = found.setdefault(header, {header})
            pending = [latch]
            while pending:
                name = pending.pop()
                if name not in loop:
                    loop.add(name)
                    pending += before[name]
        return found

    def _back_edges(self) -> Iterator[tuple[str, str]]:
        """Edges to a block that is still being visited, in depth-first order."""
        first = next(iter(self.blocks))
        path, done = {first: iter(self.successors[first])}, {first}
        while path:
            name = next(reversed(path))
            following = next(path[name], None)
            if following is None:
                del path[name]
            elif following in path:
                yield name, following
            elif following not in done:
                done.add(following)
                path[following] = iter(self.successors[following])

    def ends_soon(self, header: str) -> bool:
        """Whether a loop counts to a number, and those inside it to constants."""
        number = self._iterations(header)
        return number is not None and number.variable <= 1 and number.constant <= _MOST_ITERATIONS

    def contains_loops(self, header: str) -> bool:
        return any(other in self.loops[header] for other in self.loops if other != header)

    def _iterations(self, header: str) -> _Iterations | None:
        """An upper bound of a loop's iterations, with those of the loops inside it."""
        loop = self.loops[header]
        inner = [other for other in self.loops if other != header and other in loop]
        if not all(self.loops[other] < loop for other in inner):
            return None
        counts = [self._counted(header), *(self._iterations(other) for other in inner)]
        known = [each for each in counts if each is not None]
        if len(known) < len(counts):
            return None
        own, inside = known[0], known[1:]
        constant = own.constant * max((each.constant for each in inside), default=1)
        variable = own.variable + max((each.variable for each in inside), default=0)
        return _Iterations(constant, variable)

    def _counted(self, header: str) -> _Iterations | None:
        """Iterations of a loop by itself; None if it does not count to a number."""
        loop = self.loops[header]
        inside = self.defined(loop)
        phis = {phi.result: phi for phi in self.blocks[header].phis}
        counters: dict[str, _Counter] = {}
        for made in inside.values():
            if made.opcode in _STEPS and made.type.startswith("i"):
                for old, step in (made.values, made.values[::-1]):
                    if old in phis and step not in inside and made.result in phis[old].values:
                        counter = _Counter(made.result, made.opcode, phis[old], step)
                        counters |= {old: counter, made.result: counter}
        latches = {name for name in loop if header in self.successors[name]}
        every_turn = {header} | (latches if len(latches) == 1 else set())
        ends = [self._end(name, loop, inside, counters) for name in sorted(every_turn)]
        numbers = [each.iterations() for each in ends if each is not None]
        return min(numbers, key=lambda each: each.variable) if numbers else None

    def _end(
        self,
        block: str,
        loop: set[str],
        inside: dict[str, Instruction],
        counters: dict[str, _Counter],
    ) -> _End | None:
        """The test by which a block ends the loop: a counter has reached what is fixed in it."""
        branch = self.blocks[block].instructions[-1]
        if branch.opcode != "br" or all(name in loop for name in self.successors[block]):
            return None
        test = inside.get(branch.values[0])
        if test is None or test.opcode != "icmp":
            return None
        for one, other in (test.values, test.values[::-1]):
            if one in counters and other not in inside:
                return _End(counters[one], test.flags.split()[-1], other)
        return None


@dataclass(frozen=True)
class _Iterations:
    """How often nested loops iterate: a product of constants, and of so many variable numbers."""

    constant: int
    variable: int


@dataclass(frozen=True)
class _Counter:
    new: str
    operation: str
    phi: Instruction  # what is stepped
    step: str


@dataclass(frozen=True)
class _End:
    """A comparison of a counter with a limit."""

    counter: _Counter
    comparison: str
    limit: str

    def iterations(self) -> _Iterations:
        if self.counter.operation in ("lshr", "shl"):
            return _Iterations(64, 0)
        starts = [value for value in self.counter.phi.values if value != self.counter.new]
        values = (*starts, self.counter.step, self.limit)
        if len(values) != 3 or not all(_NUMBER.fullmatch(each) for each in values):
            return _Iterations(1, 1)
        start, step, limit = map(int, values)
        step = -step if self.counter.operation == "sub" else step
        count, rest = divmod(limit - start, step)
        passed = rest and self.comparison in ("eq", "ne")
        few = 0 <= count < _MOST_ITERATIONS and not passed
        return _Iterations(count + 1, 0) if few else _Iterations(1, 1)


def _with_looks(body: Body, headers: list[str]) -> list[Block]:
    """The blocks with a count on the way back to the start of each of these loops."""
    begin = (
        "%softmetal.left = alloca i32",
        "%softmetal.clock = alloca i32",
        f"store i32 {_INTERVAL}, ptr %softmetal.left",
        f"%softmetal.began = {_CLOCK}",
        "store i32 %softmetal.began, ptr %softmetal.clock",
    )
    blocks, added = list(body.blocks.values()), list[Block]()
    latches = [(h, name) for h in headers for name in body.loops[h] if h in body.successors[name]]
    for number, (header, latch) in enumerate(sorted(latches)):
        count, read = f"softmetal.count{number}", f"softmetal.read{number}"
        _redirect(body.blocks[latch], header, count)
        _split_edges(body.blocks[header], latch, (count, read))
        interval = _OUTER_INTERVAL if body.contains_loops(header) else _INTERVAL
        added += map(Block, _counting(count, read, header, interval))
    first = blocks[0]
    at = len(first.phis)
    first.instructions[at:at] = [Instruction(f"  {line}") for line in begin]
    return [*blocks, *added]


def _redirect(block: Block, old: str, new: str) -> None:
    """Let a block go to another one."""
    end = block.instructions[-1]
    for number, label in enumerate(end.labels):
        if label.value == f"%{old}":
            end = end.with_value(end.labels[number], f"%{new}")
    block.instructions[-1] = end


def _split_edges(block: Block, old: str, new: tuple[str, str]) -> None:
    """Replace one predecessor by two in the phis of a block."""
    for place, phi in enumerate(block.phis):
        edges = [(label.value, value) for label, value in zip(phi.labels, phi.values, strict=True)]
        # A switch may come from the same block several times.
        at = next(at for at, (label, _) in enumerate(edges) if label == f"%{old}")
        split = [(f"%{name}", edges[at][1]) for name in new]
        after = [edge for edge in edges[at:] if edge[0] != f"%{old}"]
        edges = [*edges[:at], *split, *after]
        text = ", ".join(f"[ {value}, {label} ]" for label, value in edges)
        block.instructions[place] = Instruction(
            f"  {phi.result} = phi {phi.flags}{phi.type} {text}{phi.attached}"
        )


def _counting(count: str, read: str, header: str, interval: int) -> tuple[str, str]:
    """Blocks that count an iteration, and now and then read the clock, before the next one. The
    common way is straight: it needs no point where the lanes of a warp meet again."""
    return (
        f"{count}:\n  %{count}.was = load i32, ptr %softmetal.left\n"
        f"  %{count}.now = add i32 %{count}.was, -1\n"
        f"  store i32 %{count}.now, ptr %softmetal.left\n"
        f"  %{count}.over = icmp slt i32 %{count}.now, 0\n"
        f"  br i1 %{count}.over, label %{read}, label %{header}, {_RARELY}\n\n",
        f"{read}:\n  store i32 {interval}, ptr %softmetal.left\n"
        f"  call void @softmetal.look(ptr %softmetal.clock)\n  br label %{header}\n",
    )


def _look(entry: str) -> str:
    """A function that leaves the kernel if the clock has advanced and the kernel has to end."""
    parameter = f"{entry}_param_0"
    must_end = (
        "{ .reg .pred %p; .reg .u64 %control, %stop, %list; "
        f"ld.param.u64 %control, [{parameter}+{_CONTROL}]; "
        f"ld.volatile.global.u64 %stop, [%control+{_STOP}]; "
        f"{_list_number(parameter)} setp.ge.u64 %p, %stop, %list; selp.u32 $0, 1, 0, %p; }}"
    )
    return (
        "define internal void @softmetal.look(ptr %clock) alwaysinline {\n"
        "  %before = load i32, ptr %clock\n"
        f"  %time = {_CLOCK}\n  store i32 %time, ptr %clock\n"
        "  %same = icmp eq i32 %time, %before\n  br i1 %same, label %done, label %look\n"
        f'look:\n  %found = call i32 asm sideeffect "{must_end}", "=r"() {_PRIVATE}\n'
        "  %end = icmp ne i32 %found, 0\n  br i1 %end, label %leave, label %done\n"
        f"leave:\n  {_leave(entry, _STOPPED)}\n  br label %done\ndone:\n  ret void\n}}\n"
    )


def _list_number(parameter: str) -> str:
    """The number of the command list: a launch has it, or for a graph the queue's control."""
    return (
        f"{{ .reg .pred %graph; ld.param.u64 %list, [{parameter}+{_LIST}]; "
        "setp.eq.u64 %graph, %list, 0; "
        f"@%graph ld.volatile.global.u64 %list, [%control+{_CURRENT}]; }}"
    )


def _leave(entry: str, reason: int) -> str:
    """Assembly that writes the reason and ends the thread. It must not promise to return: LLVM
    would remove it before an `unreachable`, which follows traps."""
    parameter = f"{entry}_param_0"
    text = (
        "{ .reg .u64 %control, %list, %kernel; "
        f"ld.param.u64 %control, [{parameter}+{_CONTROL}]; {_list_number(parameter)} "
        f"and.b64 %list, %list, {_LISTS - 1}; mad.lo.u64 %list, %list, 8, %control; "
        f"ld.param.u64 %kernel, [{parameter}+{_KERNEL}]; "
        f"or.b64 %kernel, %kernel, {reason << _SHIFT}; "
        f"st.volatile.global.u64 [%list+{_ENDED}], %kernel; exit; }}"
    )
    return f'call void asm sideeffect "{text}", ""() nounwind noduplicate'
