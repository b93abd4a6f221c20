"""Findings of the checking modes as text, and which lists had them. Mirrors sm_finding of
runtime/finding.h."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int64, c_uint32, c_uint64

from softmetal import checks
from softmetal.types import Argument, Artifact, Command, Dispatch, Region, Resources

_BOUNDS, _RACE, _UNINIT, _DIVERGENT = range(4)
_BUFFER, _RESIDENT, _VARIABLE, _SCRATCH, _CONSTANT, _NOWHERE = range(6)

_NOT_ELEMENTS = ("device", "constant", "const", "threadgroup", "*", "&")

Triple = c_uint32 * 3


class Finding(ctypes.Structure):
    _fields_ = (
        ("kernel", c_uint64),
        ("other_kernel", c_uint64),
        ("offset", c_int64),
        ("length", c_uint64),
        ("type", c_uint32),
        ("region", c_uint32),
        ("index", c_uint32),
        ("size", c_uint32),
        ("write", c_uint32),
        ("site", c_uint32),
        ("thread", c_uint32),
        ("group", Triple),
        ("group_size", Triple),
        ("groups", Triple),
        ("other_thread", c_uint32),
        ("other_group", c_uint32),
        ("other_write", c_uint32),
        ("other_site", c_uint32),
        ("other_group_size", Triple),
        ("other_groups", Triple),
    )


class Findings:
    """What an executor's checked kernels found, list by list."""

    def __init__(self) -> None:
        self.artifacts: dict[int, Artifact] = {}  # of kernels compiled for checking
        self._labels: dict[int, dict[tuple[int, int], str]] = {}  # of buffers, by ticket
        self._checks: dict[int, checks.Checks | None] = {}  # active at submission, by ticket
        self._reported: set[int] = set()  # tickets whose findings are already listed

    def submitted(self, ticket: int, commands: Sequence[Command]) -> None:
        self._labels[ticket] = _labels(commands)
        self._checks[ticket] = checks.current()

    def forget(self, ticket: int) -> None:
        self._labels.pop(ticket, None)
        self._checks.pop(ticket, None)
        self._reported.discard(ticket)

    def lines(self, ticket: int, data: bytes) -> list[str]:
        """One line for each of the records of a list; they are added once to the checks that were
        active when the list was submitted, else to those that are now."""
        current = self._checks.get(ticket) or checks.current()
        seed = current.seed if current is not None else 0
        describer = Describer(self.artifacts, self._labels.get(ticket, {}), seed)
        records = (Finding * (len(data) // ctypes.sizeof(Finding))).from_buffer_copy(data)
        lines = [describer.describe(record) for record in records]
        if current is not None and ticket not in self._reported:
            self._reported.add(ticket)
            current.add(lines)
        return lines


def with_findings(lines: list[str], error: str | None) -> str | None:
    """The error of a list with its findings before it."""
    return "\n".join([*lines, *([error] if error else [])]) if lines else error


def _labels(commands: Sequence[Command]) -> dict[tuple[int, int], str]:
    """The labels of buffers, by the kernel that they are bound for and their index."""
    labels: dict[tuple[int, int], str] = {}
    regions: tuple[Region, ...] = ()
    for command in commands:
        if isinstance(command, Resources):
            regions = command.regions
        elif isinstance(command, Dispatch):
            labels |= {(command.kernel, r.slot): r.label for r in regions if r.label}
            regions = ()
    return labels


class Describer:
    """Formats findings."""

    def __init__(
        self, artifacts: Mapping[int, Artifact], labels: Mapping[tuple[int, int], str], seed: int
    ) -> None:
        self._artifacts = artifacts
        self._labels = labels
        self._seed = seed

    def describe(self, finding: Finding) -> str:
        """One line for one finding."""
        if finding.type == _BOUNDS:
            return self._bounds(finding)
        if finding.type == _UNINIT:
            what = f"{self._memory(finding)} {self._element(finding)}"
            return (
                f"uninit: {self._kernel(finding.kernel)} reads {what} before it is written, "
                f"{self._whole_thread(finding)}, at {self._place(finding.kernel, finding.site)}"
            )
        text = self._race(finding) if finding.type == _RACE else self._divergence(finding)
        return f"{text}, seed {self._seed}"

    def _bounds(self, f: Finding) -> str:
        verb = "writes" if f.write else "reads"
        if f.region == _NOWHERE:
            where = f"at address {f.offset & (1 << 64) - 1:#x}, outside every buffer it was given"
        else:
            side = "before" if f.offset < 0 else "beyond"
            where = (
                f"{side} {self._memory(f)}: {self._element(f)} of {self._count(f)} "
                f"(byte {f.offset} of {f.length})"
            )
        return (
            f"bounds: {self._kernel(f.kernel)} {verb} {f.size} bytes {where}, "
            f"{self._whole_thread(f)}, at {self._place(f.kernel, f.site)}"
        )

    def _race(self, f: Finding) -> str:
        same = f.kernel == f.other_kernel
        me, other = f"thread {_position(f.thread, f.group_size)}", self._other(f)
        mine = _triple(f.group)
        theirs = _position(f.other_group, f.other_groups)
        if not same or mine != theirs:
            me += f" of threadgroup {mine}"
            other += f" of threadgroup {theirs}" if f.other_kernel else ""
        verbs = ["written" if wrote else "read" for wrote in (f.write, f.other_write)]
        text = (
            f"race: {self._kernel(f.kernel)}: {self._memory(f)} {self._element(f)} is {verbs[0]} "
            f"by {me} at {self._place(f.kernel, f.site)} and {verbs[1]} by {other}"
        )
        if not same:
            return text + " with no barrier, fence or event between them"
        ending = f" with no barrier between them, threadgroup {mine}" if mine == theirs else ""
        return text + ending

    def _other(self, f: Finding) -> str:
        if not f.other_kernel:
            return "a blit"
        thread = f"thread {_position(f.other_thread, f.other_group_size)}"
        place = f" at {self._place(f.other_kernel, f.other_site)}"
        kernel = "" if f.kernel == f.other_kernel else f" of {self._kernel(f.other_kernel)}"
        return f"{thread}{place}{kernel}"

    def _divergence(self, f: Finding) -> str:
        group = _triple(f.group)
        other = f"thread {_position(f.other_thread, f.group_size)}"
        state = f"is at {self._place(f.kernel, f.other_site)}" if f.other_write else "has ended"
        return (
            f"race: {self._kernel(f.kernel)}: a barrier at {self._place(f.kernel, f.site)} is not "
            f"reached by all threads of threadgroup {group}: {other} {state}"
        )

    # ---- names -------------------------------------------------------------------------------

    def _kernel(self, handle: int) -> str:
        artifact = self._artifacts.get(handle)
        return f"kernel '{artifact.name}'" if artifact else "a blit"

    def _place(self, handle: int, site: int) -> str:
        artifact = self._artifacts.get(handle)
        sites = artifact.check_map.sites if artifact and artifact.check_map else ()
        if not 0 < site < len(sites):
            return "an unknown place"
        file, line, column = sites[site]
        return f"{file}:{line}:{column}"

    def _whole_thread(self, f: Finding) -> str:
        group = _triple(f.group)
        return f"thread {_position(f.thread, f.group_size)} of threadgroup {group}"

    def _argument(self, f: Finding) -> Argument | None:
        kind = {_BUFFER: "buffer", _SCRATCH: "threadgroup"}.get(f.region)
        arguments = self._artifacts[f.kernel].arguments if f.kernel in self._artifacts else ()
        return next((a for a in arguments if a.kind == kind and a.index == f.index), None)

    def _memory(self, f: Finding) -> str:
        artifact = self._artifacts.get(f.kernel)
        argument = self._argument(f)
        if f.region == _BUFFER:
            label = self._labels.get((f.kernel, f.index)) or (argument.name if argument else "")
            return f"buffer {f.index} '{label}'" if label else f"buffer {f.index}"
        if f.region == _SCRATCH:
            return f"threadgroup memory '{argument.name}'" if argument else "threadgroup memory"
        if f.region in (_VARIABLE, _CONSTANT) and artifact and artifact.check_map:
            variables = (*artifact.check_map.threadgroup, *artifact.check_map.constants)
            kind = "threadgroup memory" if f.region == _VARIABLE else "constant"
            return f"{kind} '{variables[f.index].name}'"
        return "a resident buffer"

    def _element_size(self, f: Finding) -> int:
        argument = self._argument(f)
        return argument.size if argument and argument.size > 1 else max(f.size, 1)

    def _element(self, f: Finding) -> str:
        return f"element {f.offset // self._element_size(f)}"

    def _count(self, f: Finding) -> str:
        argument = self._argument(f)
        count = f.length // self._element_size(f)
        words = argument.type.split() if argument else []
        plain = [word for word in words if word not in _NOT_ELEMENTS]
        return f"{count} {' '.join(plain)}".rstrip()


def _triple(position: ctypes.Array[c_uint32]) -> str:
    return f"({position[0]}, {position[1]}, {position[2]})"


def _position(index: int, size: ctypes.Array[c_uint32]) -> str:
    across, down = max(size[0], 1), max(size[1], 1)
    return f"({index % across}, {index // across % down}, {index // across // down})"
