"""Kernels of one's own: Metal source from Python, called with tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lbrx import dtype as dt
from lbrx.dtype import Dtype, DtypeLike, Scalar
from lbrx.errors import DeviceError, DtypeError, ShapeError
from lbrx.ops import Spec
from lbrx.shape import Sizes, as_shape
from lbrx.tensor.core import Tensor

if TYPE_CHECKING:
    from lbrx.metal import Context
    from lbrx.metal.reflection import KernelArgument

Size = tuple[int, int, int]
Template = Mapping[str, Dtype | Scalar]

GROUP = 256  # threads, unless told otherwise
_KERNEL = re.compile(r"\bkernel\s+void\s+(\w+)|\[\[\s*kernel\s*\]\]\s+void\s+(\w+)")


def kernel(
    source: str,
    name: str | None = None,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    contiguous: bool = True,
    safe_math: bool = False,
) -> Kernel:
    """A kernel from Metal source, as something to call with tensors.

    source: whole functions, `kernel void name(...)`. `metal_stdlib` is included before it, and its
        names used unless it includes that itself; it may include the headers of lbrx/shaders.
    name: of the function, the only one by default.
    inputs: the arguments that it reads in the order of a call, by default that of their indices.
    outputs: the arguments that it writes (`device` pointers without `const`) in the order of the
        results, likewise.
    contiguous: copy views whose elements are not in order; False passes their memory as it is, from
        element 0 on.
    safe_math: keep NaN and infinity, as lbrx's own kernels do.
    """
    return Kernel(source, name, inputs, outputs, contiguous, safe_math)


@dataclass(frozen=True)
class Signature:
    """What a kernel takes and gives, once its template is filled in."""

    source: str
    arguments: Mapping[str, KernelArgument]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Kernel:
    """What `lbrx.kernel` returns. It is compiled when first called."""

    def __init__(
        self,
        source: str,
        name: str | None,
        inputs: Sequence[str] | None,
        outputs: Sequence[str] | None,
        contiguous: bool,
        safe_math: bool,
    ) -> None:
        self.source = source
        self.name = _only_kernel(source) if name is None else name
        self._inputs = inputs
        self._outputs = outputs
        self._contiguous = contiguous
        self._safe_math = safe_math
        self._signatures: dict[object, Signature] = {}

    def __repr__(self) -> str:
        return f"<lbrx.kernel {self.name}>"

    def __call__(
        self,
        *values: Any,
        grid: Sizes | None = None,
        group: Sizes | None = None,
        shapes: Sizes | Sequence[Sizes] | None = None,
        dtypes: DtypeLike | Sequence[DtypeLike] | None = None,
        template: Template | None = None,
        **named: Any,
    ) -> Any:
        """Run it: a tensor, or a tuple of them where it has several outputs.

        Inputs go by place or by name. A pointer takes a tensor or an array; a constant a number, or
        a sequence of them; a struct its bytes; `threadgroup` memory its length in bytes. An output
        given by name, as a tensor or a number, is what that output starts with: the result is
        another tensor, and without it the elements that the kernel does not write are undefined.

        grid: threads along x, y and z; by default as many as the first output has elements.
        group: threads in a threadgroup.
        shapes: of the outputs, by default that of the first tensor or array.
        dtypes: of the outputs, by default those the source declares.
        template: types and numbers for names that the source uses without declaring them.
        """
        from lbrx.metal import context
        from lbrx.tensor import kernel_values

        gpu = context()
        signature = self._signature(gpu, template or {})
        given = self._bound(signature, values, named)
        specs = self._specs(signature, given, shapes, dtypes)
        threads = self._threads(grid, specs)
        bound, results = kernel_values.bind(gpu, self, signature, given, specs)
        pipeline = gpu.shaders.pipeline(
            self.name, self.name, source=signature.source, safe_math=self._safe_math
        )
        gpu.queue.dispatch(
            pipeline,
            bound.buffers,
            threads,
            self._group(group, threads, pipeline.max_threads),
            threadgroup_memory=bound.threadgroup,
            kernel=self.name,
        )
        return results[0] if len(results) == 1 else results

    @property
    def contiguous(self) -> bool:
        """Whether views are copied into order before the kernel sees them."""
        return self._contiguous

    def _signature(self, gpu: Context, template: Template) -> Signature:
        key = tuple((name, repr(value)) for name, value in sorted(template.items()))
        if key not in self._signatures:
            self._signatures[key] = self._compiled(gpu, template)
        return self._signatures[key]

    def _compiled(self, gpu: Context, template: Template) -> Signature:
        from lbrx.metal.library import shader_folder, shader_text
        from lbrx.metal.reflection import ArgumentKind

        text = _prelude(self.source, template)
        text += shader_text(shader_folder(), f"{self.name}.metal", self.source)
        # What is wrong with the source is an error of this call; reflection only looks.
        gpu.shaders.pipeline(self.name, self.name, source=text, safe_math=self._safe_math)
        found = [
            _typed(argument, self.source, template)
            for argument in gpu.shaders.arguments(
                self.name, self.name, source=text, safe_math=self._safe_math
            )
        ]
        if other := [argument.name for argument in found if argument.kind is ArgumentKind.OTHER]:
            raise DeviceError(
                f"{self}: {', '.join(other)} is neither a buffer nor threadgroup memory: "
                "use pointers and constants"
            )
        buffers = [argument for argument in found if argument.kind is ArgumentKind.BUFFER]
        read = [argument.name for argument in buffers if not argument.writable]
        written = [argument.name for argument in buffers if argument.writable]
        if not written:
            raise DeviceError(f"{self} writes nothing: give it a device pointer without const")
        return Signature(
            text,
            {argument.name: argument for argument in found},
            self._ordered("inputs", self._inputs, read),
            self._ordered("outputs", self._outputs, written),
        )

    def _ordered(
        self, what: str, wanted: Sequence[str] | None, found: list[str]
    ) -> tuple[str, ...]:
        if wanted is None:
            return tuple(found)
        if sorted(wanted) != sorted(found):
            raise DeviceError(
                f"{self} has the {what} {', '.join(found) or 'none'} by its source, not "
                f"{', '.join(wanted)}: name all of them, and no const pointer among the outputs"
            )
        return tuple(wanted)

    def _bound(
        self, signature: Signature, values: Sequence[Any], named: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The value of each argument by its name."""
        takes = f"{self} takes ({', '.join(signature.inputs)})"
        if len(values) > len(signature.inputs):
            raise TypeError(f"{takes}, not {len(values)} values")
        given = dict(zip(signature.inputs, values, strict=False))
        for name, value in named.items():
            if name in given:
                raise TypeError(f"{takes}, and {name} was given twice")
            if name not in signature.arguments:
                known = ", ".join(signature.arguments)
                raise TypeError(f"{self} has no argument {name}: it has {known}")
            given[name] = value
        needed = signature.arguments.keys() - set(signature.outputs)
        if missing := sorted(needed - given.keys()):
            raise TypeError(f"{takes}: give {', '.join(missing)} too")
        return given

    def _specs(
        self, signature: Signature, given: Mapping[str, Any], shapes: Any, dtypes: Any
    ) -> dict[str, Spec]:
        """Shape and type of each output."""
        count = len(signature.outputs)
        all_shapes = self._each(shapes, count, "shapes", _is_shape)
        all_dtypes = self._each(dtypes, count, "dtypes", _is_dtype)
        specs = {}
        for name, shape, dtype in zip(signature.outputs, all_shapes, all_dtypes, strict=True):
            start = given.get(name)
            sources = [start, *(given.get(n) for n in signature.inputs)]
            found = next((x.shape for x in sources if isinstance(x, Tensor | np.ndarray)), None)
            if shape is None and found is None:
                raise ShapeError(f"{self} has no tensor with a shape for {name}: give shapes=[...]")
            wanted = found if shape is None else as_shape(shape)
            assert wanted is not None
            specs[name] = Spec(wanted, self._output_dtype(signature.arguments[name], dtype))
        return specs

    def _each(self, given: Any, count: int, what: str, is_one: Any) -> Sequence[Any]:
        """One for each output; a single output's need not be in a list."""
        if given is None:
            return [None] * count
        every = [given] if is_one(given) else list(given)
        if len(every) != count:
            raise ShapeError(f"{self} has {count} outputs, not {len(every)}: give as many {what}")
        return every

    def _output_dtype(self, argument: KernelArgument, given: DtypeLike | None) -> Dtype:
        declared = argument.dtype
        wanted = declared if given is None else dt.parse(given)
        if wanted is None or wanted.msl is None:
            raise DtypeError(f"{self} writes {argument.type_name} to {argument.name}: give dtypes=")
        if declared is not None and wanted is not declared:
            raise DtypeError(
                f"{self} declares {argument.name} as {argument.type_name}, not {wanted}: "
                "change one, or use a template"
            )
        return wanted

    def _threads(self, grid: Sizes | None, specs: Mapping[str, Spec]) -> Size:
        first = next(iter(specs.values()))
        threads = self._size("grid", math.prod(first.shape) if grid is None else grid)
        if 0 in threads and any(math.prod(spec.shape) for spec in specs.values()):
            raise ShapeError(
                f"{self}: a grid of {threads} runs no thread, and {', '.join(specs)} would stay "
                "undefined: give each axis 1 or more"
            )
        return threads

    def _group(self, group: Sizes | None, threads: Size, most: int) -> Size:
        if group is None:
            left = min(GROUP, most)
            sizes = []
            for n in threads:
                sizes.append(max(min(n, left), 1))
                left //= sizes[-1]
            return sizes[0], sizes[1], sizes[2]
        size = self._size("group", group)
        if 0 in size:
            raise ShapeError(f"{self}: a group of {size} has no thread: give each axis 1 or more")
        return size

    def _size(self, what: str, given: Sizes) -> Size:
        sizes = (given,) if isinstance(given, int) else tuple(given)
        if not 1 <= len(sizes) <= 3 or any(n < 0 for n in sizes):
            raise ShapeError(f"{self}: {what}={given!r} is not one to three sizes")
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z


