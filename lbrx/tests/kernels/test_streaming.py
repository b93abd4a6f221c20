"""Results that a CPU writes past its caches: where they begin and end, and when it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from device_memory import on_processors
from op_oracle import close, sample, wide

import lbrx
import softmetal
from lbrx import metal
from lbrx.arrays import dtype as dt
from lbrx.device_info import Calibration
from lbrx.kernels.elementwise import elementwise
from lbrx.kernels.elementwise.elementwise import ElementwiseProblem
from lbrx.kernels.norm import norm
from lbrx.kernels.rows.rows import OWN_BYTES, RowProblem
from lbrx.process import last_cache
from lbrx.program.element_program import Access, Program, ProgramInput, ProgramStep

pytestmark = on_processors
ON_METAL = [d for d in dt.ALL if d.msl]
# Sizes on both sides of a cache line, a run and several of them.
SIZES = [1, 15, 16, 17, 63, 64, 4095, 4096, 4097, 9000]


def streamed(work, family="elementwise"):
    """The result, computed by the streamed variant alone."""
    with lbrx.profile() as profile, lbrx.kernels.forced(**{family: "streamed"}):
        result = work()
        lbrx.eval(result)
    assert {record.variant for record in profile.records} == {"streamed"}
    return result


@pytest.mark.parametrize("dtype", ON_METAL, ids=str)
def test_every_type_and_size(dtype, rng):
    for size in SIZES:
        values = sample(rng, (size + 3,), dtype)
        tensor = lbrx.tensor(values, device="metal")
        got = streamed(lambda tensor=tensor: tensor[3:] == tensor[:-3])
        np.testing.assert_array_equal(got.numpy(), values[3:] == values[:-3])
        copied = streamed(lambda tensor=tensor: lbrx.where(tensor == tensor, tensor, tensor))
        np.testing.assert_array_equal(copied.numpy(), values)


@pytest.mark.parametrize("shape", [(3, 5), (7, 4099), (2, 3, 65), (2, 3, 2, 70)], ids=str)
def test_rows_of_any_length(shape, rng):
    x, row, column = (sample(rng, s, dt.float32) for s in (shape, shape[-1:], (*shape[:-1], 1)))
    a, b, c = (lbrx.tensor(v, device="metal") for v in (x, row, column))
    with softmetal.checking("bounds", "race"):
        got = streamed(lambda: a[..., ::-1] * b + c)
    close(got, wide(x)[..., ::-1] * wide(row) + wide(column), dt.float32)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.int64, dt.uint8], ids=str)
@pytest.mark.parametrize("shape", [(128, 128), (130, 257), (3, 70, 130)], ids=str)
def test_columns(shape, dtype, rng):
    """Blocks that are transposed, whole and partial, beside an operand that is read by rows."""
    x, y = sample(rng, (*shape[:-2], shape[-1], shape[-2]), dtype), sample(rng, shape, dtype)
    a, b = lbrx.tensor(x, device="metal"), lbrx.tensor(y, device="metal")
    with softmetal.checking("bounds", "race"):
        got = streamed(lambda: lbrx.where(b > 3, a.swapaxes(-1, -2), b))
    np.testing.assert_array_equal(got.numpy(), np.where(y > 3, x.swapaxes(-1, -2), y))


def test_parts(rng, monkeypatch):
    """More elements than one dispatch takes."""
    monkeypatch.setattr(elementwise, "PART", 16)
    values = sample(rng, (50,), dt.float32)
    tensor = lbrx.tensor(values, device="metal")
    close(streamed(lambda: tensor + tensor), 2 * wide(values), dt.float32)


@pytest.mark.parametrize("length", [1, 17, 256, 4097, 8192])
def test_norms_have_the_bits_of_the_plain_kernel(length, rng):
    x, y = (lbrx.tensor(sample(rng, (5, length), dt.float32), device="metal") for _ in range(2))
    for work in (
        lambda: x.layer_norm(),
        lambda: lbrx.rms_norm(x.astype("float16"), y[0].astype("float16")),
        lambda: lbrx.add_rms_norm(x, y)[0],
        lambda: lbrx.add_rms_norm(x, y)[1],
    ):
        with lbrx.kernels.forced(norm="serial"):
            plain = work().numpy()
        with lbrx.kernels.forced(norm="streamed"):
            np.testing.assert_array_equal(work().numpy(), plain)
            with softmetal.checking("bounds", "race"):
                np.testing.assert_allclose(work().numpy(), plain, 1e-3, 1e-5)
    assert any(name.endswith("norm:streamed") for name in metal.stats()["kernels"])


def test_rows_with_reductions(rng):
    values = sample(rng, (9, 515), dt.float32)
    x = lbrx.tensor(values, device="metal")

    def centred():
        return x - x.mean(axis=-1, keepdims=True)

    close(
        streamed(centred, "rows"), wide(values) - wide(values).mean(-1, keepdims=True), dt.float32
    )


# ---- the choice ----


def program(function: str, dtype=dt.float32) -> Program:
    step = ProgramStep(function, ((0, dtype),), dtype)
    return Program((ProgramInput(dtype, Access.ROW),), (step,), ((1, dtype),))


@pytest.mark.parametrize(
    ("function", "dtype", "size", "variant"),
    [
        ("negative", dt.float32, 8 << 20, "streamed"),
        ("negative", dt.float32, (8 << 20) - 1, "single"),
        ("negative", dt.float16, 16 << 20, "streamed"),
        ("exp", dt.float32, 8 << 20, "single"),  # arithmetic is the limit
        ("negative", dt.bfloat16, 16 << 20, "single"),  # and so are roundings
    ],
)
def test_large_results_of_short_programs(function, dtype, size, variant):
    measured = Calibration("today", 20e9, 120e9, 20e9, 1e-6, 1e-5, 32, streaming=32 << 20)
    name = "a processor that nothing was tuned for"
    info = replace(metal.context().info, name=name, simd_hardware=False, calibration=measured)
    assert (
        elementwise.family.choose(info, ElementwiseProblem(program(function, dtype), size)).name
        == variant
    )


def test_norms_of_large_arrays():
    name = "a processor that nothing was tuned for"
    info = replace(metal.context().info, name=name, simd_hardware=False, cache=1 << 20)
    plain = replace(info, calibration=None)
    longest = OWN_BYTES // 4
    assert norm.family.choose(plain, RowProblem(dt.float32, 32, longest)).name == "streamed"
    assert norm.family.choose(plain, RowProblem(dt.float32, 31, longest)).name == "serial"
    assert norm.family.choose(plain, RowProblem(dt.float32, 32, longest + 1)).name == "serial"
    assert not replace(plain, cache=None).streams(1 << 60)


def test_the_declared_cache(tmp_path):
    assert last_cache(tmp_path) is None
    for number, size in enumerate(("48K", "2048K", "266240K")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{number}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert last_cache(tmp_path) == 266240 << 10
    (folder / "size").write_text("large\n")
    assert last_cache(tmp_path) is None
