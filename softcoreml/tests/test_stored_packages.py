"""Packages that coremltools made from torch networks: their outputs are torch's.

Made by softcoreml/scripts/make_packages.py. The networks' parameters are numbers of float16, so in
`float32` precision only the order of sums differs from torch, and weights that a conversion fuses.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mil_run import close

import softcoreml
from softcoreml import mil

FOLDER = Path(__file__).parent / "packages"
NAMES = sorted(one.stem for one in FOLDER.glob("*.mlpackage"))
FUSED = {"residual": 2e-3}  # batch norms become part of float16 weights


def _compare(name: str, precision: str, tolerance: float) -> None:
    arrays = dict(np.load(FOLDER / f"{name}.npz"))
    model = softcoreml.load(FOLDER / f"{name}.mlpackage", precision=precision)
    states = model.new_states()
    calls = sorted({key.split(".")[0] for key in arrays if key.startswith("call")})
    for call in calls:
        inputs = {key.split(".")[1]: one for key, one in arrays.items() if key.startswith(call)}
        found = model.predict(inputs, states if len(states) else None)
        expected = {
            key.split(".")[1]: one
            for key, one in arrays.items()
            if key.startswith(call.replace("call", "out"))
        }
        assert found.keys() == expected.keys()
        for key, one in expected.items():
            close(found[key], one, tolerance)


def test_packages_hold_states_a_loop_and_every_kind_of_compressed_weights() -> None:
    kinds = set()
    for name in NAMES:
        function = softcoreml.load(FOLDER / f"{name}.mlpackage").function
        kinds |= {one.type for one in mil.walk(function.block)}
    assert kinds >= {"read_state", "write_state", "while_loop"}
    assert {one for one in kinds if one.startswith("constexpr_")} == {
        "constexpr_affine_dequantize",
        "constexpr_blockwise_shift_scale",
        "constexpr_lut_to_dense",
        "constexpr_lut_to_sparse",
        "constexpr_sparse_blockwise_shift_scale",
        "constexpr_sparse_to_dense",
    }


@pytest.mark.parametrize("name", NAMES)
def test_like_torch_in_float32(name: str) -> None:
    _compare(name, "float32", FUSED.get(name, 3e-5))


@pytest.mark.parametrize("name", NAMES)
def test_like_torch_in_float16(name: str) -> None:
    _compare(name, "declared", 1e-2)
