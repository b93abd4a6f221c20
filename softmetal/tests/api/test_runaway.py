"""Kernels that crash or do not end become errors of their command buffer, and no more."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from child_scripts import interposed, run_child

from softmetal import env
from softmetal.errors import SettingError
from softmetal.toolchain import targets

START = """
import ctypes, faulthandler, json, os, signal, sys, threading, time
from runaway_programs import COOPERATING, MODES, Runner, usage, view
from softmetal import MTLSizeMake
runner = Runner()
"""
MODES = ("flat", "groups", "fibers")
X86 = targets.host().triple.startswith("x86_64")
UNMAPPED = "accessed address ADDRESS, which is not mapped"
CAUSES = {
    "spin": "did not end within 0.3 s (SOFTMETAL_TIMEOUT)",
    "spin_last": "did not end within 0.3 s (SOFTMETAL_TIMEOUT)",
    "clear": "did not end within 0.3 s (SOFTMETAL_TIMEOUT)",
    "null": UNMAPPED,
    "unmapped": UNMAPPED,
    "protected": "accessed address ADDRESS, which is protected",
    "beyond": "accessed address ADDRESS, beyond the end of a mapped file",
    # x86 does not tell the address where it is not canonical.
    "invalid": "accessed an invalid address (out of range or misaligned)" if X86 else UNMAPPED,
    "trap": "executed an illegal instruction or a trap",
    "debugtrap": "executed an illegal instruction or a trap",
    "abort": "executed an illegal instruction or a trap",
}


def run_script(
    body: str, timeout: str = "0.3", threads: int = 2, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return run_child(START + body, timeout, threads, flags)


# ---- every cause in every mode --------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def outcomes(request: pytest.FixtureRequest) -> dict[str, list[object]]:
    """For each cause and mode: the error, and whether a correct kernel ran right after it."""
    endless = [cause for cause, text in CAUSES.items() if "SOFTMETAL_TIMEOUT" in text]
    crashing = [*(CAUSES.keys() - set(endless)), "deep"]
    # On a busy machine a crash may take longer than kernels without an end are given here.
    short = f"cases = {_cases(endless)} + [(name, 'fibers') for name in COOPERATING]"
    return _outcomes(short, "0.3", request.param) | _outcomes(
        f"cases = {_cases(crashing)}", "60", request.param
    )


def _cases(causes: list[str]) -> list[tuple[str, str]]:
    return [(cause, mode) for cause in causes for mode in MODES]


def _outcomes(cases: str, timeout: str, threads: int) -> dict[str, list[object]]:
    body = f"""
{cases}
print(json.dumps({{f"{{c}} {{m}}": [runner.crash(c, m), runner.fine(m)] for c, m in cases}}))
"""
    done = run_script(body, timeout, threads)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cause", CAUSES)
def test_the_error_names_kernel_and_cause(outcomes, cause: str, mode: str) -> None:
    kernel = "poke" if cause in ("null", "unmapped", "protected", "beyond", "invalid") else cause
    assert outcomes[f"{cause} {mode}"] == [f"kernel '{kernel}_{mode}' {CAUSES[cause]}", True]


@pytest.mark.parametrize(("mode", "size"), [("flat", 8192), ("groups", 8192), ("fibers", 256)])
def test_a_stack_overflow_names_its_size(outcomes, mode: str, size: int) -> None:
    text = f"kernel 'deep_{mode}' overflowed its stack of {size} KiB per thread"
    assert outcomes[f"deep {mode}"] == [text, True]


@pytest.mark.parametrize("name", ["barriers", "sums", "one"])
def test_threads_that_wait_for_each_other_end_too(outcomes, name: str) -> None:
    text = f"kernel '{name}_fibers' did not end within 0.3 s (SOFTMETAL_TIMEOUT)"
    assert outcomes[f"{name} fibers"] == [text, True]


# ---- the rest of the process ----------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_other_queues_go_on(threads: int) -> None:
    body = """
other = runner.device.newCommandQueue()
x = runner.device.newBufferWithLength_options_(1 << 20, 0)
assert all(runner.fine(mode) and runner.pipeline(f"spin_{mode}") for mode in MODES)
for mode in MODES:
    spinning = runner.start(f"spin_{mode}")
    runs = 0
    while spinning.error() is None and spinning.status() < 4:
        assert all(runner.fine(other_mode, queue=other, x=x) for other_mode in MODES)
        runs += 1
    spinning.waitUntilCompleted()
    assert runs > 1 and spinning.error() is not None
    assert runner.fine(mode) and runner.fine(mode, queue=other, x=x)
