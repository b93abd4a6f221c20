"""MTLLibrary, MTLFunction, function constants and compile options."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from softmetal import compiler, env
from softmetal.api import enums
from softmetal.api.arguments import MTLArgumentEncoder, structure_layout
from softmetal.api.datatypes import data_size, data_type
from softmetal.api.foundation import NSData, NSError
from softmetal.api.memory import copied_bytes
from softmetal.api.objects import (
    Allocated,
    Descriptor,
    Explaining,
    Labelled,
    Object,
    anything,
    flag,
    number,
    table,
)
from softmetal.api.structs import MTLSize
from softmetal.errors import ValidationError
from softmetal.types import CompileOptions, FunctionConstant, Program

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice


class MTLCompileOptions(Descriptor):
    __slots__ = ()
    properties = table(
        preprocessorMacros=anything({}),
        mathMode=number(enums.MTLMathModeFast),
        # DEVIATION: mathFloatingPointFunctions is stored and has no effect: the maths functions
        # follow mathMode, and a source can name `metal::precise::` or `metal::fast::`.
        mathFloatingPointFunctions=number(enums.MTLMathFloatingPointFunctionsFast),
        languageVersion=number(enums.MTLLanguageVersion3_2),
        libraryType=number(enums.MTLLibraryTypeExecutable),
        installName=anything(),
        libraries=anything(),
        preserveInvariance=flag(),
        optimizationLevel=number(enums.MTLLibraryOptimizationLevelDefault),
        compileSymbolVisibility=number(enums.MTLCompileSymbolVisibilityDefault),
        allowReferencingUndefinedSymbols=flag(),
        maxTotalThreadsPerThreadgroup=number(),
        requiredThreadsPerThreadgroup=anything(MTLSize(0, 0, 0)),
        enableLogging=flag(),
    )

    def fastMathEnabled(self) -> bool:
        return bool(self.mathMode() != enums.MTLMathModeSafe)

    def setFastMathEnabled_(self, enabled: bool) -> None:
        self.setMathMode_(enums.MTLMathModeFast if enabled else enums.MTLMathModeSafe)


def compile_options(
    options: MTLCompileOptions | None, file_name: str, extensions: bool = True
) -> CompileOptions:
    """The options as a record for the compiler; `extensions`: a source may ask for softmetal's."""
    given = options or MTLCompileOptions()
    macros: Mapping[str, object] = given.preprocessorMacros() or {}
    major, minor = divmod(given.languageVersion(), 1 << 16)
    return CompileOptions(
        fast_math=given.fastMathEnabled(),
        # Relaxed keeps NaN and infinities, as on Apple's devices.
        finite_math=env.finite_math() and given.mathMode() == enums.MTLMathModeFast,
        macros=tuple((str(name), str(value)) for name, value in macros.items()),
        language_version=major * 100 + minor * 10,
        file_name=file_name,
        strict="msl" in env.strict(),
        extensions=extensions,
    )


class MTLFunctionConstant(Object):
    """A function constant that a library declares."""

    __slots__ = ("_constant",)

    def __init__(self, constant: FunctionConstant) -> None:
        self._constant = constant

    # MTL: -name
    def name(self) -> str:
        return self._constant.name

    # MTL: -type
    def type(self) -> int:
        return data_type(self._constant.type)

    # MTL: -index
    def index(self) -> int:
        return self._constant.index

    # MTL: -required
    def required(self) -> bool:
        return self._constant.required


def _constant_bytes(value: Any, size: int) -> bytes:
    """The bytes of a value: PyObjC passes an address; buffers and ctypes objects work too."""
    if isinstance(value, int):
        return ctypes.string_at(value, size)
    data = copied_bytes(value, size)
    if len(data) < size:
        raise ValidationError(f"a function constant of {size} bytes was given {len(data)}")
    return data


class MTLFunctionConstantValues(Allocated):
    """Values by index or by name."""

    __slots__ = ("_by_index", "_by_name")

    def __init__(self) -> None:
        self._by_index: dict[int, bytes] = {}
        self._by_name: dict[str, bytes] = {}

    # MTL: -setConstantValue:type:atIndex:
    def setConstantValue_type_atIndex_(self, value: Any, type_: int, index: int) -> None:
        self._by_index[index] = _constant_bytes(value, _size_of(type_))

    # MTL: -setConstantValue:type:withName:
    def setConstantValue_type_withName_(self, value: Any, type_: int, name: str) -> None:
        self._by_name[name] = _constant_bytes(value, _size_of(type_))

    # MTL: -setConstantValues:type:withRange:
    def setConstantValues_type_withRange_(
        self, values: Any, type_: int, range_: Sequence[int]
    ) -> None:
        start, count = range_
        size = _size_of(type_)
        data = _constant_bytes(values, size * count)
        for i in range(count):
            self._by_index[start + i] = data[i * size : (i + 1) * size]

    # MTL: -reset
    def reset(self) -> None:
        self._by_index.clear()
        self._by_name.clear()

    def copy(self) -> MTLFunctionConstantValues:
        twin = MTLFunctionConstantValues()
        twin._by_index = dict(self._by_index)
        twin._by_name = dict(self._by_name)
        return twin

    def _resolve(self, declared: Sequence[FunctionConstant]) -> dict[int, bytes]:
        """Values by index for the constants that a library declares; the rest are ignored."""
        given = {}
        for constant in declared:
            value = self._by_index.get(constant.index, self._by_name.get(constant.name))
            if value is None:
                continue
            size = data_size(data_type(constant.type))
            if size is not None and size != len(value):
                raise ValidationError(
                    f"function constant `{constant.name}` is a {constant.type} of {size} bytes: "
                    f"its value was set with a type of {len(value)}"
                )
            given[constant.index] = value
        return given


