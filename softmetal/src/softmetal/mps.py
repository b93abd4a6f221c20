"""Matrix multiplication of MetalPerformanceShaders, under PyObjC's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, NewType, Self

from softmetal.api import host
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


class _Layout(NamedTuple):
    """Where the elements of matrices are."""

    rows: int
    columns: int
    matrices: int
    row_bytes: int
    matrix_bytes: int
    type_: int
    item: int  # bytes of an element
    length: int  # bytes from the first element to the end of the last one


class MPSMatrixDescriptor(Object):
    """`matrices` of `rows` by `columns`, row-major, with strides in bytes."""

    __slots__ = ("_layout",)

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
        item = _type_bytes(type_)
        length = (matrices - 1) * matrix_bytes + (rows - 1) * row_bytes + columns * item
        self._layout = _Layout(
            rows, columns, matrices, row_bytes, matrix_bytes, type_, item, length
        )

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
        return self._layout.rows

    # MPS: -columns
    def columns(self) -> int:
        return self._layout.columns

    # MPS: -matrices
    def matrices(self) -> int:
        return self._layout.matrices

    # MPS: -rowBytes
    def rowBytes(self) -> int:
        return self._layout.row_bytes

    # MPS: -matrixBytes
    def matrixBytes(self) -> int:
        return self._layout.matrix_bytes

    # MPS: -dataType
    def dataType(self) -> int:
        return self._layout.type_


class MPSMatrix(Labelled, Allocated):
    """Matrices in a buffer."""

    __slots__ = ("_buffer", "_layout", "_offset")
    _buffer: MTLBuffer
    _layout: _Layout

    # MPS: -initWithBuffer:descriptor:
    def initWithBuffer_descriptor_(
        self, buffer: MTLBuffer, descriptor: MPSMatrixDescriptor
    ) -> Self:
        return self.initWithBuffer_offset_descriptor_(buffer, 0, descriptor)

    # MPS: -initWithBuffer:offset:descriptor:
    def initWithBuffer_offset_descriptor_(
        self, buffer: MTLBuffer, offset: int, descriptor: MPSMatrixDescriptor
    ) -> Self:
        layout = descriptor._layout
        end = offset + layout.length
        if offset < 0 or end > buffer._length:
            raise ValidationError(
                f"{layout.matrices} matrices of {layout.rows} x {layout.columns} at offset "
                f"{offset} end at byte {end} of a buffer of {buffer._length}: pass a longer buffer"
            )
        self._buffer = buffer
        self._offset = offset
        self._layout = layout
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
        return self._layout.rows

    # MPS: -columns
    def columns(self) -> int:
        return self._layout.columns

    # MPS: -matrices
    def matrices(self) -> int:
        return self._layout.matrices

    # MPS: -rowBytes
    def rowBytes(self) -> int:
        return self._layout.row_bytes

    # MPS: -matrixBytes
    def matrixBytes(self) -> int:
        return self._layout.matrix_bytes

    # MPS: -dataType
    def dataType(self) -> int:
        return self._layout.type_

    # MPS: -synchronizeOnCommandBuffer:
    def synchronizeOnCommandBuffer_(self, command_buffer: MTLCommandBuffer) -> None:
        return None


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
        host.check_product(device._profile, interior)
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
        places: list[int] = []
        for name, matrix, shape, origin in zip(
            ("left", "right", "result"), matrices, shapes, self._origins, strict=True
        ):
            layout = matrix._layout
            start = matrix._buffer._address + matrix._offset
            start += self._batch_start * layout.matrix_bytes
            places.append(start + _place(name, layout, shape, origin))
        batch = self._batch(matrices)
        if not (rows and columns and batch):
            return
        for matrix in matrices:
            command_buffer._retain(matrix._buffer)
        a, b, c = places
        of_a, of_b, of_c = left._layout, right._layout, result._layout
        command_buffer._commands.append(
            Gemm(
                a, b, c, rows, columns, depth,
                of_a.row_bytes // of_a.item, of_b.row_bytes // of_b.item,
                of_c.row_bytes // of_c.item,
                transpose_left, transpose_right, self._alpha, self._beta,
                _GEMM_TYPES[of_a.type_], _GEMM_TYPES[of_b.type_], _GEMM_TYPES[of_c.type_],
                batch, of_a.matrix_bytes, of_b.matrix_bytes, of_c.matrix_bytes,
            )
        )  # fmt: skip

    def _batch(self, matrices: Sequence[MPSMatrix]) -> int:
        """How many matrices to multiply: what is asked for, or as many as all three have."""
        left, right, result = matrices
        present = min(left._layout.matrices, right._layout.matrices, result._layout.matrices)
        present -= self._batch_start
        wanted = present if self._batch_size is None else self._batch_size
        if self._batch_start < 0 or present < 0 or wanted > present:
            raise ValidationError(
                f"a batch of {wanted} matrices from {self._batch_start}: "
                f"there are {present + self._batch_start}"
            )
        return wanted


def _place(name: str, matrix: _Layout, shape: Sequence[int], origin: MTLOrigin) -> int:
    """The first byte of the part of a matrix that a product reads or writes. Raises ValidationError
    if it cannot."""
    (rows, columns), (row, column, _) = shape, origin
    if matrix.type_ not in _GEMM_TYPES:
        raise ValidationError(
            f"the {name} matrix has data type {matrix.type_:#x}: "
            "pass MPSDataTypeFloat32 or MPSDataTypeFloat16"
        )
    if matrix.row_bytes % matrix.item:
        raise ValidationError(
            f"the {name} matrix has rows of {matrix.row_bytes} bytes: "
            f"pass a multiple of its elements' {matrix.item}"
        )
    if row + rows > matrix.rows or column + columns > matrix.columns:
        raise ValidationError(
            f"the {name} matrix is {matrix.rows} x {matrix.columns}: the multiplication reads "
            f"{rows} x {columns} of it from ({row}, {column})"
        )
    return row * matrix.row_bytes + column * matrix.item
