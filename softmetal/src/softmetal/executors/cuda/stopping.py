"""Kernels that can be ended: a trap and a loop that has run for too long leave by `exit`.

CUDA has no call that stops a kernel, and a trap ends the process's access to the GPU. So a trap
writes its reason to memory of the host and ends its thread, and loops look there every few seconds,
when the upper half of the clock changes. A loop that counts in fixed steps to a number that it does
not change, and that contains no other loop, ends by itself soon enough and does not look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

# Offsets in sm_launch and sm_control of launch.h.
_CONTROL, _KERNEL, _LIST = 0, 8, 16
_STOP, _CURRENT, _ENDED = 0, 8, 16
_LISTS, _SHIFT, _STOPPED, _TRAPPED = 256, 56, 1, 2

_TRAP = re.compile(
    r"^ *(?:tail )?call void @llvm\.(?:ubsantrap\(i8 \d+\)|(?:debug)?trap\(\)).*$", re.M
)
_LABEL = re.compile(r'^("[^"\n]+"|[\w.$-]+):', re.M)
_TARGET = re.compile(r'label %("[^"\n]+"|[\w.$-]+)')
_DEFINED = re.compile(r'^  (%"[^"\n]+"|%[\w.$-]+) = ', re.M)
_PHI = re.compile(r"^  (%[\w.$-]+) = phi .*?(\[ .*)$", re.M)
_STEP = re.compile(
    r"^  (%[\w.$-]+) = (?:add|sub|lshr|shl) (?:[a-z]+ )*i\d+ (%[\w.$-]+), (%[\w.$-]+|-?[1-9]\d*)",
    re.M,
)
_EXIT = re.compile(r"^  br i1 (%[\w.$-]+), label", re.M)


def with_soft_traps(ir: str, entry: str) -> str:
    """Traps as an error of their command buffer."""
    if not _TRAP.search(ir):
        return ir
    text = f"{{ .reg .pred %p; setp.eq.u32 %p, 0, 0; {_leave(entry, _TRAPPED, '%p')} }}"
    return _TRAP.sub(lambda _: f'  call void asm sideeffect "{text}", ""()', ir)


def with_ends_of_loops(ir: str, entry: str) -> str:
    """Loops that may not end look whether they have to."""
    found = re.search(
        rf"^define [^\n]*ptx_kernel [^\n]*@{entry}\([^\n]*\{{\n(.*?)^\}}", ir, re.M | re.S
    )
    if found is None:
        return ir
    body = Body(found[1])
    headers = [header for header, loop in body.loops.items() if not body.ends_soon(header, loop)]
    if not headers:
        return ir
    text = _with_looks(body, headers, entry)
    return ir[: found.start(1)] + text + ir[found.end(1) :]


@dataclass(frozen=True)
class Body:
    """The basic blocks of a function, as text; the first one is called ''."""

    text: str

    @cached_property
    def blocks(self) -> dict[str, str]:
        labels = list(_LABEL.finditer(self.text))
        starts = [(m[1], m.end()) for m in labels]
        ends = [m.start() for m in labels] + [len(self.text)]
        first = {"": self.text[: ends[0]]} if not labels or labels[0].start() else {}
        named = {name: self.text[a:b] for (name, a), b in zip(starts, ends[1:], strict=True)}
        return first | named

    @cached_property
    def successors(self) -> dict[str, list[str]]:
        return {name: _TARGET.findall(block) for name, block in self.blocks.items()}

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

    def ends_soon(self, header: str, loop: set[str]) -> bool:
        """Whether a loop counts to a number, and contains no other loop."""
        if any(other in loop for other in self.loops if other != header):
            return False
        text = "".join(self.blocks[name] for name in loop)
        inside = set(_DEFINED.findall(text))
        phis: dict[str, str] = dict(_PHI.findall(self.blocks[header]))
        found = [(new, *pair) for new, a, b in _STEP.findall(text) for pair in ((a, b), (b, a))]
        steps = {new: old for new, old, step in found if old in phis and step not in inside}
        counters = {old for new, old in steps.items() if f"[ {new}, " in phis[old]}
        counters |= {new for new, old in steps.items() if old in counters}
        latches = {name for name in loop if header in self.successors[name]}
        every_turn = {header} | (latches if len(latches) == 1 else set())
        return any(self._leaves(name, loop, inside, counters) for name in every_turn)

    def _leaves(self, block: str, loop: set[str], inside: set[str], counters: set[str]) -> bool:
        """Whether a block ends the loop when a counter has reached what is fixed in the loop."""
        branch = _EXIT.search(self.blocks[block])
        if branch is None or all(name in loop for name in self.successors[block]):
            return False
        test = re.search(
            rf"^  {re.escape(branch[1])} = icmp (?:samesign )?\w+ \w+ (\S+), (\S+?)(?:,|$)",
            "".join(self.blocks[name] for name in loop),
            re.M,
        )
        if test is None:
            return False
        pairs = ((test[1], test[2]), (test[2], test[1]))
        return any(one in counters and other not in inside for one, other in pairs)


def _with_looks(body: Body, headers: list[str], entry: str) -> str:
    clock = 'call i32 asm sideeffect "mov.u32 $0, %clock_hi;", "=r"()'
    begin = (
        "  %softmetal.clock = alloca i32\n"
        f"  %softmetal.began = {clock}\n  store i32 %softmetal.began, ptr %softmetal.clock\n"
    )
    parts = []
    for index, (name, block) in enumerate(body.blocks.items()):
        label = f"{name}:" if name else ""
        at = _after_phis(block)
        look = _look(index, entry) if name in headers else ""
        first = begin if index == 0 else ""
        parts.append(f"{label}{block[:at]}{first}{look}{block[at:]}")
    return "".join(parts)


def _after_phis(block: str) -> int:
    """Where the first instruction after the phis begins; a label's line has comments."""
    phis = list(re.finditer(r"^  %.+ = phi .*$", block, re.M))
    if phis:
        return phis[-1].end() + 1
    first = re.search(r"^  ", block, re.M)
    return first.start() if first else len(block)