def _size_of(type_: int) -> int:
    size = data_size(type_)
    if size is None:
        raise ValidationError(f"MTLDataType {type_} cannot be a function constant: pass a scalar")
    return size


class MTLFunctionDescriptor(Descriptor):
    __slots__ = ()
    properties = table(
        name=anything(),
        specializedName=anything(),
        constantValues=anything(),
        options=number(enums.MTLFunctionOptionNone),
        binaryArchives=anything(),
    )

    # MTL: +functionDescriptor
    @classmethod
    def functionDescriptor(cls) -> MTLFunctionDescriptor:
        return cls()


class MTLFunction(Labelled, Explaining):
    """A kernel of a library, perhaps with values for its function constants."""

    __slots__ = ("_constants", "_library", "_name", "_program", "_title")

    def __init__(
        self,
        library: MTLLibrary,
        program: Program,
        name: str,
        constants: Mapping[int, bytes],
        title: str,
    ) -> None:
        super().__init__()
        self._library = library
        self._program = program
        self._name = name
        self._constants = constants
        self._title = title

    # MTL: -name
    def name(self) -> str:
        return self._title

    # MTL: -functionType
    def functionType(self) -> int:
        return enums.MTLFunctionTypeKernel

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._library._device

    # MTL: -options
    def options(self) -> int:
        return enums.MTLFunctionOptionNone

    # MTL: -newArgumentEncoderWithBufferIndex:
    def newArgumentEncoderWithBufferIndex_(self, index: int) -> MTLArgumentEncoder:
        """An encoder for the structure that the kernel's buffer `index` points to."""
        return MTLArgumentEncoder(self.device(), structure_layout(self, index))

    # MTL: -functionConstantsDictionary
    def functionConstantsDictionary(self) -> dict[str, MTLFunctionConstant]:
        used = self._program.functions[self._name].constants
        return {c.name: MTLFunctionConstant(c) for c in self._program.constants if c.name in used}


FunctionHandler = Callable[[MTLFunction | None, NSError | None], object]


class MTLLibrary(Labelled, Explaining):
    """Checked programs, one unless several were linked; kernels are compiled when a pipeline is
    created."""

    __slots__ = ("_device", "_max_threads", "_programs")

    def __init__(
        self, device: MTLDevice, programs: Sequence[Program], max_threads: int = 0
    ) -> None:
        super().__init__()
        self._device = device
        self._programs = programs
        self._max_threads = max_threads

    def _with_source(self, source: str, options: CompileOptions) -> MTLLibrary:
        """Another source; raises CompileError."""
        return MTLLibrary(self._device, (compiler.compile_library(source, options),))

    def _program_with(self, name: str) -> Program | None:
        """The program that has a kernel."""
        return next((program for program in self._programs if name in program.functions), None)

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -type
    def type(self) -> int:
        return enums.MTLLibraryTypeExecutable

    # MTL: -installName
    def installName(self) -> None:
        return None

    # MTL: -functionNames
    def functionNames(self) -> list[str]:
        return [name for program in self._programs for name in program.functions]

    # MTL: -newFunctionWithName:
    def newFunctionWithName_(self, name: str) -> MTLFunction | None:
        program = self._program_with(name)
        return MTLFunction(self, program, name, {}, name) if program else None

    # MTL: -newFunctionWithName:constantValues:error:
    def newFunctionWithName_constantValues_error_(
        self, name: str, values: MTLFunctionConstantValues | None, error: None
    ) -> tuple[MTLFunction | None, NSError | None]:
        return self._specialise(name, values, name)

    # MTL: -newFunctionWithName:constantValues:completionHandler:
    def newFunctionWithName_constantValues_completionHandler_(
        self, name: str, values: MTLFunctionConstantValues | None, handler: FunctionHandler
    ) -> None:
        threading.Thread(target=handler, args=self._specialise(name, values, name)).start()

    # MTL: -newFunctionWithDescriptor:error:
    def newFunctionWithDescriptor_error_(
        self, descriptor: MTLFunctionDescriptor, error: None
    ) -> tuple[MTLFunction | None, NSError | None]:
        name = descriptor.name()
        title = descriptor.specializedName() or name
        return self._specialise(name, descriptor.constantValues(), title)

    # MTL: -newFunctionWithDescriptor:completionHandler:
    def newFunctionWithDescriptor_completionHandler_(
        self, descriptor: MTLFunctionDescriptor, handler: FunctionHandler
    ) -> None:
        outcome = self.newFunctionWithDescriptor_error_(descriptor, None)
        threading.Thread(target=handler, args=outcome).start()

    def _specialise(
        self, name: str, values: MTLFunctionConstantValues | None, title: str
    ) -> tuple[MTLFunction | None, NSError | None]:
        program = self._program_with(name)
        if program is None:
            known = ", ".join(sorted(self.functionNames())) or "none"
            return None, NSError.described(
                enums.MTLLibraryErrorDomain,
                enums.MTLLibraryErrorFunctionNotFound,
                f"the library has no function `{name}`: it has {known}",
            )
        try:
            constants = values._resolve(program.constants) if values else {}
        except ValidationError as problem:
            return None, NSError.described(
                enums.MTLLibraryErrorDomain, enums.MTLLibraryErrorCompileFailure, str(problem)
            )
        return MTLFunction(self, program, name, constants, title), None

    # A private selector of Apple's that clients use to keep compiled libraries.
    def libraryDataContents(self) -> NSData:
        return NSData(compiler.library_to_bytes(self._programs))
