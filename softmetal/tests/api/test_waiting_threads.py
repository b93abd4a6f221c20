"""A thread that waits for a short list runs it itself if the queue's thread sleeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from child_scripts import interposed, run_child

START = """
import ctypes, faulthandler, json, os, signal, threading, time
from runaway_programs import MODES, Runner, view
runner = Runner()
Runner.threads = 64
refuse = ctypes.c_int.in_dll(ctypes.CDLL(None), "refuse_wakes")

def rescue():  # the list was not thought to be short
    refuse.value = 0
    runner.queue.commandBuffer().commit()

def prepare(*names):  # how long kernels take is known from earlier runs
    for name in names:
        for _ in range(30):
            assert runner.run(name, place) is None
    time.sleep(0.05)  # the queue's thread falls asleep

def here(work, *names):  # the result, and whether no other thread was woken for it
    for _ in range(10):  # a busy machine makes a kernel look long
        prepare(*names)
        timer = threading.Timer(2, rescue)
        timer.start()
        refuse.value = 1
        result = work()
        alone, refuse.value = bool(refuse.value), 0
        timer.cancel()
        if alone:
            break
    return [result, alone]

place = view(runner.x).ctypes.data
view(runner.flag)[0] = 1
"""
MODES = ("flat", "groups", "fibers")


def outcome(
    body: str, folder: Path, timeout: str = "5", threads: int = 2, **settings: str
) -> object:
    settings["LD_PRELOAD"] = interposed(folder)
    done = run_child(START + body, timeout, threads, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_waiting_thread_runs_a_short_list(tmp_path: Path, threads: int) -> None:
    body = """
print(json.dumps([here(lambda: runner.fine(mode), f"fine_{mode}") for mode in MODES]))
"""
    assert outcome(body, tmp_path, threads=threads) == [[True, True]] * 3


def test_lists_before_it_run_first(tmp_path: Path) -> None:
    body = """
def work():
    view(runner.x)[:] = 0
    first, second = runner.start("fine_flat"), runner.start("poke_flat", place + 40)
    second.waitUntilCompleted()
    return [first.status(), second.status(), *map(int, view(runner.x)[9:12])]
print(json.dumps(here(work, "fine_flat", "poke_flat")))
"""
    assert outcome(body, tmp_path) == [[4, 4, 28, 63, 34], True]


def test_a_crash_there_is_an_error_of_the_list(tmp_path: Path) -> None:
    body = """
faulthandler.enable()
class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
def thread_settings():
    stack = Stack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
    return stack.sp, stack.flags, stack.size, signal.pthread_sigmask(signal.SIG_BLOCK, [])
before = thread_settings()
texts = []
for mode in MODES:
    def dive():
        view(runner.n)[3] = 1
        text = runner.run(f"dive_{mode}")
        view(runner.n)[3] = 0
        return text
    texts.append(here(lambda: runner.run(f"poke_{mode}", 0), f"poke_{mode}"))
    texts.append(here(dive, f"dive_{mode}"))
    texts.append(runner.fine(mode))
print(json.dumps([texts, before == thread_settings()]))
"""
    texts: list[object] = []
    for mode in MODES:
        size = 256 if mode == "fibers" else 8192
        texts += [
            [f"kernel 'poke_{mode}' accessed address 0x0, which is not mapped", True],
            [f"kernel 'dive_{mode}' overflowed its stack of {size} KiB per thread", True],
            True,
        ]
    # As a loop over threads the kernel would have the worker's stack, which is not too small.
    assert outcome(body, tmp_path, SOFTMETAL_FIBERS="1") == [texts, True]


def test_a_thread_that_blocks_signals(tmp_path: Path) -> None:
    body = """
said = []
def work():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    said.append(here(lambda: runner.run("poke_flat", 0), "poke_flat"))
    said.append(before == signal.pthread_sigmask(signal.SIG_BLOCK, []))
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(json.dumps(said))
"""
    text = "kernel 'poke_flat' accessed address 0x0, which is not mapped"
    assert outcome(body, tmp_path) == [[text, True], True]


@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_that_was_short_and_does_not_end(tmp_path: Path, mode: str) -> None:
    """The time limit holds, and Ctrl-C takes effect when the kernel has been stopped."""
    body = f"""
