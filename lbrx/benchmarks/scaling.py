"""How speed grows with threads, beside torch, OpenBLAS called directly and a triad of all threads.

python lbrx/benchmarks/scaling.py [--threads 1,2] [--only NAME] [--calibrate] [--json FILE]
    [--svg FILE]

Every number of threads is a process of its own, with so many threads for each side: they start
together and measure one after the other. Sides take turns in blocks with a pause between them,
since OpenMP's and OpenBLAS's threads keep spinning after a call. A ratio above 1 means that lbrx is
faster.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scaling_picture

import lbrx
from lbrx import metal
from lbrx.bench.scaling import counts
from lbrx.scheduler import calibrating

PAUSE = 0.04  # seconds after a block: idle threads of other libraries spin for up to 20 ms
BLOCKS = 2
SECONDS = 0.04  # of a block
CALLS = 2, 20  # in a block, at least and at most
TRIAD = 1 << 25  # elements of each of its three arrays
SIDE = 4096  # of the matrices of memory-bound cases
Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """What is timed, and what it is compared with."""

    name: str
    function: Callable[..., lbrx.Tensor]
    inputs: tuple[lbrx.Tensor, ...]
    peer: Callable[[Any], Work]
    """Given torch, the same computation."""
    products: tuple[tuple[int, int, int], ...] = ()
    """(m, n, k) of the products that it consists of."""
    nbytes: float = 0
    """That must move through memory."""


@dataclass
class Row:
    """The seconds of a case with a number of threads; `limit` is OpenBLAS's or the triad's time."""

    name: str
    threads: int
    seconds: dict[str, float] = field(default_factory=dict)
    limit: str = ""
    kernels: str = ""

    def ratio(self, side: str) -> float | None:
        """The side's time by ours."""
        return self.seconds[side] / self.seconds["lbrx"] if side in self.seconds else None


# ---- cases ----


def random_tensor(*shape: int) -> tuple[np.ndarray[Any, Any], lbrx.Tensor]:
    array = np.random.default_rng(len(shape)).standard_normal(shape, np.float32)
    tensor = lbrx.tensor(array, device="metal")
    lbrx.eval(tensor)
    return array, tensor


def product_case(n: int = 1024) -> Case:
    x, t = random_tensor(n, n)

    def peer(torch: Any) -> Work:
        own = torch.from_numpy(x)
        return lambda: own @ own

    return Case(f"matmul {n}", lambda x: x @ x, (t,), peer, ((n, n, n),))


def mlp_case(rows: int = 256, width: int = 512, hidden: int = 2048) -> Case:
    x, tx = random_tensor(rows, width)
    gate, tgate = random_tensor(width, hidden)
    up, tup = random_tensor(width, hidden)
    down, tdown = random_tensor(hidden, width)

    def peer(torch: Any) -> Work:
        px, pgate, pup, pdown = (torch.from_numpy(array) for array in (x, gate, up, down))
        silu = torch.nn.functional.silu
        return lambda: (silu(px @ pgate) * (px @ pup)) @ pdown

    each = (rows, hidden, width)
    return Case(
        f"SwiGLU MLP {rows}x{width}x{hidden}",
        lambda x, gate, up, down: ((x @ gate).silu() * (x @ up)) @ down,
        (tx, tgate, tup, tdown),
        peer,
        (each, each, (rows, width, hidden)),
    )


def attention_case(heads: int = 8, length: int = 1024, width: int = 64) -> Case:
    parts = [random_tensor(1, heads, length, width) for _ in range(3)]
    tensors = tuple(tensor for _, tensor in parts)

    def peer(torch: Any) -> Work:
        own = [torch.from_numpy(array) for array, _ in parts]
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(*own)

    return Case(f"attention {heads}x{length}x{width}", lbrx.attention, tensors, peer)


