"""MPSMatrixMultiplication against float64 numpy."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from seeds import generator

from softmetal.errors import ValidationError

TYPES = {"f4": "MPSDataTypeFloat32", "f2": "MPSDataTypeFloat16"}


@pytest.fixture(scope="module")
def mps():
    if sys.platform == "darwin":
        return pytest.importorskip("MetalPerformanceShaders")
    from softmetal import mps

    return mps


def matrices(mps, device, array, padding=0, offset=0):
    """MPSMatrix over a copy of (batch, rows, columns), with rows `padding` elements longer."""
    batch, rows, columns = array.shape
    stride = columns + padding
    host = np.zeros((batch, rows, stride), array.dtype)
    host[:, :, :columns] = array
    data = bytes(offset) + host.tobytes()
    buffer = device.newBufferWithBytes_length_options_(data, len(data), 0)
    make = mps.MPSMatrixDescriptor
    descriptor = make.matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType_(
        rows,
        columns,
        batch,
        stride * array.itemsize,
        rows * stride * array.itemsize,
        getattr(mps, TYPES[array.dtype.str[1:]]),
    )
    return mps.MPSMatrix.alloc().initWithBuffer_offset_descriptor_(buffer, offset, descriptor)


def result(matrix, dtype):
    length = matrix.data().length() - matrix.offset()
    flat = np.frombuffer(matrix.data().contents().as_buffer(matrix.data().length()), "u1")
    values = flat[matrix.offset() :][:length].view(dtype)
    stride = matrix.rowBytes() // values.itemsize
    return values.reshape(matrix.matrices(), matrix.rows(), stride)[:, :, : matrix.columns()]


def kernel(mps, device, m, n, k, left=False, right=False, alpha=1.0, beta=0.0):
    return mps.MPSMatrixMultiplication.alloc().initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta_(
        device, left, right, m, n, k, alpha, beta
    )


def encode(device, product, a, b, c):
    commands = device.newCommandQueue().commandBuffer()
    product.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(commands, a, b, c)
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None, commands.error()


@pytest.mark.metal
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (33, 17, 65)])
def test_products(mps, device, dtype, left, right, shape):
    m, n, k = shape
    rng = generator(m * n * k)
    a = rng.standard_normal((2, k, m) if left else (2, m, k)).astype(dtype)
    b = rng.standard_normal((2, n, k) if right else (2, k, n)).astype(dtype)
    c = rng.standard_normal((2, m, n)).astype(dtype)
    target = matrices(mps, device, c, padding=3, offset=16)
    encode(
        device,
        kernel(mps, device, m, n, k, left, right, 0.5, 2.0),
        matrices(mps, device, a, padding=1),
        matrices(mps, device, b, offset=32),
        target,
    )
    op_a = a.astype("f8").swapaxes(1, 2) if left else a.astype("f8")
    op_b = b.astype("f8").swapaxes(1, 2) if right else b.astype("f8")
    tolerance = 1e-5 if dtype == "f4" else 4e-3
    np.testing.assert_allclose(
        result(target, dtype), 0.5 * op_a @ op_b + 2 * c.astype("f8"),
        rtol=tolerance, atol=tolerance * k**0.5,
    )  # fmt: skip


def test_origins_and_batches(mps, device):
    rng = generator(0)
    a, b = rng.standard_normal((3, 8, 9)).astype("f4"), rng.standard_normal((3, 9, 8)).astype("f4")
    target = matrices(mps, device, np.zeros((3, 8, 8), "f4"))
    product = kernel(mps, device, 4, 5, 6)
    product.setLeftMatrixOrigin_((1, 2, 0))
    product.setRightMatrixOrigin_((3, 1, 0))
    product.setResultMatrixOrigin_((2, 3, 0))
    product.setBatchStart_(1)
    product.setBatchSize_(1)
    encode(device, product, matrices(mps, device, a), matrices(mps, device, b), target)
    wanted = np.zeros((3, 8, 8))
    wanted[1, 2:6, 3:8] = a[1, 1:5, 2:8].astype("f8") @ b[1, 3:9, 1:6]
    np.testing.assert_allclose(result(target, "f4"), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "change", "text"),
    [
        (((2, 3), (4, 2), (2, 2)), None, "right matrix is 4 x 2.*3 x 2|left matrix"),
        (((2, 3), (3, 2), (2, 1)), None, "result matrix is 2 x 1"),
        (((2, 3), (3, 2), (2, 2)), lambda p: p.setLeftMatrixOrigin_((1, 0, 0)), "from \\(1, 0\\)"),
        (((2, 3), (3, 2), (2, 2)), lambda p: p.setBatchSize_(2), "batch of 2.*there are 1"),
        (((2, 3), (3, 2), (2, 2)), lambda p: p.setBatchStart_(2), "from 2"),
    ],
)
def test_refused_shapes(mps, device, shapes, change, text):
    a, b, c = (matrices(mps, device, np.zeros((1, *shape), "f4")) for shape in shapes)
    product = kernel(mps, device, 2, 2, 4 if shapes[1] == (4, 2) else 3)
    if change:
        change(product)
    commands = device.newCommandQueue().commandBuffer()
    with pytest.raises(ValidationError, match=text):
        product.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(commands, a, b, c)


def test_refused_descriptors(mps, device):
    make = mps.MPSMatrixDescriptor.matrixDescriptorWithRows_columns_rowBytes_dataType_
    with pytest.raises(ValidationError, match="at least 12"):
        make(2, 3, 8, mps.MPSDataTypeFloat32)
    buffer = device.newBufferWithLength_options_(20, 0)
    with pytest.raises(ValidationError, match="byte 24"):
        mps.MPSMatrix.alloc().initWithBuffer_descriptor_(
            buffer, make(2, 3, 12, mps.MPSDataTypeFloat32)
        )
    whole = mps.MPSMatrix.alloc().initWithDevice_descriptor_(
        device, make(2, 2, 8, mps.MPSDataTypeInt32)
    )
    product = kernel(mps, device, 2, 2, 2)
    with pytest.raises(ValidationError, match="MPSDataTypeFloat32"):
        product.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(
            device.newCommandQueue().commandBuffer(), whole, whole, whole
        )
    assert mps.MPSMatrixDescriptor.rowBytesForColumns_dataType_(3, mps.MPSDataTypeFloat32) == 16
    assert mps.MPSSupportsMTLDevice(device)
