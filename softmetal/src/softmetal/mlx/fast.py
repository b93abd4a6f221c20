"""`mx.fast.metal_kernel`: kernels as MLX takes them, from the text of their bodies.

MLX's documentation says what a kernel sees: https://ml-explore.github.io/mlx, Custom Metal Kernels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any, NamedTuple

from softmetal.api.buffer import MTLBuffer
from softmetal.api.device import MTLCreateSystemDefaultDevice
from softmetal.api.foundation import NSError
from softmetal.api.pipeline import MTLComputePipelineState
from softmetal.errors import SoftmetalError
from softmetal.foreign_arrays import element_types
from softmetal.foreign_arrays.arrays import Array, Strided, contiguous, reading

_CONSTANT_ELEMENTS = 8  # arrays of fewer elements are in constant memory
_HEAD = """#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// Where an element of a strided array is, by its number in the order of indices.
template <typename I = int64_t>
inline I elem_to_loc(I elem, constant const int* shape, constant const int64_t* strides, int ndim) {
  I place = 0;
  for (int axis = ndim - 1; axis >= 0 && elem > 0; axis--) {
    place += (elem % shape[axis]) * I(strides[axis]);
    elem /= shape[axis];
  }
  return place;
}
"""
_VECTORS = (
    "dispatch_threads_per_threadgroup grid_origin grid_size thread_position_in_grid "
    "thread_position_in_threadgroup threadgroup_position_in_grid threadgroups_per_grid "
    "threads_per_grid threads_per_threadgroup"
).split()
_NUMBERS = (
    "dispatch_quadgroups_per_threadgroup dispatch_simdgroups_per_threadgroup "
    "quadgroup_index_in_threadgroup quadgroups_per_threadgroup simdgroup_index_in_threadgroup "
    "simdgroups_per_threadgroup thread_execution_width thread_index_in_quadgroup "
    "thread_index_in_simdgroup thread_index_in_threadgroup threads_per_simdgroup"
).split()
_BUILTINS = dict.fromkeys(_VECTORS, "uint3") | dict.fromkeys(_NUMBERS, "uint")

Template = Sequence[tuple[str, Any]]
Side = tuple[int, int, int]


class _Input(NamedTuple):
    """How a kernel declares an input; kernels for arrays that differ in it are compiled anew."""

    kind: str
    is_number: bool  # an array without axes
    is_constant: bool

    def declared(self, name: str) -> str:
        space = "constant" if self.is_constant else "device"
        return f"const {space} {self.kind}{'&' if self.is_number else '*'} {name}"


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
) -> MetalKernel:
    """A kernel from the text of its body; the parameters that it names are declared for it."""
    if not output_names:
        raise ValueError("output_names is empty: a kernel writes at least one output")
    for each in (name, *input_names, *output_names):
        if not re.fullmatch(r"[A-Za-z_]\w*", each):
            raise ValueError(f"{each!r} is not a name: give letters, digits and underscores")
    return MetalKernel(
        name, tuple(input_names), tuple(output_names), source, header, ensure_row_contiguous,
        atomic_outputs,
    )  # fmt: skip


class MetalKernel:
    """What `metal_kernel` gives. Compiled for the types that it is called with."""

    def __init__(
        self,
        name: str,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
        source: str,
        header: str,
        ensure_row_contiguous: bool,
        atomic_outputs: bool,
    ) -> None:
        self._name = f"custom_kernel_{name}"
        self._input_names, self._output_names = input_names, output_names
        self._source, self._header = source, header
        self._copies = ensure_row_contiguous
        self._atomic = "atomic<{}>" if atomic_outputs else "{}"
        words = set(re.findall(r"\w+", source))
        self._layouts = {
            each: [part for part in ("shape", "strides", "ndim") if f"{each}_{part}" in words]
            for each in input_names
        }
        self._builtins = [word for word in _BUILTINS if word in words]
        self._pipelines: dict[str, MTLComputePipelineState] = {}
        self._device = MTLCreateSystemDefaultDevice()
        self._queue = self._device.newCommandQueue()

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Side,
        threadgroup: Side,
        template: Template | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: object = None,
    ) -> list[Array]:
        """Run the kernel on `grid` threads; returns its outputs. `stream` means nothing here.

        Raises ValueError for arguments that do not fit, SoftmetalError for what does not compile
        or fails.
        """
        self._require(inputs, output_shapes, output_dtypes, grid, threadgroup)
        kinds = [element_types.named(dtype) for dtype in output_dtypes]
        outputs = [
            Array(self._filled(prod(shape), kind, init_value), shape, kind)
            for shape, kind in zip(output_shapes, kinds, strict=True)
        ]
        with ExitStack() as open_arrays:
            arrays = [open_arrays.enter_context(reading(value)) for value in inputs]
            text = self._text(arrays, outputs, template or ())
            if verbose:
                print(text)
            buffers = [
                each
                for name, array in zip(self._input_names, arrays, strict=True)
                for each in self._buffers(name, array)
            ]
        buffers += [(output._buffer, 0) for output in outputs]
        self._run(self._pipeline(text), buffers, grid, threadgroup)
        return outputs

    def _require(
        self,
        inputs: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[Any],
        grid: Side,
        threadgroup: Side,
    ) -> None:
        for what, values, names in (
            ("inputs", inputs, self._input_names),
            ("output_shapes", shapes, self._output_names),
            ("output_dtypes", dtypes, self._output_names),
        ):
            if len(values) != len(names):
                raise ValueError(
                    f"{what} has {len(values)} values for the names {', '.join(names)}: give "
                    f"{len(names)}"
                )
        for what, sides in (("grid", grid), ("threadgroup", threadgroup)):
            if len(sides) != 3 or min(sides) < 1:
                raise ValueError(f"{what}={sides!r}: give three sizes of at least 1")

    # ---- memory ------------------------------------------------------------------------------

    def _filled(
        self, count: int, kind: element_types.ElementType, value: float | None
    ) -> MTLBuffer:
        data = b"" if value is None else kind.pack(value) * count
        return self._buffer(data, max(count * kind.size, 1))

    def _buffer(self, data: bytes, length: int) -> MTLBuffer:
        buffer: MTLBuffer | None = self._device.newBufferWithLength_options_(length, 0)
        if buffer is None:
            raise SoftmetalError(f"no memory for a buffer of {length:,} bytes")
        buffer.contents().as_buffer(length)[: len(data)] = data
        return buffer

    def _buffers(self, name: str, array: Strided) -> list[tuple[MTLBuffer, int]]:
        """An input, and of its shape, strides and number of axes what the body names. With each
        buffer the offset of its first element."""
        if self._copies or array.is_contiguous:
            data, first, strides = array.row_contiguous(), 0, contiguous(array.shape)
        else:
            (data, first), strides = array.as_it_is(), array.strides
        parts = {
            "shape": b"".join(map(element_types.BY_NAME["int32"].pack, array.shape)),
            "strides": b"".join(map(element_types.BY_NAME["int64"].pack, strides)),
            "ndim": element_types.BY_NAME["int32"].pack(len(array.shape)),
        }
        layouts = [parts[part] for part in self._layouts[name]] if array.shape else []
        return [
            (self._buffer(data, max(len(data), 1)), first),
            *((self._buffer(each, len(each)), 0) for each in layouts),
        ]

    # ---- the kernel --------------------------------------------------------------------------

    def _text(self, arrays: Sequence[Strided], outputs: Sequence[Array], template: Template) -> str:
        declared: list[str] = []
        for name, array in zip(self._input_names, arrays, strict=True):
            is_constant = prod(array.shape) < _CONSTANT_ELEMENTS
            declared.append(_Input(array.kind.metal, not array.shape, is_constant).declared(name))
            if array.shape:
                declared += [_LAYOUTS[part].format(name) for part in self._layouts[name]]
        for name, output in zip(self._output_names, outputs, strict=True):
            kind = self._atomic.format(output._kind.metal)
            declared.append(f"device {kind}* {name}")
        parameters = [f"{each} [[buffer({index})]]" for index, each in enumerate(declared)]
        parameters += [f"{_BUILTINS[word]} {word} [[{word}]]" for word in self._builtins]
        joined = ",\n    ".join(parameters)
        head, end = self._template(template)
        body = f'[[kernel]] void {self._name}(\n    {joined}) {{\n#line 1 "{self._name}"\n'
        return f"{_HEAD}{self._header}\n{head}{body}{self._source}\n}}\n{end}"

    def _template(self, template: Template) -> tuple[str, str]:
        """What stands before the kernel, and behind it, if it has parameters of a template."""
        if not template:
            return "", ""
        parameters, values = [], []
        for name, value in template:
            is_value = isinstance(value, int)  # a bool is one
            kind = ("bool" if isinstance(value, bool) else "int") if is_value else "typename"
            parameters.append(f"{kind} {name}")
            spelled = str(value).lower() if is_value else element_types.named(value).metal
            values.append(spelled)
        instance = f"{self._name}<{', '.join(values)}>"
        end = (
            f'template [[host_name("{self._name}")]] [[kernel]] decltype({instance}) {instance};\n'
        )
        return f"template <{', '.join(parameters)}>\n", end

    def _pipeline(self, text: str) -> MTLComputePipelineState:
        if text not in self._pipelines:
            library, error = self._device.newLibraryWithSource_options_error_(text, None, None)
            function = library.newFunctionWithName_(self._name) if library else None
            if function is None:
                raise SoftmetalError(_described(error))
            made, error = self._device.newComputePipelineStateWithFunction_error_(function, None)
            if made is None:
                raise SoftmetalError(_described(error))
            self._pipelines[text] = made
        return self._pipelines[text]

    def _run(
        self,
        pipeline: MTLComputePipelineState,
        buffers: Sequence[tuple[MTLBuffer, int]],
        grid: Side,
        threadgroup: Side,
    ) -> None:
        sides = tuple(map(min, grid, threadgroup))
        most = pipeline.maxTotalThreadsPerThreadgroup()
        if prod(sides) > most:
            raise ValueError(
                f"threadgroup={threadgroup!r} has more than {most} threads: give fewer"
            )
        commands = self._queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        for index, (buffer, offset) in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(buffer, offset, index)
        encoder.dispatchThreads_threadsPerThreadgroup_(tuple(grid), sides)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        if (error := commands.error()) is not None:
            raise SoftmetalError(_described(error))


def _described(error: NSError | None) -> str:
    return str(error.localizedDescription()) if error else "the library has no such kernel"


_LAYOUTS: Mapping[str, str] = {
    "shape": "const constant int* {}_shape",
    "strides": "const constant int64_t* {}_strides",
    "ndim": "const constant int& {}_ndim",
}
