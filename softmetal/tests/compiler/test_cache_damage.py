"""The disk cache heals: damaged, unwritable and foreign folders cost a compilation, no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from softmetal.toolchain import disk_cache, ownership
from softmetal.toolchain.disk_cache import DiskCache

CONTENT = bytes(range(256)) * 40
KEYS = ("aa11", "aa22")


def fill(folder: Path) -> None:
    (folder / "kernel.so").write_bytes(CONTENT)
    (folder / "sites").write_bytes(CONTENT[::-1])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_link(file: Path) -> None:
    kept = file.rename(file.with_name("elsewhere"))
    file.symlink_to(kept)


FILE_DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: os.truncate(file, 20),
    "empty": lambda file: os.truncate(file, 0),
    "longer": lambda file: os.truncate(file, file.stat().st_size + 1),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "a bit": flip,
    "missing": Path.unlink,
    "a folder": replace_by_folder,
    "a link": replace_by_link,
    "writable by all": lambda file: file.chmod(0o666),
}


def to_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"x")


def swap(entry: Path) -> None:
    other = entry.with_name(KEYS[1])
    shutil.rmtree(entry)
    shutil.copytree(other, entry)


FOLDER_DAMAGE: dict[str, Callable[[Path], object]] = {
    "no files": lambda entry: [file.unlink() for file in entry.iterdir()],
    "entry is a file": to_file,
    "entry is a link": lambda entry: (
        entry.rename(entry.with_name("x")) and entry.symlink_to(entry.with_name("x"))
    ),
    "another entry": swap,
    "prefix is a file": lambda entry: to_file(entry.parent),
    "kind is a file": lambda entry: to_file(entry.parent.parent),
    "tmp is a file": lambda entry: [to_file(entry.parents[2] / "tmp"), flip(entry / "sites")],
    "tmp is missing": lambda entry: [(entry.parents[2] / "tmp").rmdir(), flip(entry / "sites")],
    "entry writable by all": lambda entry: entry.chmod(0o777),
    "kind writable by all": lambda entry: entry.parent.parent.chmod(0o777),
}


def heals(cache: DiskCache) -> None:
    filled = []

    def again(folder: Path) -> None:
        filled.append(folder)
        (folder / "kernel.so").write_bytes(CONTENT + b"rebuilt")
        (folder / "sites").write_bytes(CONTENT)

    path = cache.get("kernel", KEYS[0], again)
    assert len(filled) == 1
    assert (path / "kernel.so").read_bytes() == CONTENT + b"rebuilt"
    assert cache.find("kernel", KEYS[0]) == path


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    store = DiskCache(tmp_path / "cache", 1 << 20)
    for key in KEYS:
        store.insert("kernel", key, lambda folder, key=key: [fill(folder), (folder / key).touch()])
    return store


@pytest.mark.parametrize("name", ["kernel.so", "sites", "manifest"])
@pytest.mark.parametrize("damage", FILE_DAMAGE)
def test_an_entry_with_a_damaged_file_is_built_again(cache, name: str, damage: str) -> None:
    entry = cache.find("kernel", KEYS[0])
    FILE_DAMAGE[damage](entry / name)
    heals(cache)


@pytest.mark.parametrize("damage", FOLDER_DAMAGE)
def test_a_damaged_folder_is_built_again(cache, damage: str) -> None:
    FOLDER_DAMAGE[damage](cache.find("kernel", KEYS[0]))
    heals(cache)


def test_a_file_is_hashed_once_in_a_process(cache, monkeypatch) -> None:
    cache.find("kernel", KEYS[0])
    reads = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (reads.append(path.name), read(path))[1])
    assert cache.find("kernel", KEYS[0]) is not None
    assert reads == ["manifest"]


# ---- folders that cannot be written ---------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 1000])
def test_a_limit_below_an_entry_keeps_what_was_just_built(tmp_path, limit: int) -> None:
    cache = DiskCache(tmp_path, limit)
    for key in ("aa", "bb"):
        (tmp_path / "checked").unlink(missing_ok=True)
        path = cache.insert("kernel", key, fill)
        assert (path / "kernel.so").read_bytes() == CONTENT
    assert [entry.path for entry in cache.entries()] == [path]


PROGRAM = """
import ctypes, os
if os.geteuid() == 0:  # give up root's capabilities: permissions hold for this process too
    header, none = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, none) == 0
