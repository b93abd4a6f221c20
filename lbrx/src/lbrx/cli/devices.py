"""lbrx devices: the Metal devices and their limits."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from lbrx.device_info import Calibration, DeviceInfo
from lbrx.metal.device import devices
from lbrx.metal.replay_choice import replay_choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with sizes in bytes and rates per second"
    )


def run(options: argparse.Namespace) -> int:
    found = devices()
    if options.json:
        print(json.dumps([asdict(device) for device in found], indent=2))
        return 0
    for position, device in enumerate(found):
        if position:
            print()
        rows = table(device)
        width = max(len(title) for title, _ in rows)
        for title, value in rows:
            print(f"{title:<{width}}  {value}")
    return 0


def table(device: DeviceInfo) -> list[tuple[str, str]]:
    """Titles and formatted values."""
    cores = "threads" if device.soft and not device.simd_hardware else "GPU cores"
    family = f"Apple{device.family}" if device.family else "not Apple's"
    source = "chip table" if device.cuda is None else "clocks"
    if device.like is not None:
        source = f"extrapolated: {device.chip} is not in the chip table, taken as {device.like}"
    calibrated = device.calibration
    measured = speeds(calibrated) if calibrated else []
    date = calibrated.date if calibrated else "never: `lbrx tune` measures the device's speeds"
    return [
        ("device", device.name + (" (softmetal)" if device.soft and device.chip else "")),
        ("family", family),
        (cores, _known(device.cores, 1, "")),
        ("memory bandwidth", _known(device.bandwidth, 1e9, f" GB/s ({source})")),
        ("FP32 peak", _known(device.fp32_peak, 1e12, f" TFLOP/s ({source})")),
        ("last cache", _known(device.cache, 1 << 20, " MiB")),
        ("threads in a threadgroup", f"{device.max_threads:,}"),
        ("threadgroup memory", f"{device.threadgroup_memory >> 10} KiB"),
        ("longest buffer", _gibibytes(device.max_buffer)),
        ("working set", _gibibytes(device.working_set)),
        ("memory limit", _gibibytes(device.memory_limit)),
        ("unified memory", _yes(device.unified_memory)),
        ("simd hardware", _yes(device.simd_hardware)),
        ("simdgroup matrix", _yes(device.simdgroup_matrix)),
        ("bfloat", _yes(device.bfloat) + (", emulated" if not device.native_bfloat else "")),
        ("replay", "{0.kind}: {0.reason}".format(replay_choice(device))),
        ("calibrated", date),
        *((f"measured {title}", value) for title, value in measured),
    ]


def speeds(measured: Calibration) -> list[tuple[str, str]]:
    """Titles and values of a calibration."""
    streamed = _known(measured.streaming, 1 << 20, " MiB and more")
    products = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in measured.products)
    return [
        ("memory bandwidth", f"{measured.bandwidth / 1e9:.4g} GB/s"),
        ("FP32", f"{measured.fp32 / 1e12:.3g} TFLOP/s"),
        ("FP16", f"{measured.fp16 / 1e12:.3g} TFLOP/s"),
        ("products", f"{products} TFLOP/s"),
        ("dispatch", f"{measured.dispatch * 1e6:.3g} us"),
        ("product by MPS", f"{measured.encoding * 1e6:.3g} us"),
        ("simd width", str(measured.simd_width)),
        ("streamed results", streamed if measured.streaming else "none"),
    ]


def _known(value: float | None, unit: float, suffix: str) -> str:
    return "not known" if value is None else f"{value / unit:g}{suffix}"


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
