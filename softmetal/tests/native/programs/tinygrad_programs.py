"""tinygrad's METAL device against its CPU device: `tinygrad_programs.py NAME`."""

import math
import random
import sys

from tinygrad import Device, Tensor, TinyJit, Variable
from tinygrad.engine.realize import graph_cache
from tinygrad_table import GRADIENTS, ROWS

random.seed(1)
METAL, CPU = "METAL", "CPU"


def numbers(*shape, low=-2.0, high=2.0):
    if not shape:
        return random.uniform(low, high)
    return [numbers(*shape[1:], low=low, high=high) for _ in range(shape[0])]


def close(a, b, tolerance=2e-4):
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return a == b or abs(a - b) <= tolerance * max(1, abs(b))


def compute(expression, inputs, device):
    x, y, z = [*(Tensor(each, device=device) for each in inputs), None, None, None][:3]
    return eval(expression, {"Tensor": Tensor, "x": x, "y": y, "z": z})


def inputs_of(shapes, low=-2.0, high=2.0):
    return [numbers(*shape, low=low, high=high) for shape in shapes]


def outcome(function):
    """What a device computes, or why it does not."""
    try:
        return function(), None
    except Exception as problem:  # tinygrad raises what it likes
        return None, f"{type(problem).__name__}: {problem}"


def compare(part):
    """Every operation of a part of the table; none may fail that CPU computes."""
    failures = []
    for expression, shapes, *bounds in ROWS[part]:
        inputs = inputs_of(shapes, *bounds)
        theirs, refused = outcome(lambda: compute(expression, inputs, CPU).tolist())  # noqa: B023
        if refused:
            failures.append(f"{expression}: the row is wrong: {refused}")
            continue
        mine, problem = outcome(lambda: compute(expression, inputs, METAL).tolist())  # noqa: B023
        tolerance = 2e-2 if "half" in expression or "float16" in expression else 2e-4
        if problem or not close(mine, theirs, tolerance):
            failures.append(f"{expression} {shapes}: {problem or mine}, and {theirs} on CPU")
    assert not failures, "\n".join(failures)


def gradients():
    for expression, shapes in GRADIENTS:
        inputs, results = inputs_of(shapes), []
        for device in (METAL, CPU):
            tensors = [Tensor(each, device=device) for each in inputs]
            names = dict(zip("xyz", tensors, strict=False))
            loss = eval(expression, {"Tensor": Tensor, **names})
            results.append([each.tolist() for each in loss.gradient(*tensors)])
        assert close(*results), (expression, results)


def jit():
    """From the third call on, kernels run from an indirect command buffer."""

    @TinyJit
    def step(x):
        return ((x + 1) * 2).relu().realize(), (x @ x).sum().realize()

    for i in range(5):
        x = Tensor([[float(i), 1], [2, 3]], device=METAL).realize()
        a, b = step(x)
        assert a.tolist() == [[2.0 * (i + 1), 4], [6, 8]]
        assert close(b.item(), float(i * i + 2 + i + 3 + 2 * i + 6 + 2 + 9))
    assert graphs() > 0
    for many in (1, 2, 40):
        chain(many)
    cache()
    two_devices()
    randomness()


def graphs():
    """How many graphs METAL has made, each of which is an indirect command buffer."""
    return sum(type(each).__name__ == "MetalGraph" for each in graph_cache.values())


def chain(many):
    """Each kernel reads what the one before it has written; two buffers take turns as the input."""

    @TinyJit
    def run(x, y):
        for _ in range(many):
            x = (x * 1.5 + y).contiguous()
        return x.realize()

    for i in range(6):
        x, y = numbers(33), numbers(33)
        expected = x
        for _ in range(many):
            expected = [a * 1.5 + b for a, b in zip(expected, y, strict=True)]
        got = run(Tensor(x, device=METAL).realize(), Tensor(y, device=METAL).realize())
        assert close(got.tolist(), expected, 1e-3), (many, i)


def cache():
    """A length that changes with each call, as in a cache of keys and values."""
    kept = Tensor.zeros(16, 4, device=METAL).contiguous().realize()
    place = Variable("place", 0, 15)

    @TinyJit
    def step(row, place):
        kept[place : place + 1, :].assign(row).realize()
        return kept[: place + 1, :].sum(0).realize()

    total = [0.0] * 4
    for i in range(8):
        row = numbers(1, 4)
        total = [a + b for a, b in zip(total, row[0], strict=True)]
        got = step(Tensor(row, device=METAL).realize(), place.bind(i))
        assert close(got.tolist(), total, 1e-3), i


def two_devices():
    @TinyJit
    def run(x):
        return ((x * 2).to(CPU) + 1).to(METAL).square().realize()

    for i in range(5):
        got = run(Tensor([float(i), 3.0], device=METAL).realize())
        assert got.tolist() == [(2 * i + 1) ** 2, 49]


def randomness():
    """The same seed gives the same numbers on both devices, captured or not."""

    @TinyJit
    def draw(x):
        return (Tensor.rand(5, device=METAL) + x).realize()

    Tensor.manual_seed(7)
    zeros = Tensor.zeros(5, device=METAL).contiguous().realize()
    seen = [tuple(draw(zeros).tolist()) for _ in range(4)]
    assert len(set(seen)) == 4
    Tensor.manual_seed(7)
    assert close(list(seen[0]), Tensor.rand(5, device=METAL).tolist())


def training():
    w = Tensor(numbers(4, 1), device=METAL).realize()
    x, first = Tensor(numbers(16, 4), device=METAL), None
    target = x @ Tensor([[1.0], [-2], [3], [0.5]], device=METAL)
    for _ in range(30):
        loss = (x @ w - target).square().mean()
        (gradient,) = loss.gradient(w)
        w = (w - 0.2 * gradient).detach().realize()
        first = first if first is not None else loss.item()
    assert loss.item() < 0.1 * first


if __name__ == "__main__":
    part = sys.argv[1]
    if part in ROWS:
        compare(part)
    else:
        {"gradients": gradients, "jit": jit, "training": training}[part]()
    assert METAL in Device._opened_devices
    print("right")