def _look(index: int, entry: str) -> str:
    parameter = f"{entry}_param_0"
    text = (
        "{ .reg .pred %now, %over; .reg .u32 %t; .reg .u64 %c, %s, %l; "
        "mov.u32 %t, %clock_hi; setp.ne.u32 %now, %t, $1; mov.u32 $0, %t; "
        f"@%now ld.param.u64 %c, [{parameter}+{_CONTROL}]; "
        f"@%now ld.volatile.global.u64 %s, [%c+{_STOP}]; "
        f"{_list_number(parameter, '%l', '%c', '%now')} "
        f"setp.ge.and.u64 %over, %s, %l, %now; {_leave(entry, _STOPPED, '%over')} }}"
    )
    n = f"%softmetal.look{index}"
    return (
        f"  {n} = load i32, ptr %softmetal.clock\n"
        f'  {n}.now = call i32 asm sideeffect "{text}", "=&r,r"(i32 {n})\n'
        f"  store i32 {n}.now, ptr %softmetal.clock\n"
    )


def _list_number(parameter: str, to: str, control: str, when: str) -> str:
    """The number of the command list: a launch has it, or for a graph the queue's control."""
    return (
        f"{{ .reg .pred %graph; @{when} ld.param.u64 {to}, [{parameter}+{_LIST}]; "
        f"setp.eq.and.u64 %graph, {to}, 0, {when}; "
        f"@%graph ld.volatile.global.u64 {to}, [{control}+{_CURRENT}]; }}"
    )


def _leave(entry: str, reason: int, when: str) -> str:
    """Instructions that write the reason and end the thread, if the predicate `when` is true."""
    parameter = f"{entry}_param_0"
    instructions = (
        "mad.lo.u64 %place, %place, 8, %control",
        f"ld.param.u64 %kernel, [{parameter}+{_KERNEL}]",
        f"or.b64 %kernel, %kernel, {reason << _SHIFT}",
        f"st.volatile.global.u64 [%place+{_ENDED}], %kernel",
        "exit",
    )
    return (
        "{ .reg .u64 %control, %place, %kernel; "
        f"@{when} ld.param.u64 %control, [{parameter}+{_CONTROL}]; "
        f"{_list_number(parameter, '%place', '%control', when)} "
        f"@{when} and.b64 %place, %place, {_LISTS - 1}; "
        + " ".join(f"@{when} {each};" for each in instructions)
        + " }"
    )