print("went on")
"""
    done = run_script(body, threads=threads)
    assert (done.stdout, done.stderr) == ("went on\n", "")


def test_several_queues_crash_at_once() -> None:
    body = """
queues = [runner.device.newCommandQueue() for _ in range(4)]
causes = [f"{name}_{mode}" for name in ("spin", "trap", "poke", "deep") for mode in MODES]
started = [(name, runner.start(name, queue=queues[i % 4])) for i, name in enumerate(causes)]
for name, commands in started:
    commands.waitUntilCompleted()
    assert f"kernel '{name}' " in commands.error().localizedDescription(), name
assert all(runner.fine(mode, queue=queue) for mode in MODES for queue in queues)
print("each")
"""
    done = run_script(body)
    assert (done.stdout, done.stderr) == ("each\n", "")


def test_later_commands_of_the_buffer_do_not_run_but_signals_do() -> None:
    body = """
event = runner.device.newSharedEvent()
commands = runner.queue.commandBuffer()
encoder = commands.computeCommandEncoder()
for index, buffer in enumerate((runner.flag, runner.x, runner.address, runner.n)):
    encoder.setBuffer_offset_atIndex_(buffer, 0, index)
for name in ("poke_fibers", "fine_flat"):
    encoder.setComputePipelineState_(runner.pipeline(name))
    encoder.dispatchThreads_threadsPerThreadgroup_(MTLSizeMake(64, 1, 1), MTLSizeMake(64, 1, 1))
encoder.endEncoding()
commands.encodeSignalEvent_value_(event, 1)
commands.commit()
commands.waitUntilCompleted()
print(commands.status(), view(runner.x)[:64].any(), event.signaledValue())
"""
    done = run_script(body)
    assert (done.stdout, done.stderr) == ("5 False 1\n", "")


def test_a_kernel_that_ends_in_time_is_left_alone() -> None:
    body = """
runner.pipeline("spin_fibers")
for _ in range(3):
    spinning = runner.start("spin_fibers")
    time.sleep(0.3)
    view(runner.flag)[0] = 1
    spinning.waitUntilCompleted()
    assert spinning.error() is None, spinning.error()
    view(runner.flag)[0] = 0
print(usage()["threads"])
"""
    limited, unlimited = run_script(body, "1.5"), run_script(body, "0")
    assert limited.stderr == unlimited.stderr == ""
    assert int(limited.stdout) == int(unlimited.stdout) + 1  # the watchdog


# How much of each a leak in every batch of ten crashes adds at least.
LEAKS = {"kilobytes": 512, "threads": 1, "files": 1, "mappings": 1}


def records(values: list[int], step: int) -> int:
    """How often a value is at least `step` above all before it."""
    return sum(
        value >= max(values[:place]) + step for place, value in enumerate(values) if place > 0
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_hundred_in_a_row_leak_nothing(mode: str) -> None:
    """A leak makes every batch a new record. Which workers have fibers and stacks when usage is
    measured depends on the scheduler: that makes it go up and down, with a few records."""
    body = f"""
causes = ["unmapped", "deep", "null", "protected"] * 2 + ["invalid", "spin"]
seen = []
for _ in range(11):
    for cause in causes:
        assert runner.crash(cause, {mode!r}) is not None
        assert runner.fine({mode!r})
    seen.append(usage())
print(json.dumps(seen))
"""
    done = run_script(body)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    for name, step in LEAKS.items():
        values = [each[name] for each in seen]
        assert records(values, step) <= 5, (name, values)


# ---- other handlers of signals --------------------------------------------------------------------

CRASHES = "assert all('kernel' in runner.crash('null', mode) for mode in MODES)\n"
REPORT = "Fatal Python error: Segmentation fault"


@pytest.mark.parametrize(
    "enable",
    [
        "",
        "faulthandler.enable()\n" + CRASHES,
        CRASHES + "faulthandler.enable()\n",
        CRASHES + "faulthandler.enable()\n" + CRASHES,
    ],
    ids=["never", "before", "after", "between"],
)
def test_a_crash_outside_kernels_ends_the_process_as_ever(enable: str) -> None:
    done = run_script(enable + "print('alive', flush=True)\nctypes.string_at(0)\n")
    assert (done.stdout, done.returncode) == ("alive\n", -signal.SIGSEGV)
    assert done.stderr.count(REPORT) == (1 if enable else 0)
    assert ("string_at" in done.stderr) == bool(enable)


@pytest.mark.parametrize("flags", [(), ("-X", "faulthandler")], ids=["plain", "-X faulthandler"])
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGFPE", "SIGBUS", "SIGILL"])
def test_a_signal_that_was_sent_does_what_it_did(flags: tuple[str, ...], name: str) -> None:
    body = CRASHES + f"os.kill(os.getpid(), signal.{name})\ntime.sleep(9)\nprint('survived')\n"
    done = run_script(body, flags=flags)
    assert (done.stdout, done.returncode) == ("", -signal.Signals[name].value)
    assert done.stderr.count("Fatal Python error") == len(flags) // 2


def test_a_handler_of_the_program_is_still_called() -> None:
    body = (
        CRASHES
        + """
