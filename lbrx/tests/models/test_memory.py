"""Memory that a model no longer needs is returned to the system."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.process import give_back, peak_memory
from lbrx.tensors.long_lived import write


def resident() -> int:
    """The resident memory of this process in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(sys.platform != "linux", reason="other allocators return memory themselves")
def test_freed_memory_goes_back_to_the_system():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    # Each is too small for malloc to map separately; the last one keeps the end of the heap in use.
    blocks = [libc.malloc(60_000) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    for block in blocks[:-1]:
        libc.free(block)
    before = resident()
    give_back()
    libc.free(blocks[-1])
    assert resident() < before - 30_000


def test_peak_memory_excludes_the_parent_process():
    large = np.ones(300_000_000, np.uint8)
    shown = "from lbrx.process import peak_memory; print(peak_memory())"
    child = subprocess.run([sys.executable, "-c", shown], capture_output=True, check=True)
    assert 1_000_000 < int(child.stdout) < large.nbytes <= peak_memory()


def test_a_long_prompt_leaves_no_scratch(make_model):
    """A prompt's intermediate results are far larger than those of one token."""
    model = lbrx.language_model(make_model("llama", max_position_embeddings=1024), device="metal")
    gpu = lbrx.metal.context()
    gpu.trim()
    assert gpu.pool.statistics().cached == 0
    state = model.engine.prefill([list(range(3, 403))], 8)
    state.best.numpy()
    gpu.queue.drain()
    assert gpu.pool.statistics().cached < 400 * 4 * model.config.hidden


def in_heap(tensor) -> bool:
    return tensor.storage.buffer.handle.heap() is not None


@pytest.mark.parametrize("cache_dtype", ["float16", "q8_0"])
def test_caches_weights_and_replays_live_in_heaps(make_model, cache_dtype):
    """The pool counts them, and all of it comes back with the model."""
    settings = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    gpu = lbrx.metal.context()
    gc.collect()
    gpu.trim()
    before, held = gpu.pool.statistics(), Counter(dict(gpu.pool.holders()))
    model = lbrx.language_model(
        make_model("llama", **settings), device="metal", cache_dtype=cache_dtype
    )
    state = model.engine.prefill([list(range(3, 43))], 8)
    state = model.engine.decode(state.best, state.positions)
    state.best.numpy()
    taken = Counter(dict(gpu.pool.holders()))
    taken.subtract(held)
    store = model.engine.cache.store
    assert in_heap(store)
    assert in_heap(model.engine.network.norm.weight)
    assert store.nbytes <= taken["caches"] < store.nbytes + 16384
    assert taken["replay"] > 0
    assert taken["weights"] >= model.engine.network.norm.weight.nbytes
    del model, state, store
    gc.collect()
    gpu.queue.drain()
    gpu.trim()
    after = gpu.pool.statistics()
    assert (after.in_use, after.heaps_idle) <= (before.in_use, before.heaps_idle)


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_a_cache_that_grows_keeps_its_tokens(make_model, device):
    model = lbrx.language_model(make_model("llama", max_position_embeddings=1024), device=device)
    engine = model.engine
    prompt = list(range(3, 33))
    engine.prefill([prompt], 8)
    kept = engine.cache.store[..., :30, :].numpy(copy=True)
    old = engine.cache
    engine.reserve(1, old.capacity + 1)
    assert engine.cache is not old
    np.testing.assert_array_equal(engine.cache.store[..., :30, :].numpy(), kept)
    assert engine.cached_prefix([prompt]) == 29


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "q8_0"])
def test_what_a_new_cache_contains_does_not_matter(make_model, device, cache_dtype):
    """Memory of a heap has been used before: here every bit of it is set, which is NaN."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    folder = make_model("llama", **heads)
    found = []
    for bits in (0, 0xFF):
        engine = lbrx.language_model(folder, device=device, cache_dtype=cache_dtype).engine
        for prompts in ([[5, 6, 7]], [[5, 6, 7], [8]]):
            store = engine.reserve(len(prompts), 20).store
            dirty = np.full(store.nbytes, bits, np.uint8).view(store.dtype.numpy)
            write(store, lbrx.tensor(dirty.reshape(store.shape), device="cpu"))
            state = engine.prefill(prompts, 10)
            found.append(state.logits.numpy(copy=True))
            found.append(engine.decode(state.best, state.positions).logits.numpy(copy=True))
    for clean, dirty in zip(found[:4], found[4:], strict=True):
        assert np.isfinite(clean).all()
        np.testing.assert_array_equal(clean, dirty)
