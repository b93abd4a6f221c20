"""GGUF's types against the `gguf` package, and against llama.cpp's recorded errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import QuantError
from quant_data import DATA, make, rmse, round_trip

from lbrx import quant
from lbrx.errors import FormatError
from lbrx.quant import gguf as ours

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TYPES = {scheme.name: gguf.GGMLQuantizationType(scheme.gguf_id) for scheme in ours.SCHEMES}
# The package has no code for these two.
ONLY_OURS = {"q1_0", "q8_k"}
WEIGHTED = "q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs".split()
RECORDED = json.loads((HERE / "llama_errors.json").read_text())


def can_encode(name: str) -> bool:
    try:
        gguf.quants.quantize(np.zeros((1, 256), np.float32), TYPES[name])
    except (NotImplementedError, QuantError):
        return False
    return True


ENCODED_BY_PEER = [name for name in TYPES if can_encode(name)]


def test_the_type_table_is_the_packages():
    theirs = {(int(t), t.name): sizes for t, sizes in gguf.GGML_QUANT_SIZES.items()}
    # Q8_1 never appears in files: llama.cpp makes it of activations.
    theirs.pop((9, "Q8_1"))
    assert {(t.id, t.name): (t.elements, t.bytes) for t in ours.TYPES} == theirs
    for scheme in ours.SCHEMES:
        kind = ours.by_id(scheme.gguf_id)
        assert (kind.name.lower(), kind.elements, kind.bytes, kind.is_plain) == (
            *(scheme.name, scheme.elements, scheme.block_bytes, False),
        )
    with pytest.raises(FormatError, match=r"GGUF type 31 .* 2 Q4_0, 3 Q4_1"):
        ours.by_id(31)


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ONLY_OURS])
def test_decoding_is_the_packages_bit_for_bit(rng, name):
    """Random bytes: every scale, NaN and infinity among them."""
    size = quant.find(name).block_bytes
    data = rng.integers(0, 256, (7, 300 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(data, TYPES[name])
    mine = quant.dequantize(data, name)
    np.testing.assert_array_equal(mine, theirs)
    finite = np.isfinite(theirs)
    assert finite.mean() > 0.9
    np.testing.assert_array_equal(mine[finite].view(np.uint32), theirs[finite].view(np.uint32))


@pytest.mark.parametrize("kind", [kind for kind in DATA if kind != "tiny"])
@pytest.mark.parametrize("name", ENCODED_BY_PEER)
def test_encoding_is_the_packages_bit_for_bit(rng, name, kind):
    values = make(kind, rng, (5, 1024))
    with np.errstate(all="ignore"):
        theirs = gguf.quants.quantize(values, TYPES[name])
    np.testing.assert_array_equal(quant.quantize(values, name).data, theirs)


def test_which_types_the_package_encodes():
    assert {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4"} <= {*ENCODED_BY_PEER}


@pytest.mark.parametrize(
    "case", RECORDED["cases"], ids=lambda case: f"{case['scheme']}-{case['data']}"
)
def test_errors_are_those_of_llama_cpp(case):
    """lbrx/scripts/llama_records.py wrote them, with llama.cpp's own quantizer."""
    rng = np.random.default_rng(RECORDED["seed"])
    values = make(case["data"], rng, tuple(RECORDED["shape"]))
    importance = rng.standard_normal(values.shape[-1]).astype(np.float32) ** 2
    if not case["importance"]:
        importance = None
    weights = 1.0 if importance is None else importance
    error = rmse(values, round_trip(values, case["scheme"], importance), weights)
    assert error <= case["rmse"] * 1.01


def test_binary_blocks(rng):
    values = make("gaussian", rng, (3, 256))
    scale = np.abs(values.reshape(-1, 128)).mean(axis=1).astype(np.float16)
    expected = np.where(values >= 0, 1, -1) * np.repeat(scale, 128).reshape(3, 256)
    np.testing.assert_array_equal(round_trip(values, "q1_0"), expected.astype(np.float32))


def test_activation_blocks_carry_their_sums(rng):
    values = make("gaussian", rng, (4, 512))
    blocks = quant.quantize(values, "q8_k").data.reshape(-1).view(quant.find("q8_k").layout)
    np.testing.assert_array_equal(
        blocks["bsums"], blocks["qs"].astype(int).reshape(-1, 16, 16).sum(axis=2)
    )
    step = np.abs(blocks["d"]).repeat(256).reshape(values.shape)
    assert (np.abs(round_trip(values, "q8_k") - values) <= step * 0.5001).all()


def test_the_code_books_are_fresh():
    spec = importlib.util.spec_from_file_location("iq_grids", ROOT / "scripts" / "iq_grids.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.packed() == script.TARGET.read_bytes(), "run lbrx/scripts/iq_grids.py"


@pytest.mark.parametrize("name", WEIGHTED)
def test_importance_lowers_the_error_that_counts(rng, name):
    values = make("gaussian", rng, (64, 512))
    importance = np.exp(rng.normal(0, 2, 512)).astype(np.float32)
    plain = rmse(values, round_trip(values, name), importance)
    assert rmse(values, round_trip(values, name, importance), importance) < plain