def layer_norm(x: Any, sqrt: Callable[[Any], Any]) -> Any:
    """Written out: two passes in the mathematics, one in a fused kernel."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def memory_cases(n: int) -> Iterator[Case]:
    x, t = random_tensor(n, n)
    y, u = random_tensor(n, n)
    size = float(x.nbytes)

    def case(name: str, ours: Any, theirs: Callable[[Any, Any, Any], Any], nbytes: float) -> Case:
        def peer(torch: Any) -> Work:
            a, b = torch.from_numpy(x), torch.from_numpy(y)
            return lambda: theirs(torch, a, b)

        inputs = (t, u) if nbytes == 3 * size else (t,)
        return Case(f"{name} {n}x{n}", ours, inputs, peer, nbytes=nbytes)

    yield case("sum over axis 0", lambda a: a.sum(axis=0), lambda m, a, b: a.sum(0), size)
    yield case("sum over axis 1", lambda a: a.sum(axis=1), lambda m, a, b: a.sum(1), size)
    yield case("full sum", lambda a: a.sum(), lambda m, a, b: a.sum(), size)
    yield case("add", lambda a, b: a + b, lambda m, a, b: a + b, 3 * size)
    yield case(
        "layer_norm written out",
        lambda a: layer_norm(a, lambda v: v.sqrt()),
        lambda m, a, b: layer_norm(a, m.sqrt),
        2 * size,
    )
    yield case("transpose and add", lambda a, b: a.T + b, lambda m, a, b: a.T + b, 3 * size)


def cases(n: int) -> Iterator[Case]:
    yield product_case()
    yield mlp_case()
    yield attention_case()
    yield from memory_cases(n)


# ---- limits ----


@cache
def own_openblas() -> ctypes.CDLL:
    """A second copy of numpy's in this process, whose threads are set apart from numpy's."""
    folder = Path(str(np.__file__)).parents[1] / "numpy.libs"
    found = next(folder.glob("libscipy_openblas64_*.so*"), None)
    if found is None:
        raise SystemExit(f"no OpenBLAS in {folder}: install numpy from PyPI")
    with tempfile.TemporaryDirectory() as place:
        return ctypes.CDLL(shutil.copy(found, place))


def direct_products(products: Sequence[tuple[int, int, int]], threads: int) -> Work:
    """The products by OpenBLAS, called directly with all threads."""
    library = own_openblas()
    arrays = [
        tuple(np.ones(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
        for m, n, k in products
    ]

    def multiply() -> None:
        for (m, n, k), (a, b, c) in zip(products, arrays, strict=True):
            library.scipy_cblas_sgemm64_(
                *(101, 111, 111, ctypes.c_int64(m), ctypes.c_int64(n), ctypes.c_int64(k)),
                *(ctypes.c_float(1), ctypes.c_void_p(a.ctypes.data), ctypes.c_int64(k)),
                *(ctypes.c_void_p(b.ctypes.data), ctypes.c_int64(n), ctypes.c_float(0)),
                *(ctypes.c_void_p(c.ctypes.data), ctypes.c_int64(n)),
            )

    library.scipy_openblas_set_num_threads64_(threads)
    return multiply


def triads(torch: Any, threads: int) -> dict[str, Work]:
    """a = b + 2 c over arrays that exceed the caches, by threads of numpy and by torch."""
    a, b, c = (np.ones(TRIAD, np.float32) for _ in range(3))
    pool = ThreadPoolExecutor(threads)
    step = TRIAD // threads
    parts = [slice(i * step, (i + 1) * step) for i in range(threads)]

    def part(place: slice) -> None:
        np.add(b[place], c[place], out=a[place])

    works: dict[str, Work] = {"numpy": lambda: list(pool.map(part, parts))}
    if torch is not None:
        ta, tb, tc = (torch.from_numpy(array) for array in (a, b, c))
        works["torch"] = lambda: torch.add(tb, tc, alpha=2.0, out=ta)
    return works


# ---- measuring ----


def medians(works: dict[str, Work], blocks: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(blocks):
        for name, work in works.items():
            time.sleep(PAUSE)
            work()
            end = time.perf_counter() + SECONDS
            for n in range(CALLS[1]):
                start = time.perf_counter()
                if n >= CALLS[0] and start > end:
                    break
                work()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def kernels_of(work: Work) -> str:
    before = metal.stats()["kernels"]
    work()
    after = metal.stats()["kernels"]
    return " ".join(sorted(name for name in after if after[name] > before.get(name, 0)))


def device_seconds(work: Work) -> float:
    """Of the kernels alone, the median of a few runs."""
    taken = []
    for _ in range(CALLS[0]):
        with lbrx.profile() as profile:
            work()
            taken.append(sum(record.time for record in profile.records))
    return statistics.median(taken)


def works_of(case: Case, torch: Any, threads: int) -> dict[str, Work]:
    """What is timed: lbrx compiled, torch, and OpenBLAS where the case consists of products."""
    compiled = lbrx.compile(case.function)

    def ours() -> None:
        lbrx.eval(compiled(*case.inputs))

    ours()
    works: dict[str, Work] = {"lbrx": ours}
    if torch is not None:
        works["torch"] = case.peer(torch)
    if case.products:
        works["OpenBLAS"] = direct_products(case.products, threads)
    return works


def measured(
    case: Case, works: dict[str, Work], threads: int, bandwidth: float, blocks: int
) -> Row:
    def eager() -> None:
        lbrx.eval(case.function(*case.inputs))

    row = Row(case.name, threads, medians(works, blocks), kernels=kernels_of(eager))
    row.seconds["device"] = device_seconds(eager)
    if case.nbytes:
        row.seconds["triad"] = case.nbytes / bandwidth
    row.limit = "OpenBLAS" if case.products else "triad" if case.nbytes else ""
    return row


def measure_here(threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Prepares everything, then waits for a line that says that no other process measures."""
    torch = import_module("torch") if find_spec("torch") else None
    if torch is not None:
        torch.set_num_threads(threads)
    blocks = options.blocks
    wanted = [case for case in cases(options.side) if options.only in case.name]
    if options.calibrate:
        calibrating.calibrate(metal.context())
    works = [works_of(case, torch, threads) for case in wanted]
    print("ready", flush=True)
    sys.stdin.readline()
    taken = min(medians(triads(torch, threads), blocks).values())
    bandwidth = 12.0 * TRIAD / taken
    rows = [
        measured(case, own, threads, bandwidth, blocks)
        for case, own in zip(wanted, works, strict=True)
    ]
    return {
        "device": metal.context().info.name,
        "torch": getattr(torch, "__version__", None),
        "triad": {threads: bandwidth},
        "rows": [asdict(row) for row in rows],
    }


