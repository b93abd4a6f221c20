"""Shapes and sizes beyond what memory or 64 bits can hold: errors of lbrx, on every device."""

from __future__ import annotations

import pytest

import lbrx
from lbrx import OutOfMemory, ShapeError
from lbrx.process import cgroup_limits, memory_in_use, memory_limit
from lbrx.tensors.placement import devices

HUGE = 1 << 62
LONG = 1 << 40  # representable, but not in memory


def one(device, shape=(1,)):
    return lbrx.ones((1,), device=device).expand(shape)


UNREPRESENTABLE = {
    "zeros": lambda d: lbrx.zeros((HUGE,), device=d),
    "zeros of 71 bits": lambda d: lbrx.zeros((1 << 70,), device=d),
    "ones": lambda d: lbrx.ones((1 << 31, 1 << 31), device=d),
    "full, empty": lambda d: lbrx.full((0, HUGE), 2, device=d),
    "eye": lambda d: lbrx.eye(1 << 31, device=d),
    "eye, negative": lambda d: lbrx.eye(-1, device=d),
    "arange": lambda d: lbrx.arange(HUGE, device=d),
    "arange to infinity": lambda d: lbrx.arange(0.0, float("inf"), device=d),
    "arange to NaN": lambda d: lbrx.arange(0.0, float("nan"), device=d),
    "arange by little": lambda d: lbrx.arange(0.0, 1.0, 1e-300, device=d),
    "random": lambda d: lbrx.random.uniform((HUGE,), device=d),
    "expand": lambda d: one(d).expand((HUGE,)),
    "broadcast": lambda d: one(d, (1 << 31, 1)) + one(d, (1, 1 << 31)),
    "reshape": lambda d: one(d).reshape((HUGE,)),
    "reshape, empty": lambda d: lbrx.zeros((0,), device=d).reshape((0, HUGE)),
    "matmul": lambda d: one(d, (1 << 31, 1)) @ one(d, (1, 1 << 31)),
    "concat": lambda d: lbrx.concat([one(d, (1 << 59,))] * 4),
    "pad": lambda d: one(d).pad(((HUGE, HUGE),)),
}

TOO_LONG = {
    "zeros": lambda d: lbrx.zeros((LONG,), device=d),
    "arange": lambda d: lbrx.arange(LONG, device=d),
    "eye": lambda d: lbrx.eye(1 << 25, device=d),
    "random": lambda d: lbrx.random.uniform((LONG,), device=d),
    "add": lambda d: one(d, (LONG,)) + 1,
    "cast": lambda d: one(d, (LONG,)).astype("float16"),
    "broadcast": lambda d: one(d, (1 << 20, 1)) + one(d, (1, 1 << 20)),
    "matmul": lambda d: one(d, (1 << 20, 1)) @ one(d, (1, 1 << 22)),
    "empty_aligned": lambda _: lbrx.empty_aligned((LONG,)),
}


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("name", UNREPRESENTABLE)
def test_shapes_beyond_64_bits(name, device):
    with pytest.raises(ShapeError):
        UNREPRESENTABLE[name](device)


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("name", TOO_LONG)
def test_more_than_there_is_memory(name, device):
    with pytest.raises(OutOfMemory, match=r"bytes requested with .* in use"):
        lbrx.eval(TOO_LONG[name](device))


def test_what_numpy_cannot_allocate(monkeypatch):
    """The limit is not the only reason: the system may refuse earlier."""
    monkeypatch.setattr("lbrx.arrays.storage.cpu.memory_limit", lambda: 1 << 60)
    with pytest.raises(OutOfMemory, match="requested"):
        lbrx.empty_aligned((1 << 50,))
    with pytest.raises(OutOfMemory, match="requested"):
        one("cpu", (1 << 50,)) + 1


# ---- cgroups ----

V2 = "0::/user/box\n"
V1 = "5:cpu,cpuacct:/elsewhere\n4:memory:/docker/abc\n0::/user\n"


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        (V2, {"user/box/memory.max": "1000\n"}, {1000}),
        (V2, {"user/box/memory.max": "max\n", "user/memory.max": "2000"}, {2000}),
        (V2, {"memory.max": "300\n"}, {300}),  # in a container: the path is the host's
        (V1, {"memory/docker/abc/memory.limit_in_bytes": "5000\n"}, {5000}),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, {9223372036854771712}),
        (V1, {"cpu/elsewhere/memory.max": "1"}, set()),
        (V2, {}, set()),
        (None, {"memory.max": "1"}, set()),
    ],
)
def test_limits_of_cgroups(tmp_path, groups, files, limits):
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert set(cgroup_limits(tmp_path)) == limits


def test_devices_honour_the_limit(monkeypatch):
    limit = 1 << 30
    memory_limit.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("lbrx.process.cgroup_limits", lambda root: iter([limit]))
        assert memory_limit() == limit
        assert devices()[0].memory_limit <= limit
        with pytest.raises(OutOfMemory, match=f"{limit:,}"):
            lbrx.empty_aligned((limit + 1,), "uint8")
    memory_limit.cache_clear()
    assert 0 < memory_in_use() < memory_limit() * 2