got = []
signal.signal(signal.SIGSEGV, lambda number, frame: got.append(number))
signal.signal(signal.SIGILL, signal.SIG_IGN)
"""
        + CRASHES
        + """
for _ in range(2):
    os.kill(os.getpid(), signal.SIGSEGV)
    os.kill(os.getpid(), signal.SIGILL)
print(got == [signal.SIGSEGV] * 2, runner.crash("trap", "flat"))
"""
    )
    done = run_script(body)
    assert done.stdout.startswith("True kernel 'trap_flat' executed")
    assert done.stderr == ""


def test_a_handler_that_jumps_is_still_called(tmp_path) -> None:
    """Some runtimes leave their handler by a jump. Threads fault at the same time."""
    library = interposed(tmp_path)
    body = f"""
library = ctypes.CDLL({library!r})
library.handle_by_jump()
{CRASHES}
left = []
threads = [threading.Thread(target=lambda: left.append(library.fault_often(3000)))
           for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
{CRASHES}
print(left, library.fault_often(2))
"""
    done = run_script(body)
    assert (done.stdout, done.stderr) == (f"{[3000] * 4} 2\n", "")


def test_an_error_is_not_lost_without_memory(tmp_path) -> None:
    body = """
for mode in MODES:
    runner.pipeline(f"poke_{mode}")
refuse = ctypes.c_int.in_dll(ctypes.CDLL(None), "refuse_strdup")
refuse.value = 1
texts = [runner.run(f"poke_{mode}") for mode in MODES]
refuse.value = 0
print(texts)
"""
    done = run_child(START + body, LD_PRELOAD=interposed(tmp_path))
    texts = [f"kernel 'poke_{mode}' {UNMAPPED}".replace("ADDRESS", "0x0") for mode in MODES]
    assert (done.stdout, done.stderr) == (f"{texts}\n", "")


def test_ctrl_c_while_waiting_for_an_endless_kernel() -> None:
    body = """
runner.pipeline("spin_fibers")
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
spinning = runner.start("spin_fibers")
try:
    spinning.waitUntilCompleted()
except KeyboardInterrupt:
    print("interrupted", spinning.status())
spinning.waitUntilCompleted()
print(spinning.error().localizedDescription(), runner.fine("fibers"))
"""
    done = run_script(body, "1.5")
    message = "kernel 'spin_fibers' did not end within 1.5 s (SOFTMETAL_TIMEOUT) True"
    assert (done.stdout, done.stderr) == (f"interrupted 3\n{message}\n", "")


@pytest.mark.parametrize("timeout", ["0", "0.2", "300"])
def test_exit_during_an_endless_kernel(timeout: str) -> None:
    body = """
for _ in range(3):
    runner.start("spin_fibers", queue=runner.device.newCommandQueue())
time.sleep(0.2)
print("leaving")
sys.exit(7)
"""
    done = run_script(body, timeout)
    assert (done.stdout, done.stderr, done.returncode) == ("leaving\n", "", 7)


# ---- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 300.0), ("0", 0.0), ("0.25", 0.25), ("7", 7.0), ("1e3", 1000.0)]
)
def test_the_timeout_is_in_seconds(monkeypatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("SOFTMETAL_TIMEOUT", text)
    assert env.timeout() == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "1e300", "5 s"])
def test_a_meaningless_timeout_is_refused(monkeypatch, text: str) -> None:
    monkeypatch.setenv("SOFTMETAL_TIMEOUT", text)
    with pytest.raises(SettingError, match="SOFTMETAL_TIMEOUT"):
        env.timeout()


def test_the_device_is_refused_with_a_meaningless_timeout() -> None:
    done = run_script("", "never")
    assert "SettingError: SOFTMETAL_TIMEOUT='never' is not a number of seconds" in done.stderr
