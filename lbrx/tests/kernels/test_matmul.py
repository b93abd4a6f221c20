"""Matrix products: every variant against the oracle, and which of them is chosen."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from device_memory import on_processors
from op_oracle import ACTIVATIONS, close, sample, wide

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.kernels import deterministic, forced
from lbrx.kernels.matmul.matmul import MatmulProblem, Matrix, family

HALVES = (dt.float16, dt.bfloat16)
FLOATS = (dt.float32, *HALVES)

# Shapes of x and y, and whether each is the transposed of what is in memory.
FEW_ROWS = [
    ((1, 40), (40, 70), False, False),
    ((1, 67), (67, 9), False, True),
    ((3, 130), (130, 37), False, True),
    ((8, 21), (21, 33), True, False),
    ((70, 40), (40, 1), True, False),
    ((9, 4100), (4100, 2), False, False),
    ((37, 130), (130, 1), False, False),
    ((2, 3, 64), (2, 64, 8), False, True),
]
# Of columns that are whole vectors of 16 bytes: few, many, of several chunks, in a batch.
ONE_ROW = [
    ((1, 8), (8, 3), False, True),
    ((1, 4104), (4104, 21), False, True),
    ((70, 40), (40, 1), False, False),
    ((1, 20480), (20480, 5), True, True),
    ((3, 1, 64), (3, 64, 9), False, True),
]
ANY = [
    ((1, 1), (1, 1), False, False),
    ((5, 3), (3, 7), False, False),
    ((33, 65), (65, 70), False, True),
    ((64, 32), (32, 64), True, True),
    ((128, 16), (16, 64), False, False),
    ((70, 17), (17, 129), True, False),
    ((3, 1, 9, 20), (2, 20, 11), False, False),
]
LONG = [
    ((5, 520), (520, 9), False, False),
    ((32, 1024), (1024, 32), False, True),
    ((2, 70, 515), (515, 3), True, True),
]
CASES = {
    "serial": ANY,
    "single": ANY,
    "mps": ANY,
    "mps_wide": ANY,
    "tiles": ANY,
    "splitk": LONG,
    "matvec": FEW_ROWS,
    "matvec_simd": FEW_ROWS,
    "matvec_lines": ONE_ROW,
}
TYPES = {"mps": (dt.float32, dt.float16), "mps_wide": HALVES}


def ran(variant: str) -> int:
    return metal.stats()["kernels"].get(f"matmul:{variant}", 0)


def operand(rng, shape, dtype, transposed=False):
    """A tensor of the shape on the device, and the same numbers for the oracle."""
    stored = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    values = sample(rng, stored, dtype, -1, 1)
    tensor = lbrx.tensor(values, device="metal")
    if transposed:
        return tensor.mT, wide(values).swapaxes(-1, -2)
    return tensor, wide(values)


def check(rng, variant, case, dtype, activation=None, with_bias=False) -> None:
    x_shape, y_shape, *transposed = case
    (x, a), (y, b) = map(
        lambda shape, t: operand(rng, shape, dtype, t), (x_shape, y_shape), transposed
    )
    bias, c = operand(rng, y_shape[-1:], dtype) if with_bias else (None, 0)
    before = ran(variant)
    with forced(matmul=variant):
        result = x.matmul(y, bias, activation=activation)
        lbrx.eval(result)
    assert ran(variant) > before
    close(result, ACTIVATIONS[activation](a @ b + c), dtype, scale=8)


def rotated(cases):
    """Each case with one of the variant's types; all of them in a full run."""
    for variant in CASES:
        types = TYPES.get(variant, FLOATS)
        for i, case in enumerate(cases[variant]):
            for j, dtype in enumerate(types):
                marks = [] if j == i % len(types) else pytest.mark.full
                name = f"{variant}-{dtype}-{case[0]}{'t' * case[2]}-{case[1]}{'t' * case[3]}"
                yield pytest.param(variant, case, dtype, marks=marks, id=name.replace(" ", ""))


@pytest.mark.parametrize(("variant", "case", "dtype"), list(rotated(CASES)))
def test_variant(variant, case, dtype, rng):
    check(rng, variant, case, dtype)


@pytest.mark.parametrize("variant", CASES)
def test_what_follows(variant, rng):
    """Halves show a second rounding: a bias must be added to the sums themselves."""
    dtype = TYPES.get(variant, HALVES)[-1]
    check(rng, variant, CASES[variant][2], dtype, "gelu", with_bias=True)


@pytest.mark.full
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("variant", CASES)
def test_everything_that_follows(variant, activation, rng):
    for dtype, with_bias in itertools.product(TYPES.get(variant, FLOATS), (False, True)):
        check(rng, variant, CASES[variant][2], dtype, activation, with_bias)


