"""Steps of training beside PyTorch: time in turns, and memory of a process each.

python lbrx/benchmarks/training_speed.py [CASE ...]      (pip install torch, make .venv/.model)

Steps of both take turns in one process, and a ratio is that of the medians. With
SOFTMETAL_THREADS=1 times are those of the processor, which a busy machine changes least; with more
threads PyTorch's then wait for each other. Both begin with the same weights, and their losses have
to agree. The memory of a step is what a process of its own has at most, less what it had before the
model was made. The LoRA of Q8_0 weights is compared with PyTorch's of float32, which has no such
weights.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from training_models import Case, Step, cases

ROUNDS, MOST_SECONDS = 15, 60.0
AGREEMENT = 2e-3
SETUP = ("f32", "q8_0")
THREADS = int(os.environ.get("SOFTMETAL_THREADS", os.cpu_count() or 1))


def timed(step: Step) -> float:
    clock = time.process_time if THREADS == 1 else time.perf_counter
    start = clock()
    step()
    return clock() - start


def speed(case: Case) -> str:
    """Milliseconds of a step, and how many times PyTorch's time for it that is."""
    own, other = case.lbrx(), case.torch()
    for _ in range(3):
        first, second = own(), other()
        if not math.isclose(first, second, rel_tol=AGREEMENT):
            raise SystemExit(f"{case.name}: the losses are {first} and {second}")
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + MOST_SECONDS
    while len(times[0]) < ROUNDS and time.perf_counter() < end:
        for step, kept in zip((own, other), times, strict=True):
            kept.append(timed(step))
    mine, theirs = map(statistics.median, times)
    return f"{mine * 1e3:.1f} ms, {theirs / mine:.2f} of PyTorch's speed ({theirs * 1e3:.1f} ms)"


def peak(case: Case, side: str) -> None:
    """Print what this process has at most during three steps, more than after the imports."""
    from lbrx.process import peak_memory

    if side == "torch":
        import torch  # noqa: F401  before what is measured
    before = peak_memory()
    step: Step = getattr(case, side)()
    for _ in range(3):
        step()
    print(json.dumps(peak_memory() - before))


def memory(case: Case, folder: Path) -> str:
    """The memory of a step, and its share of PyTorch's."""
    found = {}
    for side in ("lbrx", "torch"):
        command = [sys.executable, __file__, "--peak", case.name, side, str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[side] = json.loads(done.stdout.splitlines()[-1])
    share = found["lbrx"] / found["torch"]
    return f"{found['lbrx'] / 1e6:.0f} MB, {share:.2f} of PyTorch's"


def write_models(folder: Path) -> None:
    """SmolLM2 as the schemes of the LoRA cases."""
    for scheme in SETUP:
        target = folder / f"{scheme}.gguf"
        arguments = ["convert", "smollm2", str(target), "--quantize", scheme]
        subprocess.run([sys.executable, "-m", "lbrx", *arguments], check=True, capture_output=True)


def main(names: list[str]) -> None:
    if names[:1] == ["--peak"]:
        _, name, side, folder = names
        peak(next(each for each in cases(Path(folder)) if each.name == name), side)
        return
    import torch

    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        chosen = [each for each in cases(folder) if not names or each.name in names]
        if any(each.name.startswith("lora") for each in chosen):
            write_models(folder)
        for case in chosen:
            print(f"{case.name}: {speed(case)}; {memory(case, folder)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
