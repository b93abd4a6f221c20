"""Memory that host and device share: numpy arrays, mapped files and results."""

import tempfile
from pathlib import Path

import numpy as np

import lbrx


def main():
    # An array that is aligned to pages and fills whole pages is used without a copy.
    page = lbrx.empty_aligned((1000, 1000))
    page[:] = 1
    shared = lbrx.from_numpy(page, device="metal", copy=False)
    page[0] = 7
    print("numpy's write is seen:", shared[0, 0].item() == 7)
    print("the same memory:", np.shares_memory(shared.numpy(), page))

    # Other arrays are copied; copy=False raises an error instead.
    try:
        lbrx.from_numpy(np.ones(10, np.float32)[1:], device="metal", copy=False)
    except ValueError as error:
        print("error:", error)

    # A mapped file becomes one buffer over its pages, and each tensor in it has an offset. Pages
    # are read when a kernel touches them, and nothing is copied.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.bin"
        np.arange(1 << 20, dtype=np.float32).tofile(path)
        before = lbrx.metal.stats()["bytes_in_use"]
        weights = lbrx.from_numpy(
            np.memmap(path, np.float32, "r", shape=(1024, 1024)), device="metal", copy=False
        )
        print("bytes allocated for 4 MiB of weights:", lbrx.metal.stats()["bytes_in_use"] - before)
        print("their mean:", weights.mean().item())

    # Results are in the device's memory, which numpy() shares without a copy.
    doubled = shared * 2
    print("results are shared too:", np.shares_memory(doubled.numpy(), doubled.numpy()))


if __name__ == "__main__":
    main()
