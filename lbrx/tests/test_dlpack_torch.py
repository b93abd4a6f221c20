"""DLPack with PyTorch on the same GPU: memory is shared, and streams are in order.

SOFTMETAL_DEVICE=cuda:0 python -m pytest lbrx/tests/test_dlpack_torch.py
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
from device_memory import GPU

import lbrx

if not GPU:
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU", allow_module_level=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8"])
def test_ours_is_theirs(dtype):
    values = np.arange(60).reshape(3, 4, 5)
    ours = (lbrx.tensor(values, device="metal") + 1).astype(dtype)
    theirs = torch.from_dlpack(ours)
    assert theirs.is_cuda
    assert theirs.data_ptr() == ours.storage.address
    np.testing.assert_array_equal(theirs.float().cpu().numpy(), values + 1)
    part = torch.from_dlpack(ours[:, ::2, 1:].T)
    np.testing.assert_array_equal(part.float().cpu().numpy(), (values + 1)[:, ::2, 1:].T)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_theirs_is_ours(dtype):
    theirs = torch.arange(60, device="cuda").reshape(3, 4, 5).to(getattr(torch, dtype))
    for view in (theirs, theirs[1:], theirs[:, ::2, 1:], theirs.transpose(0, 2), theirs[:0]):
        ours = lbrx.from_dlpack(view)
        assert ours.device == "metal"
        wanted = view.to(torch.float64).cpu().numpy()
        np.testing.assert_array_equal(ours.astype("float32").numpy(), wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_tensor_copies_theirs(dtype):
    theirs = torch.arange(60, device="cuda").reshape(3, 4, 5).to(getattr(torch, dtype))
    values = theirs.double().cpu().numpy()
    ours, half = lbrx.tensor(theirs), lbrx.tensor(theirs[:, ::2].T, dtype="float16")
    there = lbrx.tensor(theirs, device="cpu")
    lbrx.eval(ours, half)
    theirs.zero_()
    assert (ours.dtype.name, ours.device, there.device) == (dtype, lbrx.default_device(), "cpu")
    for found, wanted in ((ours, values), (half, values[:, ::2].T), (there, values)):
        np.testing.assert_array_equal(found.astype("float32").numpy(), wanted)


def test_our_kernels_wait_for_their_stream():
    stream = torch.cuda.Stream()
    x = torch.zeros(1 << 24, device="cuda")
    for turn in range(5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # cycles
            x.fill_(turn)
            ours = lbrx.from_dlpack(x)
        assert float((ours * 2).max().item()) == 2 * turn
        assert float((ours * 2).min().item()) == 2 * turn


def test_their_kernels_see_our_results():
    for turn in range(5):
        ours = lbrx.full((1 << 24,), float(turn), device="metal")
        for _ in range(20):
            ours = ours + 1
        theirs = torch.from_dlpack(ours)
        assert theirs.min().item() == theirs.max().item() == turn + 20


def test_memory_is_given_back():
    before = torch.cuda.memory_allocated()
    theirs = torch.ones(1 << 22, device="cuda")
    ours = lbrx.from_dlpack(theirs)
    del theirs
    gc.collect()
    assert float(ours.sum().item()) == 1 << 22
    del ours
    lbrx.metal.context().queue.finish()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
