"""The CPU executor and its process: Ctrl-C, fork, exit, other machines."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softmetal.executors import runtime_build
from softmetal.executors.cuda import driver_build
from softmetal.toolchain import clang

HERE = Path(__file__).parent
PATHS = [str(path) for path in (HERE, HERE.parent, HERE.parents[2] / "tests")]
START = f"""
import os, sys, time, threading
sys.path[:0] = {PATHS!r}
from pathlib import Path
import numpy as np
from executor_device import Device, addresses
from softmetal.errors import ExecutionError
from softmetal.types import Dispatch, Gemm, Signal, Wait
folder = Path(sys.argv[1])
device = Device(2, folder)
executor, queue = device.executor, device.queue
"""

ENDLESS = """
kernel = device.kernel('FIBERS { volatile sm_u32 *p = launch->buffers[0]; while (!*p) {} }')
flag = device.zeros(1, np.uint32)
endless = Dispatch(kernel, (64, 1, 1), (8, 1, 1), addresses(flag))
ticket = executor.submit(queue, [endless])
"""


def run_script(body: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START + body, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "wait",
    [
        "executor.wait(executor.submit(queue, [Wait(event, 1)]), None)",
        "executor.wait_event(event, 1, None)",
        "executor.wait_event(event, 1, 1e6)",
    ],
)
def test_ctrl_c_ends_a_wait(tmp_path: Path, wait: str) -> None:
    body = f"""
event = executor.new_event()
threading.Timer(0.2, lambda: os.kill(os.getpid(), {signal.SIGINT.value})).start()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run_script(body, tmp_path)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


@pytest.mark.parametrize(
    "state",
    [
        "pass",
        "executor.submit(queue, [Wait(executor.new_event(), 1)])",
        ENDLESS,
        ENDLESS + "\nfor _ in range(3): executor.submit(executor.new_queue(), [endless])",
        """
n = 1500
a = device.array(np.ones((n, n)), np.float32)
p = a.ctypes.data
gemm = Gemm(p, p, p, n, n, n, n, n, n, False, False, 0.0, 1.0, 0, 0, 0)
for _ in range(50): executor.submit(queue, [gemm._replace(alpha=1.0)] * 10)
time.sleep(0.05)
""",
    ],
    ids=["idle", "waiting", "endless kernel", "endless kernels", "products"],
)
def test_exit_neither_hangs_nor_crashes(tmp_path: Path, state: str) -> None:
    done = run_script(state + "\nprint('leaving')\nsys.exit(7)", tmp_path)
    assert (done.stdout, done.returncode) == ("leaving\n", 7), done.stderr


def test_a_wait_while_the_process_exits_is_refused(tmp_path: Path) -> None:
    body = """
import atexit
ticket = executor.submit(queue, [Wait(executor.new_event(), 1)])
def late():
    try:
        executor.wait(ticket, None)
    except ExecutionError as error:
        print(error)
from softmetal.executors import cpu
atexit.unregister(cpu._at_exit)
atexit.register(late)
atexit.register(cpu._at_exit, cpu._library())
"""
    done = run_script(body, tmp_path)
    assert "the process is exiting" in done.stdout, done.stderr


def test_a_product_while_the_loader_is_busy(tmp_path: Path) -> None:
    """The first large product looks for numpy's BLAS while another thread opens a library, and
    that one opens a third."""
    body = """
import ctypes
from executor_kernels import compile_kernel
def product(n):
    p = device.array(np.ones((n, n)), np.float32).ctypes.data
    return Gemm(p, p, p, n, n, n, n, n, n, False, False, 1.0, 0.0, 0, 0, 0)
executor.wait(executor.submit(queue, [product(8)]), None)
third = compile_kernel("int third;", folder, "").path
slow = compile_kernel('''
int usleep(unsigned);
void *dlopen(const char *, int);
__attribute__((constructor)) void opened(void) { usleep(400000); dlopen("THIRD", 2); }
'''.replace("THIRD", str(third)), folder, "").path
kernel = device.kernel("int usleep(unsigned); FLAT { usleep(100000); }")
later = Dispatch(kernel, (1, 1, 1), (1, 1, 1), addresses(device.zeros(1, np.uint32)))
ticket = executor.submit(queue, [later, product(512)])
ctypes.CDLL(str(slow))
executor.wait(ticket, None)
print("both")
"""
    done = run_script(body, tmp_path)
    assert (done.stdout, done.returncode) == ("both\n", 0), done.stderr


