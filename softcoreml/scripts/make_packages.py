"""Make the packages of softcoreml/tests/packages, with inputs and the outputs of torch.

    python softcoreml/scripts/make_packages.py

Needs torch and coremltools. A package NAME.mlpackage has a NAME.npz beside it: call0.x is the input
x of the first call, out0.y0 the output y0 that torch computes for it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import conversion
import networks
import numpy as np

FOLDER = Path(__file__).parents[1] / "tests" / "packages"
SEED = 7
TARGETS = {"perceptron": "ios15", "residual": "ios16", "listener": "ios17"}
"""The others are made for iOS 18."""
LARGEST_PACKAGE, LARGEST_FOLDER = 60_000, 600_000


def _save(name: str, model: Any, network: networks.Network) -> None:
    package = FOLDER / f"{name}.mlpackage"
    model.save(str(package))
    arrays = {}
    for number, (call, found) in enumerate(
        zip(network.calls, networks.outputs(network), strict=True)
    ):
        arrays |= {f"call{number}.{key}": one for key, one in call.items()}
        arrays |= {f"out{number}.y{place}": one for place, one in enumerate(found)}
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    size = sum(one.stat().st_size for one in package.rglob("*") if one.is_file())
    print(f"{name}: {size} bytes")
    if size > LARGEST_PACKAGE:
        raise SystemExit(f"{name} has {size} bytes: the limit is {LARGEST_PACKAGE}")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in networks.NAMES:
        network = networks.make(name, SEED)
        _save(name, conversion.convert(network, TARGETS.get(name, "ios18")), network)
    for name, (target, compress) in conversion.COMPRESSIONS.items():
        network = networks.make("perceptron", SEED)
        model = compress(conversion.convert(network, target))
        _save(name, model, conversion.decompressed(model, network))
    total = sum(one.stat().st_size for one in FOLDER.rglob("*") if one.is_file())
    print(f"{total} bytes in all")
    if total > LARGEST_FOLDER:
        raise SystemExit(f"the packages have {total} bytes: the limit is {LARGEST_FOLDER}")


if __name__ == "__main__":
    main()