def start_child(threads: int, options: argparse.Namespace) -> subprocess.Popen[str]:
    """The device reads the number of threads once in a process."""
    command = [sys.executable, __file__, "--here", str(threads), "--side", str(options.side)]
    command += ["--blocks", str(options.blocks), "--only", options.only]
    command += ["--calibrate"] if options.calibrate else []
    count = str(threads)
    environment = os.environ | {"SOFTMETAL_THREADS": count, "OMP_NUM_THREADS": count}
    environment["OPENBLAS_THREAD_TIMEOUT"] = "22"  # 2 ms of spinning after a call, not 100
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe)


def await_ready(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        raise SystemExit("a process that was to measure has ended: see its message above")


def result_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = child.communicate("measure\n")
    if child.returncode:
        raise SystemExit("a process that measured has failed: see its message above")
    record: dict[str, Any] = json.loads(output.splitlines()[-1])
    return record


# ---- the table ----


def table(rows: Sequence[Row], threads: Sequence[int]) -> Iterator[str]:
    """A line for each case: milliseconds, and ratios beside torch and beside the limit."""
    yield f"| what | {' | '.join(f'{n} threads' for n in threads)} |"
    yield f"|---|{'---|' * len(threads)}"
    for name in dict.fromkeys(row.name for row in rows):
        own = {row.threads: row for row in rows if row.name == name}
        yield f"| {name} | {' | '.join(cell(own[n]) if n in own else '-' for n in threads)} |"


def cell(row: Row) -> str:
    parts = [f"{row.seconds['lbrx'] * 1e3:.2f} ms ({row.seconds['device'] * 1e3:.2f})"]
    for side in ("torch", row.limit):
        ratio = row.ratio(side)
        if ratio is not None:
            parts.append(f"{ratio:.2f} {side}")
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="", help="numbers of threads, separated by commas")
    parser.add_argument("--only", default="", help="part of the names of the cases")
    parser.add_argument("--side", type=int, default=SIDE, help="of the matrices in memory")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="of calls of each side")
    parser.add_argument(
        "--calibrate", action="store_true", help="as `lbrx tune` does, with each number of threads"
    )
    parser.add_argument("--json", help="a file to write")
    parser.add_argument("--svg", help="a picture to write")
    parser.add_argument("--here", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(options.here, options)))
        return
    threads = [int(n) for n in options.threads.split(",") if n]
    threads = threads or counts(len(os.sched_getaffinity(0)))
    record: dict[str, Any] = {"triad": {}, "rows": []}
    children = []
    for n in threads:
        children.append(start_child(n, options))
        if options.calibrate:  # one after the other
            await_ready(children[-1])
    for child in () if options.calibrate else children:
        await_ready(child)
    for child in children:
        own = result_of(child)
        record |= {key: own[key] for key in ("device", "torch")}
        record["triad"] |= own["triad"]
        record["rows"] += own["rows"]
        rates = ", ".join(f"{k}: {v / 1e9:.0f}" for k, v in own["triad"].items())
        print(f"threads and GB/s of the triad: {rates}", flush=True)
    record["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
    rows = [Row(**row) for row in record["rows"]]
    print("\n".join(table(rows, threads)))
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1), "utf-8")
    if options.svg:
        Path(options.svg).write_text(scaling_picture.picture(record), "utf-8")


if __name__ == "__main__":
    main()