prepare("spin_{mode}")
view(runner.flag)[0] = 0
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
commands = runner.start("spin_{mode}")
try:
    commands.waitUntilCompleted()
    said = "not interrupted"
except KeyboardInterrupt:
    said = "interrupted"
commands.waitUntilCompleted()
print(json.dumps([said, commands.error().localizedDescription(), runner.fine("{mode}")]))
"""
    text = f"kernel 'spin_{mode}' did not end within 0.3 s (SOFTMETAL_TIMEOUT)"
    assert outcome(body, tmp_path, timeout="0.3") == ["interrupted", text, True]


def test_many_threads_wait_for_lists_of_one_queue(tmp_path: Path) -> None:
    body = """
import softmetal
source = "kernel void count(device atomic_uint* n) { atomic_fetch_add_explicit(n, 1u, memory_order_relaxed); }"
library, error = runner.device.newLibraryWithSource_options_error_(
    "#include <metal_stdlib>\\nusing namespace metal;\\n" + source, None, None)
assert library is not None, error
make = runner.device.newComputePipelineStateWithFunction_error_
pipeline = make(library.newFunctionWithName_("count"), None)[0]
one = softmetal.MTLSizeMake(1, 1, 1)
view(runner.x)[0] = 0
wrong = []
def work(mine):
    for turn in range(300):
        commands = [runner.queue.commandBuffer() for _ in range(1 + turn % 3)]
        for each in commands:
            encoder = each.computeCommandEncoder()
            encoder.setComputePipelineState_(pipeline)
            encoder.setBuffer_offset_atIndex_(runner.x, 0, 0)
            encoder.dispatchThreads_threadsPerThreadgroup_(one, one)
            encoder.endEncoding()
            each.commit()
        commands[turn % len(commands)].waitUntilCompleted()
        commands[-1].waitUntilCompleted()
        wrong.extend(each.status() for each in commands if each.status() != 4)
        if turn % 50 == mine:
            time.sleep(0.01)
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(json.dumps([int(view(runner.x)[0]), wrong]))
"""
    assert outcome(body, tmp_path) == [2400, []]


def test_a_program_ends_while_a_thread_runs_lists(tmp_path: Path) -> None:
    body = """
prepare("fine_flat")
def work():
    while True:
        runner.run("fine_flat", place)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
print(json.dumps("end"))
"""
    assert outcome(body, tmp_path) == "end"


def test_a_thread_with_a_small_stack(tmp_path: Path) -> None:
    """Kernels run on the stack of the queue's worker, whichever thread runs them."""
    body = """
import softmetal
source = '''
#include <metal_stdlib>
using namespace metal;
kernel void large(device uint* x, uint i [[thread_position_in_grid]]) {
  uint values[75000];  // 300 KB
  for (uint k = 0; k < 75000; k += 64) values[k] = k ^ x[i];
  for (uint k = 0; k < 9; k++) values[x[k] * 64 % 75000] += i;
  x[i] = values[(i * 64) % 75000] - i;
}
'''
library, error = runner.device.newLibraryWithSource_options_error_(source, None, None)
assert library is not None, error
make = runner.device.newComputePipelineStateWithFunction_error_
pipeline, _ = make(library.newFunctionWithName_("large"), None)
one = softmetal.MTLSizeMake(1, 1, 1)
def work():
    view(runner.x)[:] = 5
    commands = runner.queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(runner.x, 0, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_(one, one)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    return [str(commands.error()), int(view(runner.x)[0])]
said = []
def small():
    for _ in range(30):
        work()
    said.append(here(work))
threading.stack_size(128 << 10)
thread = threading.Thread(target=small)
thread.start()
thread.join()
print(json.dumps(said))
"""
    assert outcome(body, tmp_path) == [[["None", 5], True]]
