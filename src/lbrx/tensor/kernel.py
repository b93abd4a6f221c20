"""Kernels of one's own: Metal source from Python, called with tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lbrx.dtype import DtypeLike

if TYPE_CHECKING:
    from lbrx.metal import Buffer, Pipeline
    from lbrx.metal.reflection import Argument

Grid = Sequence[int] | int
Template = Mapping[str, DtypeLike | bool | int | float]

GROUP = 256  # threads, unless told otherwise
MAX_CONSTANT = 4096  # bytes that Metal takes without a buffer
_PRELUDE = "#include <metal_stdlib>\nusing namespace metal;\n"
_KERNEL = re.compile(r"\bkernel\s+void\s+(\w+)|\[\[\s*kernel\s*\]\]\s*void\s+(\w+)")


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

    The source is whole `kernel` functions; `metal_stdlib` is included before it unless it does so
    itself, and the headers of `lbrx/shaders` can be. `name` is the function, the only one by
    default. `outputs` are the arguments that it writes, by default those that are `device` pointers
    without `const`; `inputs` are the others in the order of positional arguments, by default that
    of their indices. `contiguous=False` passes the memory of views as it is, from element 0 on;
    `safe_math` keeps NaN and infinity, as lbrx's own kernels do.
    """
    return Kernel(source, name, inputs, outputs, contiguous, safe_math)


@dataclass(frozen=True)
class _Compiled:
    """The kernel for one set of template values."""

    pipeline: Pipeline
    arguments: Mapping[str, Argument]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Kernel:
    """What `lbrx.kernel` returns; it is compiled when first called."""

    def __init__(
        self,
        source: str,
        name: str | None = None,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        contiguous: bool = True,
        safe_math: bool = False,
    ) -> None:
        self.source = source
        self.name = _only_kernel(source) if name is None else name
        self._inputs = None if inputs is None else tuple(inputs)
        self._outputs = None if outputs is None else tuple(outputs)
        self._contiguous = contiguous
        self._safe_math = safe_math

    def __repr__(self) -> str:
        return f"<lbrx.kernel {self.name}>"

    def __call__(
        self,
        *values: Any,
        grid: Grid | None = None,
        group: Grid | None = None,
        shapes: Sequence[Any] | None = None,
        dtypes: DtypeLike | Sequence[DtypeLike] | None = None,
        template: Template | None = None,
        **named: Any,
    ) -> Any:
        """Run it: a tensor, or a tuple of them for several outputs.

        Inputs go by place or by name: tensors and arrays for pointers, numbers (or as many as a
        vector has) for constants, the length in bytes for `threadgroup` memory. An output given by
        name starts with those values instead of none; what was given does not change.

        grid: threads, by default as many as the first output has elements. group: threads that
        share threadgroup memory. shapes, dtypes: of the outputs, by default the first input's
        shape and the declared types. template: names that the source uses for types or numbers.
        """
        from lbrx.metal import context

        gpu = context()
        made = self._compiled(gpu, template or {})
        given = self._bound(made, values, named)
        specs = self._specs(made, given, shapes, dtypes)
        arguments: dict[int, Buffer | bytes | None] = {}
        scratch: dict[int, int] = {}
        for name, value in given.items():
            argument = made.arguments[name]
            if argument.kind.value == "threadgroup":
                scratch[argument.index] = self._length(name, value)
            elif name not in made.outputs:
                arguments[argument.index] = self._input(gpu, argument, value)
        results = [self._output(gpu, name, spec, given) for name, spec in specs.items()]
        for name, result in zip(made.outputs, results, strict=True):
            arguments[made.arguments[name].index] = _buffer(result)
        threads = self._threads(grid, specs)
        gpu.queue.dispatch(
            made.pipeline,
            [arguments.get(i) for i in range(max(arguments, default=-1) + 1)],
            threads,
            _group(made.pipeline, group, threads),
            threadgroup_memory=[scratch.get(i, 0) for i in range(max(scratch, default=-1) + 1)],
            kernel=self.name,
        )
        return results[0] if len(results) == 1 else tuple(results)
