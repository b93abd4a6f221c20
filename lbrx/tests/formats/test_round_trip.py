"""Round trips of tensors with arbitrary names and shapes, and the memory of saving."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from format_checks import same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.quant.gguf import TYPES

NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=15
)
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
IN_GGUF = [kind.dtype for kind in TYPES if kind.dtype is not None]


@pytest.mark.parametrize("name", ["m.safetensors", "m.gguf", "m.npz", "folder"])
def test_names_and_shapes(name):
    types = st.sampled_from(IN_GGUF if name == "m.gguf" else dt.ALL)
    tables = st.dictionaries(NAMES, st.tuples(types, SHAPES, st.integers(0, 2**32)), max_size=4)

    @settings(
        max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(tables)
    def run(table):
        tensors = {}
        for key, (dtype, shape, seed) in table.items():
            noise = np.random.default_rng(seed).integers(0, 2, (*shape, dtype.itemsize), np.uint8)
            tensors[key] = lbrx.tensor(noise.view(dtype.numpy).reshape(shape), device="cpu")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            lbrx.save(
                path, tensors, format=None if "." in name else "safetensors", max_shard_size=None
            )
            model = lbrx.open_model(path) if tensors or name != "m.npz" else {}
            assert set(model) == set(tensors)
            for key, tensor in tensors.items():
                same(model[key].numpy(), tensor.numpy())

    run()


def test_memory_is_that_of_a_tensor(tmp_path, rng):
    """Blocks are decoded and written one tensor at a time, so memory does not grow with the model."""
    values = rng.standard_normal((256, 1024)).astype(np.float32)
    blocks = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for i in range(24):
        writer.add_tensor(f"t{i}", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = lbrx.open_model(tmp_path / "m.gguf")
    tracemalloc.start()
    try:
        lbrx.save(tmp_path / "m.safetensors", model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "m.safetensors").stat().st_size > 24 * values.nbytes
    assert peak < 4 * values.nbytes + (4 << 20)
