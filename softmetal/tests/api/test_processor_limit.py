"""Threads of the CPU executor: SOFTMETAL_THREADS, else what affinity and cgroups allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from child_scripts import run_child

from softmetal import env
from softmetal.errors import SettingError

V2 = "0::/user/box\n"
V1 = "5:cpu,cpuacct:/docker/abc\n4:memory:/elsewhere\n0::/user\n"
COUNT = """
import os, softmetal
device = softmetal.MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (V2, {"user/box/cpu.max": "300000 100000\n"}, 3),
        (V2, {"user/box/cpu.max": "150000 100000\n"}, 2),
        (V2, {"user/box/cpu.max": "5000 100000\n"}, 1),
        (V2, {"user/box/cpu.max": "max 100000\n", "user/cpu.max": "400000 100000"}, 4),
        (V2, {"user/box/cpu.max": "900000 100000\n", "user/cpu.max": "400000 100000"}, 4),
        (V2, {"cpu.max": "200000 50000\n"}, 4),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "250000\n",
              "cpu/docker/abc/cpu.cfs_period_us": "100000\n"}, 3),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
              "cpu/docker/abc/cpu.cfs_period_us": "100000\n"}, 64),
        (V1, {"memory/elsewhere/cpu.max": "100000 100000"}, 64),
        (V2, {"user/box/cpu.max": "damaged"}, 64),
        (V2, {"user/box/cpu.max": "100000 0"}, 64),
        (None, {"cpu.max": "100000 100000"}, 64),
    ],
)  # fmt: skip
def test_limits_of_cgroups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str | None,
    files: dict[str, str],
    limit: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert env.processors(tmp_path) == limit


def test_affinity_limits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    assert env.processors(tmp_path) == 2


def test_the_variable_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "processors", lambda: 3)
    monkeypatch.delenv("SOFTMETAL_THREADS", raising=False)
    assert env.threads() == 3
    monkeypatch.setenv("SOFTMETAL_THREADS", "20")
    assert env.threads() == 20


@pytest.mark.parametrize("text", ["0", "-1", "x", "99999", "9" * 30])
def test_numbers_that_are_not_sensible(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMETAL_THREADS", text)
    with pytest.raises(SettingError, match=f"SOFTMETAL_THREADS='{text}' is not .* from 1 to 1024"):
        env.threads()


def test_long_values_are_not_quoted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMETAL_THREADS", "9" * 5000)
    with pytest.raises(SettingError) as caught:
        env.threads()
    assert len(str(caught.value)) < 300


def test_as_many_threads_start() -> None:
    """The threads of a process, of which all but the helpers are the same."""
    counts = {}
    for threads in (1, 2, 5):
        done = run_child(COUNT, threads=threads)
        assert done.returncode == 0, done.stderr
        counts[threads] = int(done.stdout)
    assert counts[2] - counts[1] == 1
    assert counts[5] - counts[1] == 4
