"""What kernels cost on a device: the speeds that all families share, and those of each family.

Costs are microseconds, by the device's calibration where it has one. Speeds are per microsecond.
"""

from __future__ import annotations

from typing import NamedTuple

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.metal import DeviceInfo

DISPATCH = 5.0
ENCODING = 15.0, 45.0  # of a product by MPS, by processors and by GPUs (the host of an H200)
EMULATED = 1e6  # more, for kernels that work on the device but are not made for it
# For each thread of a processor that is not calibrated: operations of products, and bytes per
# second. Common cores are within a factor of two of it.
CORE_PRODUCTS, CORE_BANDWIDTH = 95e3, 16e9
M1_PEAK, M1_BANDWIDTH = 2.6e12, 68e9  # for GPUs of which nothing is known or measured

PROCESSOR = {
    "mps": 190e3,
    "matmul serial": 130e3,
    "matvec": 80e3,
    "convolution direct": 60e3,
    "convolution loads": 12e3,  # the same, for each filter that shares what is loaded
    "convolution product": 150e3,
    "quantized floats": 24e3,
    "quantized integers": 38e3,
    "quantized tiles": 165e3,
    "quantized packing": 4e3,
    "experts decoded": 12e3,
    "experts floats": 50e3,
    "experts integers": 38e3,
}
"""The speeds of kernels on the reference processor, two threads of a Zen 4: operations of float32
products, or values of quantized weights. They are scaled to other processors by the speed of MPS's
products."""


class Shares(NamedTuple):
    """What a kernel reaches of a GPU's bandwidth and of its peak."""

    bandwidth: float
    peak: float


GPU = {
    "mps": Shares(0.85, 0.85),  # of rows, by cuBLAS on an H200; of Apple's GPUs
    "matmul tiles": Shares(0.85, 0.8),  # of few rows, on an H200; published, of Apple's GPUs
    "matmul small tiles": Shares(0.85, 0.6),
    "matvec": Shares(0.8, 0.25),  # of Apple's GPUs, without simdgroup_matrix
    "matvec lines": Shares(0.98, 0.25),  # 1.0 of a copy's, read and written, on an H200
    "convolution": Shares(1.0, 0.1),
    "quantized rows": Shares(0.75, 0.2),  # published, of Apple's GPUs
    "quantized tiles": Shares(0.75, 0.75),
    "experts": Shares(0.7, 0.15),
}
"""The shares that kernels reach on GPUs."""


def peak(info: DeviceInfo) -> float:
    """Operations: measured, else declared."""
    return (info.arithmetic_rate or M1_PEAK) / 1e6


def product_peak(info: DeviceInfo, dtype: Dtype) -> float:
    """Operations of products: those of matrix units, where it is known that they are faster for
    halves."""
    return info.matrix_peak / 1e6 if info.matrix_peak and dtype.itemsize == 2 else peak(info)


def bandwidth(info: DeviceInfo) -> float:
    """Bytes: measured, else declared."""
    unknown = info.by_kind(wide=CORE_BANDWIDTH * (info.cores or 1), simd=M1_BANDWIDTH)
    return (info.memory_rate or unknown) / 1e6


def dispatching(info: DeviceInfo) -> float:
    """From a small kernel to the next one."""
    return info.calibration.dispatch * 1e6 if info.calibration else DISPATCH


def encoding(info: DeviceInfo) -> float:
    """The host's time for a small product by MPS."""
    if info.calibration:
        return info.calibration.encoding * 1e6
    return info.by_kind(wide=ENCODING[0], simd=ENCODING[1])


def product_rate(info: DeviceInfo, variant: str, dtype: Dtype, otherwise: float) -> float:
    """Operations of large products by a variant: measured, else what is given."""
    measured = info.product_rate(variant, dtype.name)
    return measured / 1e6 if measured else otherwise


def of_processor(info: DeviceInfo, name: str) -> float:
    """A speed of the table on this processor: in proportion to its products, as measured, else by
    the number of its threads."""
    return PROCESSOR[name] * _products(info) / PROCESSOR["mps"]


def slower(info: DeviceInfo) -> float:
    """The time that this processor takes for what the reference processor does in 1."""
    return PROCESSOR["mps"] / _products(info)


def _products(info: DeviceInfo) -> float:
    return product_rate(info, "mps", dt.float32, CORE_PRODUCTS * (info.cores or 1))


def of_gpu(info: DeviceInfo, name: str, size: float, operations: float) -> float:
    """The time of a GPU's kernel that reads so many bytes: of reading or of computing."""
    shares = GPU[name]
    reading = size / (shares.bandwidth * bandwidth(info))
    return max(reading, operations / (shares.peak * peak(info)))


def busy(info: DeviceInfo, tasks: int) -> float:
    """The share of a processor's threads that so many tasks keep busy."""
    return min(tasks / (info.cores or 1), 1.0)
