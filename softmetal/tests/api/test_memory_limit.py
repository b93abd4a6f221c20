"""The memory that a device reports: the machine's, or a lower limit of a container."""

from __future__ import annotations

import pytest

from softmetal.api import capabilities

V2 = "0::/user/box\n"
V1 = "5:cpu,cpuacct:/elsewhere\n4:memory:/docker/abc\n0::/user\n"


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (V2, {"user/box/memory.max": "4096\n"}, 4096),
        (V2, {"user/box/memory.max": "max\n", "user/memory.max": "8192"}, 8192),
        (V2, {"user/box/memory.max": "9000\n", "user/memory.max": "8192"}, 8192),
        (V2, {"memory.max": "1234\n"}, 1234),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": "5000\n"}, 5000),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        (V1, {"cpu/elsewhere/memory.max": "1"}, None),
        (V2, {}, None),
        (None, {"memory.max": "1"}, None),
    ],
)
def test_limits_of_cgroups(tmp_path, groups, files, limit):
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    physical = capabilities.memory_bytes(tmp_path / "no such folder")
    assert capabilities.memory_bytes(tmp_path) == (limit or physical)


def test_devices_report_the_limit(monkeypatch, device):
    monkeypatch.setattr(capabilities, "memory_bytes", lambda: 1 << 30)
    assert device.recommendedMaxWorkingSetSize() == (3 << 30) // 4
    assert device.maxBufferLength() == 1 << 30
