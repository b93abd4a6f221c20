"""What a command list says of itself: `print(lbrx.commands(y))`."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx import ops
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.command_list import CommandList, HostStep, Wait
from lbrx.metal import context


def tensor(*shape: int) -> lbrx.Tensor:
    return lbrx.tensor(np.ones(shape, np.float32), device="metal")


def rows(commands: CommandList) -> list[list[str]]:
    """The table of steps, by columns."""
    table = str(commands).split("\n\n")[2].splitlines()
    starts = [table[0].index(name) for name in ("step", "waits", "kernel", "reads", "writes")]
    ends = [*starts[1:], table[0].index("threads")]
    return [
        [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        for line in table[1:]
    ]


def test_what_kernels_wait_for():
    with lbrx.kernels.forced(sorting="radix"):
        commands = lbrx.commands(tensor(8, 16).sort(axis=-1))
    assert rows(commands) == [
        ["0", "", "sort:radix", "s0", "s2 s3"],
        ["1", "barrier", "sort:values", "s0 s2", "s1"],
    ]
    assert str(commands).endswith("barrier: waits for the kernels before it in its encoder")


def test_what_is_not_ours_has_an_encoder():
    x, w = tensor(64, 64), tensor(64, 64)
    with lbrx.kernels.forced(matmul="mps"):
        product = (x * 2.0) @ w
    commands = lbrx.commands(product + 1.0, x - 1.0)
    waits = {
        step.command.label: wait
        for step, wait in zip(commands.steps, commands.waits(), strict=True)
    }
    assert waits["matmul:mps"] is Wait.ENCODER
    assert [*waits.values()].count(Wait.ENCODER) == 2  # so is what follows it
    assert "encoder: begins another encoder, and so waits for all steps" in str(commands)


def test_what_the_host_computes():
    b = Builder(context())
    x = tensor(3).array
    (y,) = b.host("cube", [x], [ops.Spec((3,), x.dtype)], lambda values: [values[0] ** 3])
    commands = b.closed({b.part(y.storage).slot: 0})
    assert rows(commands) == [["0", "host", "cube on the host", "s1", "s0"]]
    assert "the host waits for all steps before it" in str(commands)


def test_what_the_host_looks_at():
    q, k = tensor(1, 2, 1, 8), tensor(1, 2, 4, 8)
    lengths = lbrx.tensor(np.array([3], np.int32), device="metal")
    commands = lbrx.commands(q.attention(k, k, lengths=lengths))
    looks = [step for step in commands.steps if isinstance(step, HostStep)]
    assert len(looks) == 1
    assert rows(commands)[0][2:] == ["check of lengths on the host", "s2", ""]


def test_memory_of_reports_is_named():
    indices = lbrx.tensor(np.array([1, 2], np.int32), device="metal")
    slots = str(lbrx.commands(tensor(4, 4)[indices])).split("\n\n")[1]
    kinds = [line.split()[1] for line in slots.splitlines()[1:]]
    assert kinds == ["leaf", "leaf", "report", "result"]


def test_reasons_are_those_of_the_expression():
    with lbrx.kernels.forced(matmul="mps"):  # which every device has
        y = tensor(64, 64) @ tensor(64, 64)
    assert str(lbrx.commands(y)).splitlines()[-1].endswith("forced")


@pytest.mark.parametrize("seed", range(3))
def test_lifetimes_hold_what_steps_use(seed):
    rng = np.random.default_rng(seed)
    x = tensor(8, 8)
    for _ in range(12):
        other = tensor(8, 8)
        x = [x @ other, x.softmax(axis=-1), x.sort(axis=0), x + other.T][rng.integers(4)]
    commands = lbrx.commands(x)
    for number, step in enumerate(commands.steps):
        for slot in (*step.reads, *step.writes):
            assert commands.slots[slot].first <= number <= commands.slots[slot].last
    live = [
        sum(s.nbytes for s in commands.slots if s.kind.value != "leaf" and s.first <= n <= s.last)
        for n in range(len(commands.steps))
    ]
    assert commands.peak == max(live)