import softmetal, numpy as np
device = softmetal.MTLCreateSystemDefaultDevice()
source = "kernel void k(device uint* x, uint i [[thread_position_in_grid]]) { x[i] = 7 * i; }"
library, error = device.newLibraryWithSource_options_error_(source, None, None)
assert library is not None, error
make = device.newComputePipelineStateWithFunction_error_
pipeline, error = make(library.newFunctionWithName_("k"), None)
assert pipeline is not None, error
buffer = device.newBufferWithLength_options_(64, 0)
commands = device.newCommandQueue().commandBuffer()
encoder = commands.computeCommandEncoder()
encoder.setComputePipelineState_(pipeline)
encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
encoder.dispatchThreads_threadsPerThreadgroup_((16, 1, 1), (16, 1, 1))
encoder.endEncoding()
commands.commit()
commands.waitUntilCompleted()
print(np.frombuffer(buffer.contents().as_buffer(64), np.uint32).sum())
"""
SUM = str(7 * 120)


def run(folder: Path | str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SOFTMETAL_CACHE": str(folder), **settings}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
        env=environment,
    )  # fmt: skip
    assert done.stdout.strip() == SUM, done.stderr
    return done


@pytest.fixture(scope="module")
def warm(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("warm") / "cache"
    assert run(folder).stderr == ""
    return folder


@pytest.mark.parametrize("damage", ["truncated", "a bit", "zeros"])
def test_a_program_survives_damage_to_every_file(warm, tmp_path, damage: str) -> None:
    folder = shutil.copytree(warm, tmp_path / "cache")
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size > 20]
    assert {"runtime.so", "kernel.so", "unit.pch", "program", "manifest"} <= {f.name for f in files}
    for file in files:
        FILE_DAMAGE[damage](file)
    assert run(folder).stderr == ""
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.so")}
    run(folder)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*.so")} == before


@pytest.mark.parametrize("place", ["/proc/none/x", "/dev/null", "/dev/null/x"])
def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_one(tmp_path, place) -> None:
    done = run(place, TMPDIR=str(tmp_path))
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"softmetal: the cache {place} cannot be written")
    assert "SOFTMETAL_CACHE" in line
    assert list(tmp_path.iterdir()) == []  # removed at exit


def test_a_user_without_a_home(tmp_path) -> None:
    done = run("", HOME="/proc/none", XDG_CACHE_HOME="", TMPDIR=str(tmp_path))
    assert done.stderr.startswith("softmetal: the cache /proc/none/.cache/softmetal cannot")


def test_a_warm_cache_that_is_only_read(warm, tmp_path) -> None:
    folder = shutil.copytree(warm, tmp_path / "cache")
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o500)
    try:
        assert run(folder).stderr == ""
    finally:
        for path in paths:
            path.chmod(0o700)
    assert sorted(folder.rglob("*")) == sorted(paths[1:])


def test_a_cold_cache_that_is_only_read(tmp_path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o500)
    done = run(folder)
    assert len(done.stderr.splitlines()) == 1
    assert "cannot be written (Permission denied)" in done.stderr
    assert list(folder.iterdir()) == []


# ---- folders of other users -----------------------------------------------------------------------


def changed(path: Path, change: Callable[[Path], object]) -> str | None:
    change(path)
    return ownership.distrusted_folder(path)


def test_a_private_folder_is_trusted(tmp_path) -> None:
    assert changed(tmp_path, lambda path: path.chmod(0o700)) is None
    assert changed(tmp_path, lambda path: path.chmod(0o755)) is None


def test_folders_that_others_can_write_are_not_trusted(tmp_path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert "written by every user" in str(changed(inner, lambda path: path.chmod(0o777)))
    inner.chmod(0o755)
    assert str(tmp_path / "a") in str(changed(inner, lambda path: path.parent.chmod(0o777)))
    assert changed(inner, lambda path: path.parent.chmod(0o1777)) is None  # sticky, as /tmp
    assert "sticky" not in str(changed(inner, lambda path: path.chmod(0o1777)))
    assert ownership.distrusted_folder(inner) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_files_and_folders_of_other_users_are_not_trusted(tmp_path, cache) -> None:
    assert "belongs to user 12345" in str(changed(tmp_path, lambda path: os.chown(path, 12345, 0)))
    os.chown(tmp_path, 0, 0)
    entry = cache.find("kernel", KEYS[0])
    os.chown(entry / "kernel.so", 12345, 0)
    heals(cache)
    tmp_path.chmod(0o755)
    assert "group 12345" in str(
        changed(tmp_path, lambda p: [os.chown(p, 0, 12345), p.chmod(0o775)])
    )


def test_native_code_in_a_folder_for_all_is_not_loaded(warm, tmp_path) -> None:
    folder = shutil.copytree(warm, tmp_path / "cache")
    folder.chmod(0o777)
    for file in folder.rglob("*.so"):
        file.write_bytes(b"planted")
    done = run(folder)
    assert "is not trusted" in done.stderr
    assert "can be written by every user" in done.stderr
    assert all(file.read_bytes() == b"planted" for file in folder.rglob("*.so"))


def test_a_new_cache_is_private_whatever_the_umask(tmp_path) -> None:
    old = os.umask(0)
    try:
        store = disk_cache.ProcessCache(tmp_path / "a" / "cache", 1 << 20)
        store.insert("kernel", "aabb", fill)
    finally:
        os.umask(old)
    assert store.find("kernel", "aabb") is not None
    assert all(path.stat().st_mode & 0o022 == 0 for path in (tmp_path / "a").rglob("*"))
