"""Matrix multiplication of MetalPerformanceShaders, under PyObjC's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NewType, Self

from softmetal.api.buffer import MTLBuffer
from softmetal.api.objects import Allocated, Labelled, Object
from softmetal.api.structs import MTLOrigin
from softmetal.errors import ValidationError
from softmetal.types import Gemm

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice
    from softmetal.api.queue import MTLCommandBuffer

__all__ = [
    "MPSDataType",
    "MPSDataTypeBFloat16",
    "MPSDataTypeFloat16",
    "MPSDataTypeFloat32",
    "MPSDataTypeInt8",
    "MPSDataTypeInt16",
    "MPSDataTypeInt32",
    "MPSDataTypeInvalid",
    "MPSDataTypeUInt8",
    "MPSDataTypeUInt16",
    "MPSDataTypeUInt32",
    "MPSKernel",
    "MPSMatrix",
    "MPSMatrixDescriptor",
    "MPSMatrixMultiplication",
    "MPSSupportsMTLDevice",
]

MPSDataType = NewType("MPSDataType", int)
MPSDataTypeInvalid: Final = 0
MPSDataTypeFloat32: Final = 0x10000020
MPSDataTypeFloat16: Final = 0x10000010
MPSDataTypeBFloat16: Final = 0x90000010
MPSDataTypeInt8: Final = 0x20000008
MPSDataTypeInt16: Final = 0x20000010
MPSDataTypeInt32: Final = 0x20000020
MPSDataTypeUInt8: Final = 8
MPSDataTypeUInt16: Final = 16
MPSDataTypeUInt32: Final = 32

_GEMM_TYPES = {MPSDataTypeFloat32: 0, MPSDataTypeFloat16: 1}
_ROW_ALIGNMENT = 16
_ALL = (1 << 64) - 1  # NSUIntegerMax


def _type_bytes(type_: int) -> int:
    return (type_ & 0xFFFF) // 8


def MPSSupportsMTLDevice(device: MTLDevice | None) -> bool:
    return device is not None


class MPSMatrixDescriptor(Object):
    """`matrices` of `rows` by `columns`, row-major, with strides in bytes."""

    __slots__ = ("_columns", "_matrices", "_matrix_bytes", "_row_bytes", "_rows", "_type")

    def __init__(
        self, rows: int, columns: int, matrices: int, row_bytes: int, matrix_bytes: int, type_: int
    ) -> None:
        if row_bytes < columns * _type_bytes(type_):
            raise ValidationError(
                f"rowBytes of {row_bytes} is less than {columns} columns of "
                f"{_type_bytes(type_)} bytes: pass at least {columns * _type_bytes(type_)}"
            )
        if matrices > 1 and matrix_bytes < rows * row_bytes:
            raise ValidationError(
                f"matrixBytes of {matrix_bytes} is less than {rows} rows of {row_bytes} bytes: "
                f"pass at least {rows * row_bytes}"
            )
        self._rows = rows
        self._columns = columns
        self._matrices = matrices
        self._row_bytes = row_bytes
        self._matrix_bytes = matrix_bytes
        self._type = type_

    # MPS: +matrixDescriptorWithRows:columns:rowBytes:dataType:
    @classmethod
    def matrixDescriptorWithRows_columns_rowBytes_dataType_(
        cls, rows: int, columns: int, row_bytes: int, type_: int
    ) -> MPSMatrixDescriptor:
        return cls(rows, columns, 1, row_bytes, rows * row_bytes, type_)

    # MPS: +matrixDescriptorWithDimensions:columns:rowBytes:dataType:
    @classmethod
    def matrixDescriptorWithDimensions_columns_rowBytes_dataType_(
        cls, rows: int, columns: int, row_bytes: int, type_: int
    ) -> MPSMatrixDescriptor:
        return cls(rows, columns, 1, row_bytes, rows * row_bytes, type_)

    # MPS: +matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:
    @classmethod
    def matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType_(
        cls, rows: int, columns: int, matrices: int, row_bytes: int, matrix_bytes: int, type_: int
    ) -> MPSMatrixDescriptor:
        return cls(rows, columns, matrices, row_bytes, matrix_bytes, type_)

    # MPS: +rowBytesForColumns:dataType:
    @classmethod
    def rowBytesForColumns_dataType_(cls, columns: int, type_: int) -> int:
        """The row stride that is best for speed."""
        return -(-columns * _type_bytes(type_) // _ROW_ALIGNMENT) * _ROW_ALIGNMENT

    # MPS: +rowBytesFromColumns:dataType:
    @classmethod
    def rowBytesFromColumns_dataType_(cls, columns: int, type_: int) -> int:
        return cls.rowBytesForColumns_dataType_(columns, type_)

    # MPS: -rows
    def rows(self) -> int:
        return self._rows

    # MPS: -columns
    def columns(self) -> int:
        return self._columns

    # MPS: -matrices
    def matrices(self) -> int:
        return self._matrices

    # MPS: -rowBytes
    def rowBytes(self) -> int:
        return self._row_bytes

    # MPS: -matrixBytes
    def matrixBytes(self) -> int:
        return self._matrix_bytes

    # MPS: -dataType
    def dataType(self) -> int:
        return self._type


class MPSMatrix(Labelled, Allocated):
    """Matrices in a buffer."""

    __slots__ = ("_buffer", "_descriptor", "_offset")
    _buffer: MTLBuffer
    _descriptor: MPSMatrixDescriptor

    # MPS: -initWithBuffer:descriptor:
    def initWithBuffer_descriptor_(
        self, buffer: MTLBuffer, descriptor: MPSMatrixDescriptor
    ) -> Self:
        return self.initWithBuffer_offset_descriptor_(buffer, 0, descriptor)

    # MPS: -initWithBuffer:offset:descriptor:
    def initWithBuffer_offset_descriptor_(
        self, buffer: MTLBuffer, offset: int, descriptor: MPSMatrixDescriptor
    ) -> Self:
        d = descriptor
        rows = (d.rows() - 1) * d.rowBytes() + d.columns() * _type_bytes(d.dataType())
        end = offset + (d.matrices() - 1) * d.matrixBytes() + rows
        if offset < 0 or end > buffer.length():
            raise ValidationError(
                f"{d.matrices()} matrices of {d.rows()} x {d.columns()} at offset {offset} end at "
                f"byte {end} of a buffer of {buffer.length()}: pass a longer buffer"
            )
        self._buffer = buffer
        self._offset = offset
        self._descriptor = descriptor
        return self

    # MPS: -initWithDevice:descriptor:
    def initWithDevice_descriptor_(
        self, device: MTLDevice, descriptor: MPSMatrixDescriptor
    ) -> Self | None:
        length = descriptor.matrices() * max(
            descriptor.matrixBytes(), descriptor.rows() * descriptor.rowBytes()
        )
        buffer = device.newBufferWithLength_options_(length, 0)
        return self.initWithBuffer_descriptor_(buffer, descriptor) if buffer is not None else None

    # MPS: -data
    def data(self) -> MTLBuffer:
        return self._buffer

    # MPS: -offset
    def offset(self) -> int:
        return self._offset

    # MPS: -device
    def device(self) -> MTLDevice:
        return self._buffer.device()

    # MPS: -rows
    def rows(self) -> int:
        return self._descriptor.rows()

    # MPS: -columns
    def columns(self) -> int:
        return self._descriptor.columns()

    # MPS: -matrices
    def matrices(self) -> int:
        return self._descriptor.matrices()

    # MPS: -rowBytes
    def rowBytes(self) -> int:
        return self._descriptor.rowBytes()

    # MPS: -matrixBytes
    def matrixBytes(self) -> int:
        return self._descriptor.matrixBytes()

    # MPS: -dataType
    def dataType(self) -> int:
        return self._descriptor.dataType()

    # MPS: -synchronizeOnCommandBuffer:
    def synchronizeOnCommandBuffer_(self, command_buffer: MTLCommandBuffer) -> None:
        return None

    def _address(self, matrix: int, origin: Sequence[int]) -> int:
        row, column, _ = origin
        place = row * self.rowBytes() + column * _type_bytes(self.dataType())
        return self._buffer._address + self._offset + matrix * self.matrixBytes() + place


class MPSKernel(Labelled, Allocated):
    __slots__ = ("_device", "_options")
    _device: MTLDevice

    # MPS: -device
    def device(self) -> MTLDevice:
        return self._device

    # MPS: -options
    def options(self) -> int:
        return self._options

    # MPS: -setOptions:
    def setOptions_(self, options: int) -> None:
        self._options = options

    def __init__(self) -> None:
        super().__init__()
        self._options = 0


class MPSMatrixMultiplication(MPSKernel):
    """C = alpha * op(A) op(B) + beta * C, for each matrix of a batch."""

    __slots__ = (
        "_alpha",
        "_batch_size",
        "_batch_start",
        "_beta",
        "_depth",
        "_origins",
        "_shape",
        "_transpose",
    )

    def __init__(self) -> None:
        super().__init__()
        self._batch_start = 0
        self._batch_size: int | None = None
        self._origins = [MTLOrigin(0, 0, 0) for _ in range(3)]  # left, right, result

    # MPS: -initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:
    #      interiorColumns:alpha:beta:
    def initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta_(  # noqa: E501
        self,
        device: MTLDevice,
        transpose_left: bool,
        transpose_right: bool,
        rows: int,
        columns: int,
        interior: int,
        alpha: float,
        beta: float,
    ) -> Self:
        self._device = device
        self._transpose = (bool(transpose_left), bool(transpose_right))
        self._shape = (rows, columns)
        self._depth = interior
        self._alpha = float(alpha)
        self._beta = float(beta)
        return self

    # MPS: -initWithDevice:resultRows:resultColumns:interiorColumns:
    def initWithDevice_resultRows_resultColumns_interiorColumns_(
        self, device: MTLDevice, rows: int, columns: int, interior: int
    ) -> Self:
        init = self.initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta_  # noqa: E501
        return init(device, False, False, rows, columns, interior, 1.0, 0.0)

    # MPS: -leftMatrixOrigin
    def leftMatrixOrigin(self) -> MTLOrigin:
        return self._origins[0]

    # MPS: -setLeftMatrixOrigin:
    def setLeftMatrixOrigin_(self, origin: Sequence[int]) -> None:
        self._origins[0] = MTLOrigin(*origin)

    # MPS: -rightMatrixOrigin
    def rightMatrixOrigin(self) -> MTLOrigin:
        return self._origins[1]

    # MPS: -setRightMatrixOrigin:
    def setRightMatrixOrigin_(self, origin: Sequence[int]) -> None:
        self._origins[1] = MTLOrigin(*origin)

    # MPS: -resultMatrixOrigin
    def resultMatrixOrigin(self) -> MTLOrigin:
        return self._origins[2]

    # MPS: -setResultMatrixOrigin:
    def setResultMatrixOrigin_(self, origin: Sequence[int]) -> None:
        self._origins[2] = MTLOrigin(*origin)

    # MPS: -batchStart
    def batchStart(self) -> int:
        return self._batch_start

    # MPS: -setBatchStart:
    def setBatchStart_(self, start: int) -> None:
        self._batch_start = start

    # MPS: -batchSize
    def batchSize(self) -> int:
        return self._batch_size if self._batch_size is not None else _ALL

    # MPS: -setBatchSize:
    def setBatchSize_(self, size: int) -> None:
        self._batch_size = size if size != _ALL else None

    # MPS: -encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:
    # DEVIATION: matrices hold 32-bit or 16-bit floats; Apple's multiply integers as well.
    def encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(
        self, command_buffer: MTLCommandBuffer, left: MPSMatrix, right: MPSMatrix, result: MPSMatrix
    ) -> None:
        command_buffer._begin("MPSMatrixMultiplication")
        (rows, columns), depth = self._shape, self._depth
        transpose_left, transpose_right = self._transpose
        shapes = (
            (depth, rows) if transpose_left else (rows, depth),
            (columns, depth) if transpose_right else (depth, columns),
            (rows, columns),
        )
        matrices = (left, right, result)
        for name, matrix, shape, origin in zip(
            ("left", "right", "result"), matrices, shapes, self._origins, strict=True
        ):
            _check_matrix(name, matrix, shape, origin)
        batch = self._batch(matrices)
        if not (rows and columns and batch):
            return
        start = self._batch_start
        a, b, c = (m._address(start, o) for m, o in zip(matrices, self._origins, strict=True))
        lda, ldb, ldc = (m.rowBytes() // _type_bytes(m.dataType()) for m in matrices)
        type_a, type_b, type_c = (_GEMM_TYPES[m.dataType()] for m in matrices)
        stride_a, stride_b, stride_c = (m.matrixBytes() for m in matrices)
        for matrix in matrices:
            command_buffer._retain(matrix._buffer)
        command_buffer._commands.append(
            Gemm(
                a, b, c, rows, columns, depth, lda, ldb, ldc, transpose_left, transpose_right,
                self._alpha, self._beta, type_a, type_b, type_c,
                batch, stride_a, stride_b, stride_c,
            )
        )  # fmt: skip

    def _batch(self, matrices: Sequence[MPSMatrix]) -> int:
        """How many matrices to multiply: what is asked for, or as many as all three have."""
        present = min(matrix.matrices() for matrix in matrices) - self._batch_start
        wanted = present if self._batch_size is None else self._batch_size
        if self._batch_start < 0 or present < 0 or wanted > present:
            raise ValidationError(
                f"a batch of {wanted} matrices from {self._batch_start}: "
                f"there are {present + self._batch_start}"
            )
        return wanted


def _check_matrix(name: str, matrix: MPSMatrix, shape: Sequence[int], origin: MTLOrigin) -> None:
    type_ = matrix.dataType()
    if type_ not in _GEMM_TYPES:
        raise ValidationError(
            f"the {name} matrix has data type {type_:#x}: "
            "pass MPSDataTypeFloat32 or MPSDataTypeFloat16"
        )
    if matrix.rowBytes() % _type_bytes(type_):
        raise ValidationError(
            f"the {name} matrix has rows of {matrix.rowBytes()} bytes: "
            f"pass a multiple of its elements' {_type_bytes(type_)}"
        )
    rows, columns = shape
    if origin.x + rows > matrix.rows() or origin.y + columns > matrix.columns():
        raise ValidationError(
            f"the {name} matrix is {matrix.rows()} x {matrix.columns()}: the multiplication reads "
            f"{rows} x {columns} of it from ({origin.x}, {origin.y})"
        )
