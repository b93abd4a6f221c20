"""Memory that host and device share: numpy arrays, mapped files, and results."""

import tempfile
from pathlib import Path

import numpy as np

import lbrx


def main():
    # An array that starts on a page and owns whole ones is used where it is.
    page = lbrx.empty_aligned((1000, 1000))
    page[:] = 1
    shared = lbrx.from_numpy(page, device="metal", copy=False)
    page[0] = 7
    print("numpy's write is seen:", shared[0, 0].item() == 7)
    print("the same memory:", np.shares_memory(shared.numpy(), page))

    # Other arrays are copied once; copy=False says so instead.
    try:
        lbrx.from_numpy(np.ones(10, np.float32)[1:], device="metal", copy=False)
    except ValueError as error:
        print("error:", error)

    # A mapped file is one buffer over its pages, and a tensor in it an offset: nothing is read
    # until the kernel touches it, and nothing is copied.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.bin"
        np.arange(1 << 20, dtype=np.float32).tofile(path)
        before = lbrx.metal.stats()["bytes_in_use"]
        weights = lbrx.from_numpy(
            np.memmap(path, np.float32, "r", shape=(1024, 1024)), device="metal", copy=False
        )
        print("bytes allocated for 4 MiB of weights:", lbrx.metal.stats()["bytes_in_use"] - before)
        print("their mean:", weights.mean().item())

    # A result is memory of the device's, which numpy() shows without a copy.
    doubled = shared * 2
    print("results are shared too:", np.shares_memory(doubled.numpy(), doubled.numpy()))


if __name__ == "__main__":
    main()