def _only_kernel(source: str) -> str:
    names: list[str] = [one or other for one, other in _KERNEL.findall(source)]
    if len(names) != 1:
        found = f"the kernels {', '.join(names)}" if names else "no `kernel void` function"
        raise DeviceError(f"the source has {found}: give the name of one")
    return names[0]


def _typed(argument: KernelArgument, source: str, template: Template) -> KernelArgument:
    """The argument with its type, where only the template knows that: softmetal's reflection does
    not look through aliases."""
    declared = re.search(rf"\b(\w+)\s*[*&]\s*{argument.name}\b", source)
    given = template.get(declared[1]) if declared and argument.dtype is None else None
    if given is None or isinstance(given, bool | int | float):
        return argument
    return replace(argument, dtype=dt.parse(given))


def _is_shape(value: Any) -> bool:
    return isinstance(value, int) or all(isinstance(n, int) for n in value)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, Dtype | str | type | np.dtype)


def _prelude(source: str, template: Template) -> str:
    """What comes before the source. Aliases and constants, unlike macros, leave the templates of
    headers alone."""
    lines = ["#include <metal_stdlib>"]
    if "metal_stdlib" not in source:
        lines.append("using namespace metal;")
    for name, value in template.items():
        if isinstance(value, bool):
            lines.append(f"constant constexpr bool {name} = {str(value).lower()};")
        elif isinstance(value, int):
            kind = "int" if -(2**31) <= value < 2**31 else "long"
            lines.append(f"constant constexpr {kind} {name} = {value};")
        elif isinstance(value, float):
            lines.append(f"constant constexpr float {name} = {value!r}f;")
        else:
            dtype = dt.parse(value)
            if dtype.msl is None:
                raise DtypeError(f"{name}={dtype}: Metal has no such type, give another")
            lines.append(f"using {name} = {dtype.msl};")
    return "\n".join([*lines, ""])
