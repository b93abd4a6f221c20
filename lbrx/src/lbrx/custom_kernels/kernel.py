"""Custom kernels: Metal source text, called with tensors from Python."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, DtypeLike, Scalar
from lbrx.arrays.shape import Sizes, as_shape
from lbrx.errors import DeviceError, DtypeError, ShapeError
from lbrx.ops import Spec
from lbrx.tensors import wrapping
from lbrx.tensors.core import Tensor
from lbrx.tensors.traced_number import traced_function
from lbrx.tensors.wrapping import CustomRule

if TYPE_CHECKING:
    from lbrx.arrays.storage import Array
    from lbrx.command_lists.builder import Builder
    from lbrx.metal import Context
    from lbrx.metal.reflection import KernelArgument

Size = tuple[int, int, int]
Template = Mapping[str, Dtype | Scalar]

DEFAULT_GROUP = 256  # threads in a threadgroup
_KERNEL = re.compile(r"\bkernel\s+void\s+(\w+)|\[\[\s*kernel\s*\]\]\s+void\s+(\w+)")


def kernel(
    source: str,
    name: str | None = None,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    contiguous: bool = True,
    safe_math: bool = False,
    vjp: CustomRule | None = None,
) -> Kernel:
    """A function of tensors that runs a kernel written in the Metal Shading Language.

    source: complete functions, `kernel void name(...)`. `metal_stdlib` is included before it, with
        `using namespace metal` unless the source includes it itself. The source may include the
        headers in lbrx/shaders.
    name: the kernel function; may be left out if the source has only one.
    inputs: names of the arguments that the kernel reads, in the order of a call. The default is
        the order of their buffer indices.
    outputs: names of the arguments that it writes (`device` pointers without `const`), in the
        order of the results; the default likewise.
    contiguous: True copies views that are not contiguous; False passes their memory unchanged,
        from their first element on.
    safe_math: True handles NaN and infinity as IEEE 754 says, as lbrx's own kernels do.
    vjp: for gradients, a function of the inputs (a tuple), the gradients of the outputs and the
        outputs, each one tensor or a tuple. It returns a gradient for each input, or None.

    The kernel is compiled at the first call. A source without a kernel, or with several and no
    name, raises DeviceError.

    >>> double = lbrx.kernel('''
    ... kernel void double_it(device const float* x, device float* out,
    ...                       uint i [[thread_position_in_grid]]) { out[i] = 2 * x[i]; }''')
    >>> double(lbrx.tensor([1.0, 2.5], device="metal")).tolist()
    [2.0, 5.0]
    """
    return Kernel(source, name, inputs, outputs, contiguous, safe_math, vjp)


@dataclass(frozen=True)
class Signature:
    """Source and arguments of a kernel for one set of template values."""

    source: str
    arguments: Mapping[str, KernelArgument]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Launch:
    """One call of a kernel, without the values that it is given."""

    kernel: Kernel
    signature: Signature
    specs: Mapping[str, Spec]
    """Shape and dtype of each output, by name."""
    threads: Size
    group: Sizes | None

    def run(self, b: Builder, given: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Add the kernel with these values to a plan, and return its results."""
        from lbrx.custom_kernels import kernel_arguments

        kernel, source = self.kernel, self.signature.source
        pipeline = b.pipeline(kernel.name, kernel.name, source=source, safe_math=kernel.safe_math)
        compiled = b.compiled(pipeline)
        bound, results = kernel_arguments.bind(
            b, kernel, self.signature, given, self.specs, compiled.checked
        )
        b.named(kernel.name, "").launch(
            pipeline,
            bound.buffers,
            self.threads,
            kernel.group_size(self.group, self.threads, compiled.max_threads),
            threadgroup_memory=bound.threadgroup,
        )
        return results

    def computed(self, gpu: Context, given: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Run the kernel with these values and return its results."""
        from lbrx.scheduler.running import ready

        def describe(b: Builder) -> tuple[Array, ...]:
            return tuple(result.array for result in self.run(b, given))

        return tuple(map(Tensor, ready(gpu, describe).run()))


@dataclass(frozen=True)
class _Call:
    """A kernel with everything but its inputs, as a function of these."""

    kernel: Kernel
    options: Mapping[str, Any]

    def __call__(self, *values: Any) -> Any:
        return self.kernel(*values, **self.options)

    def __repr__(self) -> str:
        return repr(self.kernel)


class Kernel:
    """A custom kernel, as `lbrx.kernel` returns it. It is compiled at the first call."""

    def __init__(
        self,
        source: str,
        name: str | None,
        inputs: Sequence[str] | None,
        outputs: Sequence[str] | None,
        contiguous: bool,
        safe_math: bool,
        vjp: CustomRule | None = None,
    ) -> None:
        self.source = source
        self.name = _only_kernel(source) if name is None else name
        self._inputs = inputs
        self._outputs = outputs
        self._contiguous = contiguous
        self.safe_math = safe_math
        self._vjp = vjp
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
        """Run the kernel on metal. Returns a tensor, or a tuple if it has several outputs.

        Inputs are given by position or by name. A pointer takes a tensor or an array, a constant a
        number or a sequence of numbers, a struct its bytes, and `threadgroup` memory its length in
        bytes. An output given by name (a tensor or a number) is the initial content of that output;
        the given tensor does not change. Otherwise elements that the kernel does not write are
        undefined.

        grid: number of threads along x, y and z; by default the size of the first output, along x.
        group: number of threads in a threadgroup, likewise.
        shapes: shapes of the outputs; by default the shape of the first tensor or array.
        dtypes: dtypes of the outputs; by default as declared in the source.
        template: dtypes and numbers for names that the source uses but does not declare.

        In a function that `lbrx.compile` traces, the call is recorded, and every replay repeats it.

        Arguments that do not fit raise TypeError, ShapeError or DtypeError. Tensors on the cpu
        (except scalars) and source that does not compile raise DeviceError.
        """
        from lbrx.metal import context

        inside = wrapping.is_inside()
        wrapper = wrapping.innermost((*values, *named.values())) if inside else None
        if wrapper is not None:
            options: Any = {"grid": grid, "group": group, "shapes": shapes}
            options |= {"dtypes": dtypes, "template": template, **named}
            return wrapper.run_custom(_Call(self, options), self._vjp, values)
        gpu = context()
        signature = self._signature(gpu, template or {})
        bound = self._bound(signature, values, named)
        specs = self._specs(signature, bound, shapes, dtypes)
        launch = Launch(self, signature, specs, self._threads(grid, specs), group)
        if traced_function() is None:
            results = launch.computed(gpu, bound)
        else:
            from lbrx.custom_kernels import kernel_node

            results = kernel_node.recorded(launch, gpu, bound)
        return results[0] if len(results) == 1 else results

    def arguments(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of what the kernel reads and of what it writes. Compiles it without a template.

        Source that does not compile raises DeviceError.
        """
        from lbrx.metal import context

        signature = self._signature(context(), {})
        return signature.inputs, signature.outputs

    @property
    def contiguous(self) -> bool:
        """Whether views are copied to contiguous memory before the kernel reads them."""
        return self._contiguous

    def _signature(self, gpu: Context, template: Template) -> Signature:
        key = tuple((name, repr(value)) for name, value in sorted(template.items()))
        if key not in self._signatures:
            self._signatures[key] = self._compiled(gpu, template)
        return self._signatures[key]

    def _compiled(self, gpu: Context, template: Template) -> Signature:
        from lbrx.metal.library import shader_files
        from lbrx.metal.reflection import ArgumentKind
        from lbrx.metal.shader_files import shader_text

        text = _prelude(self.source, template)
        text += shader_text(shader_files(), f"{self.name}.metal", self.source)
        # Compile first: errors in the source are reported here, reflection does not report them.
        gpu.shaders.pipeline(self.name, self.name, source=text, safe_math=self.safe_math)
        arguments_found = [
            _typed(argument, self.source, template)
            for argument in gpu.shaders.arguments(
                self.name, self.name, source=text, safe_math=self.safe_math
            )
        ]
        if other := [
            argument.name for argument in arguments_found if argument.kind is ArgumentKind.OTHER
        ]:
            raise DeviceError(
                f"{self}: {', '.join(other)} is not a buffer or threadgroup memory: "
                "use pointers and constants"
            )
        buffers = [argument for argument in arguments_found if argument.kind is ArgumentKind.BUFFER]
        read = [argument.name for argument in buffers if not argument.writable]
        written = [argument.name for argument in buffers if argument.writable]
        if not written:
            raise DeviceError(f"{self} has no output: declare a device pointer without const")
        return Signature(
            text,
            {argument.name: argument for argument in arguments_found},
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
                f"the source of {self} declares the {what} {', '.join(found) or 'none'}, not "
                f"{', '.join(wanted)}: name all of them; const pointers are inputs"
            )
        return tuple(wanted)

    def _bound(
        self, signature: Signature, values: Sequence[Any], named: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The given values by argument name; TypeError if one is missing, unknown or repeated."""
        takes = f"{self} takes ({', '.join(signature.inputs)})"
        if len(values) > len(signature.inputs):
            raise TypeError(f"{takes}, not {len(values)} values: leave out the others")
        bound = dict(zip(signature.inputs, values, strict=False))
        for name, value in named.items():
            if name in bound:
                raise TypeError(f"{takes}, and {name} was given twice: give it once")
            if name not in signature.arguments:
                known = ", ".join(signature.arguments)
                raise TypeError(f"{self} has no argument {name}: it has {known}")
            bound[name] = value
        needed = signature.arguments.keys() - set(signature.outputs)
        if missing := sorted(needed - bound.keys()):
            raise TypeError(f"{takes}: give {', '.join(missing)} too")
        return bound

    def _specs(
        self, signature: Signature, given: Mapping[str, Any], shapes: Any, dtypes: Any
    ) -> dict[str, Spec]:
        """Shape and dtype of each output."""
        count = len(signature.outputs)
        all_shapes = self._each(shapes, count, "shapes", _is_shape)
        all_dtypes = self._each(dtypes, count, "dtypes", _is_dtype)
        specs = {}
        for name, shape, dtype in zip(signature.outputs, all_shapes, all_dtypes, strict=True):
            start = given.get(name)
            sources = [start, *(given.get(n) for n in signature.inputs)]
            first_shape = next(
                (x.shape for x in sources if isinstance(x, Tensor | np.ndarray)), None
            )
            if shape is None and first_shape is None:
                raise ShapeError(
                    f"{self} has no input that gives {name} a shape: give shapes=[...]"
                )
            wanted = first_shape if shape is None else as_shape(shape)
            assert wanted is not None
            specs[name] = Spec(wanted, self._output_dtype(signature.arguments[name], dtype))
        return specs

    def _each(self, given: Any, count: int, what: str, is_one: Any) -> Sequence[Any]:
        """The given values as one for each output; a single one need not be in a list."""
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
                f"{self}: a grid of {threads} has no threads, and {', '.join(specs)} would be "
                "undefined: give each axis 1 or more"
            )
        return threads

    def group_size(self, group: Sizes | None, threads: Size, most: int) -> Size:
        """The threadgroup of a launch: the given one, or one of a usual size."""
        if group is None:
            left = min(DEFAULT_GROUP, most)
            sizes = []
            for n in threads:
                sizes.append(max(min(n, left), 1))
                left //= sizes[-1]
            return sizes[0], sizes[1], sizes[2]
        size = self._size("group", group)
        if 0 in size:
            raise ShapeError(f"{self}: a group of {size} has no threads: give each axis 1 or more")
        return size

    def _size(self, what: str, given: Sizes) -> Size:
        try:
            sizes = as_shape(given)
        except (ShapeError, TypeError):
            sizes = ()
        if not 1 <= len(sizes) <= 3:
            raise ShapeError(f"{self}: {what}={given!r}: give one to three sizes of 0 or more")
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z


def _only_kernel(source: str) -> str:
    if not isinstance(source, str):
        raise TypeError(f"the source is {type(source).__name__}: give it as a string")
    names: list[str] = [one or other for one, other in _KERNEL.findall(source)]
    if len(names) != 1:
        candidates = f"the kernels {', '.join(names)}" if names else "no `kernel void` function"
        raise DeviceError(f"the source has {candidates}: give the name of one")
    return names[0]


def _typed(argument: KernelArgument, source: str, template: Template) -> KernelArgument:
    """The argument with the dtype that the template gives its type name: softmetal's reflection
    does not resolve aliases."""
    declared = re.search(rf"\b(\w+)\s*[*&]\s*{argument.name}\b", source)
    alias = template.get(declared[1]) if declared and argument.dtype is None else None
    if alias is None or isinstance(alias, bool | int | float):
        return argument
    return replace(argument, dtype=dt.parse(alias))


def _is_shape(value: Any) -> bool:
    return isinstance(value, int) or all(isinstance(n, int) for n in value)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, Dtype | str | type | np.dtype)


def _prelude(source: str, template: Template) -> str:
    """The includes and template values before the source. Aliases and constants, unlike macros, do
    not affect template parameters of the same name in headers."""
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
                raise DtypeError(f"{name}={dtype} is not a type of Metal: give another dtype")
            lines.append(f"using {name} = {dtype.msl};")
    return "\n".join([*lines, ""])
