"""The same product has the same bits: in every call and process, with any threads and load."""

from __future__ import annotations

import json

from child_scripts import run_child

# From below one tile to above the size from which other threads and tiles matter; odd sides.
SHAPES = [(1, 1, 1), (3, 5, 7), (1, 513, 300), (64, 64, 64), (65, 129, 33), (130, 70, 1000),
          (257, 511, 129), (512, 512, 512), (600, 700, 500), (31, 2049, 1025)]  # fmt: skip

SCRIPT = """
import hashlib, json, threading
import numpy as np
import softmetal
from softmetal import mps

device = softmetal.MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()
TYPES = {"f4": mps.MPSDataTypeFloat32, "f2": mps.MPSDataTypeFloat16}


def matrix(values):
    data = values.tobytes()
    buffer = device.newBufferWithBytes_length_options_(data, len(data), 0)
    describe = mps.MPSMatrixDescriptor.matrixDescriptorWithRows_columns_rowBytes_dataType_
    shape = describe(*values.shape, values.shape[1] * values.itemsize, TYPES[values.dtype.str[1:]])
    return mps.MPSMatrix.alloc().initWithBuffer_descriptor_(buffer, shape)


def digest(m, n, k, dtype, transpose):
    rng = np.random.default_rng(m * n + k)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k)))
    a, b = (a if not transpose else np.ascontiguousarray(a.T)), (b if transpose else b.T.copy())
    left, right, result = matrix(a), matrix(b), matrix(np.zeros((m, n), dtype))
    product = mps.MPSMatrixMultiplication.alloc()
    product = product.initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta_(
        device, transpose, transpose, m, n, k, 1.0, 0.0)
    commands = queue.commandBuffer()
    product.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(commands, left, right, result)
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None, commands.error()
    memory = result.data()
    return hashlib.sha256(bytes(memory.contents().as_buffer(memory.length()))).hexdigest()


def numpy_products(stop):
    x = np.ones((700, 700), np.float32)
    while not stop.is_set():
        x @ x


stop, seen = threading.Event(), {}
others = [threading.Thread(target=numpy_products, args=(stop,)) for _ in range(LOAD)]
for thread in others:
    thread.start()
for _ in range(6):
    for shape in SHAPES:
        for dtype in TYPES:
            for transpose in (False, True):
                name = f"{shape} {dtype} {transpose}"
                seen.setdefault(name, set()).add(digest(*shape, dtype, transpose))
stop.set()
for thread in others:
    thread.join()
print(json.dumps({name: sorted(digests) for name, digests in seen.items()}))
"""


def digests(threads: int, load: int) -> dict[str, list[str]]:
    done = run_child(f"LOAD, SHAPES = {load}, {SHAPES!r}\n{SCRIPT}", threads=threads)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_equal_products_have_equal_bits() -> None:
    """With 1, 2 and 5 threads, the last while the program multiplies with numpy."""
    alone, shared, loaded = (digests(threads, load) for threads, load in ((1, 0), (2, 0), (5, 2)))
    assert [name for name, found in alone.items() if len(found) > 1] == []
    assert alone == shared == loaded