@pytest.mark.parametrize("variant", CASES)
def test_no_faults(variant, rng):
    with softmetal.checking("bounds", "race"):
        check(
            rng, variant, CASES[variant][2], TYPES.get(variant, FLOATS)[0], "relu", with_bias=True
        )


@pytest.mark.full
@pytest.mark.parametrize("variant", CASES)
def test_no_faults_at_all(variant, rng):
    with softmetal.checking("bounds", "race"):
        for case, dtype in itertools.product(CASES[variant], TYPES.get(variant, FLOATS)):
            check(rng, variant, case, dtype, None, with_bias=True)


# ---- operands ----


@pytest.mark.parametrize("variant", ["serial", "single"])
def test_integers_wrap(variant, rng):
    for dtype in (d for d in dt.ALL if not d.is_float):
        bits = (rng.integers(0, 2**63, shape) for shape in [(5, 70), (70, 3)])
        a, b = (values.astype(dtype.numpy) for values in bits)
        with forced(matmul=variant):
            product = lbrx.tensor(a, device="metal") @ lbrx.tensor(b, device="metal")
            np.testing.assert_array_equal(product.numpy(), a @ b)


VIEWS = {
    "reversed rows": lambda x: x[::-1],
    "reversed columns": lambda x: x[:, ::-1],
    "part": lambda x: x[3:17, 5:19],
    "steps in rows": lambda x: x[::2, :10],
    "steps in columns": lambda x: x[:, ::3],
    "transposed part": lambda x: x[2:9, 4:20].T,
    "one column": lambda x: x[:, 4:5],
    "one row": lambda x: x[4:5],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views(view, rng):
    """Of both operands: as they are where a leading dimension says it all, else copied."""
    (x, a), (y, b) = (operand(rng, shape, dt.float32) for shape in [(20, 24), (24, 22)])
    inner = view(a).shape[1]
    for variant in ("mps", "serial", "tiles", "matvec"):
        with forced(matmul=variant):
            close(view(x) @ y[:inner], view(a) @ b[:inner], dt.float32, 8)
            close(y[:inner].T @ view(x).T, (view(a) @ b[:inner]).T, dt.float32, 8)


def test_parts_of_matrices_are_not_copied(rng):
    (x, a), (y, b) = (operand(rng, (20, 24), dt.float32) for _ in range(2))
    before = metal.stats()["kernels"]
    with forced(matmul="mps"):
        close(x[2:9, 4:20] @ y[3:11, 4:20].T, a[2:9, 4:20] @ b[3:11, 4:20].T, dt.float32, 8)
    after = metal.stats()["kernels"]
    assert {name for name in after if after[name] != before.get(name)} == {"matmul:mps"}


BATCHES = [
    ((4, 3, 5), (4, 5, 2)),  # one after the other
    ((4, 3, 5), (5, 2)),  # more rows
    ((4, 1, 5), (5, 2)),
    ((3, 5), (4, 5, 2)),  # x for all
    ((2, 1, 3, 5), (4, 5, 2)),  # each for some
    ((2, 1, 2, 1, 2, 1, 3, 5), (2, 1, 2, 1, 2, 5, 2)),  # too many axes to unfold
    ((2, 0, 3, 5), (5, 2)),
]


@pytest.mark.parametrize("shapes", BATCHES, ids=str)
def test_batches(shapes, rng):
    (x, a), (y, b) = (operand(rng, shape, dt.float32) for shape in shapes)
    for variant in ("mps", "serial", "tiles", "matvec", "matvec_simd"):
        with forced(matmul=variant):
            close(x @ y, a @ b, dt.float32, 8)
    close(x.transpose(0, 1).contiguous().transpose(0, 1) @ y, a @ b, dt.float32, 8)


def test_members_that_share_y_are_one_product(rng):
    (x, a), (y, b) = (operand(rng, shape, dt.float32) for shape in [(6, 50, 20), (20, 30)])
    before = ran("mps")
    with forced(matmul="mps"):
        close(x[:, :25] @ y, a[:, :25] @ b, dt.float32, 8)
        close(x @ y, a @ b, dt.float32, 8)
    assert ran("mps") == before + 2


def test_without_an_inner_size(rng):
    for dtype in (dt.float32, dt.int8):
        x, y = (lbrx.zeros(shape, dtype=dtype, device="metal") for shape in [(3, 0), (0, 4)])
        bias, c = operand(rng, (4,), dtype)
        close(x @ y, np.zeros((3, 4)), dtype)
        close(x.matmul(y, bias), np.zeros((3, 4)) + c, dtype)


@pytest.mark.parametrize("variant", CASES)
def test_nan_and_infinity(variant):
    """They stay in their rows and columns, whatever kernels read beyond an edge."""
    x = np.ones((5, 530), np.float16)
    y = np.ones((530, 9), np.float16)
    x[1, 529], x[2, 0], y[529, 8] = np.nan, np.inf, -np.inf
    with forced(matmul=variant), np.errstate(invalid="ignore"):
        result = lbrx.tensor(x, device="metal") @ lbrx.tensor(y, device="metal")
        np.testing.assert_array_equal(result.numpy(), (x.astype("f8") @ y.astype("f8")))


# ---- the choice ----


def product(m, n, k, dtype=dt.float32, **changes) -> MatmulProblem:
    plain = MatmulProblem(m, n, k, dtype, Matrix(False, k), Matrix(False, n))
    return replace(plain, **changes)


def chosen(info, problem) -> str:
    return family.choose(info, problem).name


WEIGHTS = {"y": Matrix(True, 4096)}
ON_A_PROCESSOR = [
    ("mps", product(1024, 1024, 1024)),
    ("mps", product(1024, 1024, 1024, dt.float16)),
    ("mps_wide", product(1024, 1024, 1024, dt.bfloat16)),
    ("matvec", product(1, 4096, 4096)),
    ("matvec", product(4096, 1, 4096)),
    ("matvec", product(8, 4096, 4096, dt.bfloat16, **WEIGHTS)),
    ("mps", product(16, 4096, 4096)),
    ("serial", product(9, 40, 40)),
    ("serial", product(64, 64, 64, dt.int32)),
    ("serial", product(16, 16, 16, batch=(512,), x_batch=(256,), y_batch=(0,))),
]
ON_AN_M1 = [
    ("mps", product(2048, 2048, 2048)),
    ("tiles", product(2048, 2048, 2048, dt.float16)),
    ("tiles", product(2048, 2048, 2048, dt.bfloat16)),
    ("tiles", product(128, 128, 128)),
    ("splitk", product(64, 64, 16384, dt.float16)),
    ("matvec_lines", product(1, 4096, 4096, dt.float16, **WEIGHTS)),
    ("matvec_simd", product(1, 4095, 4095, dt.float16, y=Matrix(True, 4095))),
    ("matvec_simd", product(8, 4096, 4096, dt.float16, **WEIGHTS)),
    ("single", product(64, 64, 64, dt.int32)),
]


@on_processors
def test_choice_on_a_processor():
    info = metal.context().info
    assert [chosen(info, p) for _, p in ON_A_PROCESSOR] == [name for name, _ in ON_A_PROCESSOR]


def test_choice_on_apple_chips(on_chip):
    for chip in ("m1", "m3-max", "m4"):
        with on_chip(chip) as gpu:
            found = [chosen(gpu.info, p) for _, p in ON_AN_M1]
        assert found == [name for name, _ in ON_AN_M1], chip


def test_apple_chips_compute_it(on_chip, rng):
    for chip, dtype in [("m1", dt.float16), ("m4", dt.bfloat16)]:
        with on_chip(chip):
            for case in (ANY[2], FEW_ROWS[1], LONG[1]):
                (x, a), (y, b) = (operand(rng, shape, dtype) for shape in case[:2])
                close(x @ y, a @ b, dtype, scale=8)
            kernels = metal.stats()["kernels"]
            assert not {"matmul:serial", "matmul:matvec"} & kernels.keys()


# ---- the same bits ----


@pytest.mark.parametrize("chip", [None, "m2"])
def test_rows_do_not_depend_on_the_batch(chip, on_chip, rng):
    """One variant computes every number of rows, in one order of k."""

    def compare() -> None:
        for dtype, transposed in [(dt.float32, False), (dt.bfloat16, True)]:
            (x, _), (y, _) = (
                operand(rng, shape, dtype, t)
                for shape, t in [((70, 90), False), ((90, 50), transposed)]
            )
            with deterministic():
                together = (x @ y).numpy()
                alone = np.concatenate([(x[i : i + 1] @ y).numpy() for i in (0, 37, 69)])
                some = (x[30:44] @ y).numpy()
            np.testing.assert_array_equal(together[[0, 37, 69]], alone)
            np.testing.assert_array_equal(together[30:44], some)

    if chip is None:
        compare()
    else:
        with on_chip(chip):
            compare()


@pytest.mark.parametrize("variant", ["splitk", "mps", "matvec"])
def test_a_call_twice_gives_the_same_bits(variant, rng):
    (x, _), (y, _) = (operand(rng, shape, dt.float32) for shape in [(8, 700), (700, 40)])
    with forced(matmul=variant):
        np.testing.assert_array_equal((x @ y).numpy(), (x @ y).numpy())
