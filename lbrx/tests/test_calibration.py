"""Speeds of a device: measured, kept, shown, and used by estimates of costs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from lbrx import metal, quant
from lbrx.arrays import dtype as dt
from lbrx.cli.devices import table
from lbrx.device_info import Calibration, DeviceInfo
from lbrx.kernels import costs
from lbrx.kernels.matmul import matmul
from lbrx.kernels.matmul.matmul import MatmulProblem, Matrix
from lbrx.kernels.quantized_matmul import quantized_matmul
from lbrx.kernels.quantized_matmul.quantized_matmul import QuantizedProduct
from lbrx.metal import calibration_file
from lbrx.metal.device import devices
from lbrx.scheduler import calibrating

DEVICE = "Test GPU"
FAKE = Calibration(
    date="2026-01-02 03:04",
    bandwidth=4e12,
    fp32=60e12,
    fp16=120e12,
    dispatch=2e-6,
    encoding=4e-5,
    simd_width=32,
    streaming=float(32 << 20),
    products=(("mps float32", 5e13), ("serial float32", 1e9)),
)
STORED = {
    "format": calibration_file.FORMAT,
    "device": DEVICE,
    **asdict(FAKE),
    "products": dict(FAKE.products),
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LBRX_CACHE", str(tmp_path))
    return tmp_path


def product(side: int) -> MatmulProblem:
    return MatmulProblem(side, side, side, dt.float32, Matrix(False, side), Matrix(False, side))


def test_files_go_round(cache, caplog):
    assert calibration_file.read(DEVICE) is None
    assert calibration_file.write(DEVICE, FAKE).name == "calibration-test-gpu.json"
    assert calibration_file.read(DEVICE) == FAKE
    never = replace(FAKE, streaming=None)
    calibration_file.write(DEVICE, never)
    assert calibration_file.read(DEVICE) == never
    assert [path.name for path in cache.iterdir()] == ["calibration-test-gpu.json"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting"),
        ("[]", "not of format"),
        (json.dumps(STORED | {"format": 99}), "not of format"),
        (json.dumps(STORED | {"device": "Other"}), "about 'Other', not 'Test GPU'"),
        (json.dumps(STORED | {"bandwidth": "fast"}), "its bandwidth is 'fast', not a positive"),
        (json.dumps(STORED | {"fp32": -1}), "its fp32 is -1"),
        (json.dumps(STORED | {"dispatch": None}), "its dispatch is None"),
        (json.dumps(STORED | {"streaming": "often"}), "its streaming is 'often'"),
        (json.dumps(STORED | {"products": []}), "not a table"),
        (json.dumps(STORED | {"products": {"mps float32": 0}}), "its mps float32 is 0"),
    ],
)
def test_a_file_that_means_nothing_is_ignored_aloud(cache, caplog, content, reason):
    file = calibration_file.path(DEVICE)
    file.write_text(content)
    assert calibration_file.read(DEVICE) is None
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    assert reason in record.getMessage()


def test_devices_have_what_was_measured(cache):
    calibration_file.write(devices()[0].measured_as, FAKE)
    info = devices()[0]
    assert info.calibration == FAKE
    rows = dict(table(info))
    assert rows["calibrated"] == FAKE.date
    assert rows["measured memory bandwidth"] == "4000 GB/s"
    assert rows["measured streamed results"] == "32 MiB and more"
    assert rows["measured products"] == "mps float32 50, serial float32 0.001 TFLOP/s"
    assert dict(table(replace(info, calibration=None)))["calibrated"].startswith("never")


def test_a_processor_is_measured_with_its_threads():
    info = replace(metal.context().info, name="A", soft=True, simd_hardware=False, cores=3)
    assert info.measured_as == "A, 3 threads"
    assert replace(info, simd_hardware=True).measured_as == "A"
    assert replace(info, soft=False, simd_hardware=True).measured_as == "A"


def test_estimates_use_what_was_measured():
    plain = replace(metal.context().info, calibration=None, bandwidth=1e11, fp32_peak=1e12)
    measured = replace(plain, calibration=FAKE)
    assert (costs.bandwidth(plain), costs.peak(plain)) == (1e5, 1e6)
    assert (costs.bandwidth(measured), costs.peak(measured)) == (4e6, 60e6)
    assert costs.product_rate(measured, "mps", dt.float32, 7.0) == 5e7
    assert costs.product_rate(measured, "mps", dt.float16, 7.0) == 7.0
    assert costs.product_rate(plain, "mps", dt.float32, 7.0) == 7.0


def with_tensor_cores() -> DeviceInfo:
    """A GPU with tensor cores, of which the clocks are known; nothing was measured."""
    return replace(
        metal.context().info,
        simd_hardware=True,
        simdgroup_matrix=True,
        name="a GPU that nothing was tuned for",
        cores=132,
        cuda=0,
        bandwidth=4.8e12,
        fp32_peak=67e12,
        matrix_peak=990e12,
        threadgroup_memory=227 << 10,
        calibration=None,
    )


def test_halves_are_multiplied_where_that_is_fast():
    info = with_tensor_cores()
    halves = replace(product(4096), dtype=dt.float16)
    assert matmul.family.choose(info, halves).name == "mps"
    brain = replace(product(4096), dtype=dt.bfloat16)  # which MPS lacks
    assert matmul.family.choose(info, brain).name == "tiles"


@pytest.mark.parametrize("n", [2048, 16384, 65536])
def test_one_row_is_multiplied_by_our_kernels(n):
    info = with_tensor_cores()
    weight = Matrix(True, n)
    halves = replace(product(n), m=1, dtype=dt.float16, y=weight)
    assert matmul.family.choose(info, halves).name == "matvec_lines"
    for scheme in ("q4_0", "q8_0", "q4_k", "mlx:4:64"):
        quantized = QuantizedProduct(quant.find(scheme), 1, n, n, dt.float16)
        assert quantized_matmul.family.choose(info, quantized).name == "lines"


def test_speeds_of_another_processor():
    """In proportion to its products; those that were not measured are by its threads."""
    plain = replace(metal.context().info, calibration=None, cores=2)
    twice = (("mps float32", 2e6 * costs.PROCESSOR["mps"]),)
    measured = replace(plain, calibration=replace(FAKE, products=twice))
    known = costs.PROCESSOR["matvec"]
    many = replace(plain, cores=16)
    assert costs.of_processor(plain, "matvec") == pytest.approx(known)
    assert costs.of_processor(many, "matvec") == pytest.approx(8 * known)
    assert costs.of_processor(measured, "matvec") == pytest.approx(2 * known)
    assert costs.slower(measured) == pytest.approx(0.5)


@pytest.mark.parametrize("quick", ["mps", "serial"])
def test_the_variant_that_was_measured_as_fast_is_chosen(quick):
    """On a processor, whose two variants are of similar speed."""
    rates = {"mps": 1e9, "serial": 1e9, quick: 1e13}
    products = tuple((f"{name} float32", rate) for name, rate in rates.items())
    info = replace(
        metal.context().info,
        simd_hardware=False,
        name="a processor that nothing was tuned for",
        calibration=replace(FAKE, products=products),
    )
    assert matmul.family.choose(info, product(512)).name == quick


def test_a_device_is_measured(cache, monkeypatch):
    small = {"copied": 1 << 16, "side": 64, "turns": 4}
    for name in ("PROCESSOR", "GPU"):
        monkeypatch.setattr(calibrating, name, getattr(calibrating, name)._replace(**small))
    for name, value in {"THREADS": 1 << 10, "DISPATCHES": 4, "ROUNDS": 1}.items():
        monkeypatch.setattr(calibrating, name, value)
    gpu = metal.context()
    monkeypatch.setattr(gpu, "info", gpu.info)  # puts it back
    found = calibrating.calibrate(gpu)
    assert gpu.info.calibration == found == calibration_file.read(gpu.info.measured_as)
    assert min(found.bandwidth, found.fp32, found.fp16) > 1e6
    assert 0 < found.dispatch < 1
    assert found.simd_width == 32
    measured = {name for name, _ in found.products}
    assert {"mps float32", "mps float16"} <= measured