def test_a_forked_child_gets_a_clear_error(tmp_path: Path) -> None:
    body = """
executor.wait(executor.submit(queue, []), None)
if os.fork() == 0:
    for call in (lambda: executor.submit(queue, []), executor.new_queue):
        try:
            call()
        except ExecutionError as error:
            print(error, flush=True)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
executor.wait(executor.submit(queue, []), None)
"""
    done = run_script(body, tmp_path)
    *errors, status = done.stdout.splitlines()
    assert status == "3", done.stderr
    assert len(errors) == 2
    assert all("do not survive a fork" in error for error in errors)


def test_finalisers_of_a_forked_child_call_nothing(tmp_path: Path) -> None:
    """Threads that are gone may hold the locks of the runtime."""
    body = """
ticket, event = executor.submit(queue, []), executor.new_event()
address = executor.allocate(4096)
if os.fork() == 0:
    executor._c = None
    executor.forget(ticket)
    executor.free_event(event)
    executor.free(address, 4096)
    executor.free_queue(queue)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = run_script(body, tmp_path)
    assert done.stdout == "3\n", done.stderr


NOEXEC = """
mount -t tmpfs -o noexec,mode=700 tmpfs {folder} && SOFTMETAL_CACHE={folder} exec {command}
"""


def test_a_cache_without_execution(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mounts in a user namespace")
    program = tmp_path / "program.py"
    program.write_text("import Metal\nMetal.MTLCreateSystemDefaultDevice()\n")
    cache = tmp_path / "cache"
    cache.mkdir()
    started = f"{sys.executable} -m softmetal run {program}"
    script = NOEXEC.format(folder=cache, command=started)
    command = ["unshare", "-Urm", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    wanted = "softmetal: cannot load .* is mounted with noexec: set SOFTMETAL_CACHE to a folder.*\n"
    assert re.fullmatch(wanted, done.stderr), done.stderr


def test_conversions_for_old_processors(tmp_path: Path) -> None:
    """What the compiler calls where the CPU has no half or bfloat instructions."""
    body = """
import ctypes, ml_dtypes
from seeds import generator
source = '''
FLAT {
  BUFFER(sm_u32, in, 0); BUFFER(unsigned short, out, 1);
  extern half __truncsfhf2(float); extern float __extendhfsf2(half);
  extern __bf16 __truncsfbf2(float);
  for (sm_u32 i = x0; i < x1; i++) {
    float number = ((float *)in)[i];
    half h = __truncsfhf2(number); __bf16 b = __truncsfbf2(number); float f = __extendhfsf2(h);
    __builtin_memcpy(out + 4 * i, &h, 2); __builtin_memcpy(out + 4 * i + 1, &b, 2);
    __builtin_memcpy(out + 4 * i + 2, &f, 4);
  }
}'''
random = generator(3)
values = np.concatenate([random.integers(0, 2**32, 200000).astype(np.uint32).view(np.float32),
    np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32),
    (random.standard_normal(100000) * 10.0 ** random.integers(-9, 6, 100000)).astype(np.float32),
    np.array([0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 2**-25], np.float32)])
numbers = device.array(values, np.float32)
out = device.zeros((len(values), 4), np.uint16)
device.dispatch(source, (len(values), 1, 1), (256, 1, 1), numbers, out)
with np.errstate(all="ignore"):
    half, brain = values.astype(np.float16), values.astype(ml_dtypes.bfloat16)
number = ~np.isnan(values)
assert np.array_equal(out[number, 0], half.view(np.uint16)[number])
assert np.array_equal(out[number, 1], brain.view(np.uint16)[number])
assert np.isnan(out[~number, 0].copy().view(np.float16)).all()
assert np.isnan(out[~number, 1].copy().view(ml_dtypes.bfloat16).astype(np.float32)).all()
wide = np.ascontiguousarray(out[:, 2:]).view(np.float32)[:, 0]
assert np.array_equal(wide[number], half.astype(np.float32)[number])
print("same")
"""
    done = run_script(body, tmp_path)
    assert done.stdout == "same\n", done.stderr


SOURCES = [*sorted(runtime_build.SOURCES.glob("*.c")), *sorted(driver_build.SOURCES.glob("*.c"))]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_source_compiles_without_warnings(tmp_path: Path, machine: str, source: Path) -> None:
    flags = [*runtime_build.compile_flags(machine), "-Wall", "-Wextra", "-Werror"]
    output = tmp_path / "out.o"
    clang.run("clang", [*flags, "-c", str(source), "-o", str(output)])
    assert output.read_bytes()[:4] == b"\x7fELF"
