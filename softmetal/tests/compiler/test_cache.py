"""The disk cache: complete entries or none, with concurrent and killed writers, and a size limit."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from seeds import SEED

from softmetal import compiler
from softmetal.compiler import building, stages
from softmetal.errors import CompileError
from softmetal.toolchain.disk_cache import DiskCache, key_of
from softmetal.types import CompileOptions


def fill_with(content):
    def fill(folder):
        (folder / "a").write_bytes(content)
        (folder / "b").write_bytes(content)

    return fill


def test_finds_what_was_inserted(tmp_path):
    cache = DiskCache(tmp_path, 1 << 20)
    assert cache.find("kernel", "00ab") is None
    path = cache.insert("kernel", "00ab", fill_with(b"x"))
    assert cache.find("kernel", "00ab") == path
    assert cache.get("kernel", "00ab", lambda _: pytest.fail("filled twice")) == path
    assert cache.find("header", "00ab") is None


def test_a_failed_fill_leaves_nothing(tmp_path):
    cache = DiskCache(tmp_path, 1 << 20)

    def broken(folder):
        (folder / "a").write_bytes(b"half")
        raise RuntimeError("clang died")

    with pytest.raises(RuntimeError):
        cache.insert("kernel", "00ab", broken)
    assert cache.find("kernel", "00ab") is None
    assert list((tmp_path / "tmp").iterdir()) == []


@settings(max_examples=60, deadline=None)
@seed(SEED)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400)), max_size=25))
def test_stays_a_map_within_its_limit(tmp_path_factory, operations):
    cache = DiskCache(tmp_path_factory.mktemp("cache"), limit=1000)
    written: dict[str, bytes] = {}
    for number, size in operations:
        key = key_of(str(number))
        content = written.setdefault(key, bytes([number]) * size)
        folder = cache.get("kernel", key, fill_with(content))
        assert (folder / "a").read_bytes() == (folder / "b").read_bytes() == content
    cache.evict()
    assert sum(entry.size for entry in cache.entries()) <= 1000


def test_the_least_recently_used_go_first(tmp_path):
    cache = DiskCache(tmp_path, limit=25000)
    for age, name in ((30, "aa"), (20, "bb"), (10, "cc")):
        path = cache.insert("kernel", name, fill_with(b"x" * 5000))
        os.utime(path, (time.time() - age,) * 2)
    cache.find("kernel", "aa")  # used now
    cache.evict()
    assert [cache.find("kernel", name) is not None for name in ("aa", "bb", "cc")] == [
        True,
        False,
        True,
    ]


def test_what_is_used_while_entries_are_listed_stays(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, limit=0)
    for name in ("aa", "bb"):
        os.utime(cache.insert("kernel", name, fill_with(b"x")), (1, 1))
    listed = list(cache.entries())
    assert cache.find("kernel", "aa") is not None  # another process uses it
    monkeypatch.setattr(cache, "entries", lambda: iter(listed))
    cache.evict()
    assert [cache.find("kernel", name) is not None for name in ("aa", "bb")] == [True, False]


def test_leftovers_of_the_dead_are_removed(tmp_path):
    cache = DiskCache(tmp_path, 1 << 20)
    leftover = tmp_path / "tmp" / "dead"
    leftover.mkdir(parents=True)
    os.utime(leftover, (0, 0))
    cache.insert("kernel", "aa", fill_with(b"x"))
    assert not leftover.exists()


def test_clear(tmp_path):
    cache = DiskCache(tmp_path, 1 << 20)
    for name in ("aa", "bb"):
        cache.insert("kernel", name, fill_with(b"x"))
    assert cache.clear() == 2
    assert list(cache.entries()) == []


def test_folders_that_do_not_exist_yet_are_not_removed(tmp_path, monkeypatch):
    """Another process may make them meanwhile."""
    removed = []
    monkeypatch.setattr(DiskCache, "_remove_any", staticmethod(removed.append))
    DiskCache(tmp_path / "new", 1 << 20).insert("kernel", "aabb", fill_with(b"x"))
    assert removed == []


def hammer(root, seed):
    cache = DiskCache(root, limit=600)
    for step in range(60):
        number = (seed * 7 + step) % 5
        content = bytes([number]) * 100
        folder = cache.get("kernel", key_of(str(number)), fill_with(content))
        try:
            pieces = {(folder / name).read_bytes() for name in ("a", "b")}
        except FileNotFoundError:  # evicted by the other one between the two calls
            continue
        assert pieces == {content}


def test_two_processes(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=hammer, args=(tmp_path, seed)) for seed in (0, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_writer_killed_in_the_middle(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from softmetal.toolchain.disk_cache import DiskCache\n"
        "def fill(folder):\n"
        "    (folder / 'a').write_bytes(b'half'); print('writing', flush=True); time.sleep(60)\n"
        "DiskCache(Path(sys.argv[1]), 1 << 20).insert('kernel', 'aabb', fill)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    cache = DiskCache(tmp_path, 1 << 20)
    assert cache.find("kernel", "aabb") is None
    path = cache.insert("kernel", "aabb", fill_with(b"whole"))
    assert (path / "a").read_bytes() == b"whole"


def test_keys_do_not_run_together():
    assert key_of("ab", "c") != key_of("a", "bc")
    assert key_of("ab") != key_of("ab", "")


def test_the_size_is_looked_at_now_and_then_by_one_process(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(DiskCache, "evict", lambda self, keep: looks.append(keep))
    for name in ("aa", "bb", "cc"):
        DiskCache(tmp_path, 1 << 20).insert("kernel", name, fill_with(b"x"))
    assert len(looks) == 1
    os.utime(tmp_path / "checked", (time.time() - 3600,) * 2)
    DiskCache(tmp_path, 1 << 20).insert("kernel", "dd", fill_with(b"x"))
    assert len(looks) == 2


def test_a_library_that_vanishes_after_it_was_found_is_checked_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path))
    source = "kernel void vanishing(device float *x) { x[0] = 1; }"
    program = compiler.compile_library(source, CompileOptions())
    found = DiskCache.find

    def find_and_lose(cache, kind, key):
        path = found(cache, kind, key)
        if kind == "library" and path is not None:
            cache.discard(kind, key)
        return path

    monkeypatch.setattr(DiskCache, "find", find_and_lose)
    assert compiler.compile_library(source, CompileOptions()) == program


def test_headers_are_built_once_ahead_of_the_first_kernel(tmp_path, monkeypatch):
    """By `prepare` on another thread, for which kernels wait, in a cache that has none."""
    built, threads = [], []

    def build(options, version, target, checked, output):
        built.append(options)
        time.sleep(0.05)
        output.write_bytes(b"header")

    def start(thread, start=threading.Thread.start):
        threads.append(thread)
        start(thread)

    monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stages, "build_header", build)
    monkeypatch.setattr(threading.Thread, "start", start)
    options = CompileOptions(fast_math=False)
    compiler.prepare(options)
    others = [threading.Thread(target=building.unit_header, args=(options,)) for _ in range(3)]
    for thread in others:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [options]
    assert len(threads) == 4
    compiler.prepare(options)
    assert len(threads) == 4


def test_an_error_of_early_headers_is_left_to_the_first_kernel(tmp_path, monkeypatch):
    def build(options, version, target, checked, output):
        raise CompileError("no headers")

    monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stages, "build_header", build)
    compiler.prepare(CompileOptions())
    for thread in threading.enumerate():
        if thread.name == "softmetal-headers":
            thread.join()
    with pytest.raises(CompileError, match="no headers"):
        building.unit_header(CompileOptions())
