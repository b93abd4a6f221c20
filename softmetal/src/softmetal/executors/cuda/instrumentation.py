"""`bounds` on a GPU: accesses call include/target/check.h, which knows the kernel's variables from
functions that are made here."""

from __future__ import annotations

from dataclasses import dataclass

from softmetal.compiler import instrument
from softmetal.compiler.identity import PACKAGE
from softmetal.compiler.ir import Module, Variable
from softmetal.compiler.native import local_name

# Clang's driver does not pass a sanitizer on to PTX, its compiler does.
SANITIZER = (
    *instrument.SANITIZER,
    *("-fsanitize-recover=kernel-address", "-mllvm", "-asan-constructor-kind=none"),
)
_THREADGROUP, _CONSTANT = 3, 4  # address spaces of LLVM
_OURS = ("softmetal_", "_ZN9softmetal", "_ZL9softmetal")
CHECKS = r"softmetal_check_\w+|_Z+N9softmetal\w+"  # they are compiled with the kernel
_DECLARED = "softmetal_variable_"  # what is made here


@dataclass(frozen=True)
class Checked:
    """What the findings of a kernel refer to by number."""

    sites: list[instrument.Site]
    threadgroup: list[str]
    constants: list[str]


def add_checks(module: Module, entry: str) -> Checked:
    """Let every access of the user's source be checked; `entry` is the kernel's function."""
    sites = instrument.instrument(module, (PACKAGE, "softmetal_entry"), entry, "", CHECKS)
    module.strip_places()
    shared, constants = (_variables(module, space) for space in (_THREADGROUP, _CONSTANT))
    for name, declaration in module.declarations.items():
        if name.startswith(_DECLARED):
            declaration.text = None
    module.append(_functions([*shared, *constants], len(shared)))
    return Checked(
        sites, *([local_name(variable.name) for variable in each] for each in (shared, constants))
    )


def _variables(module: Module, space: int) -> list[Variable]:
    """The program's variables in an address space."""
    found = module.variables("internal", f"addrspace({space})")
    return [each for each in found if not each.name.startswith(_OURS)]


def _functions(variables: list[Variable], shared: int) -> str:
    spaces = [_THREADGROUP] * shared + [_CONSTANT] * (len(variables) - shared)
    starts = [
        f'ptrtoint (ptr addrspacecast (ptr addrspace({space}) @"{each.name}" to ptr) to i64)'
        for each, space in zip(variables, spaces, strict=True)
    ]
    sizes = [
        f"ptrtoint (ptr getelementptr ({each.type}, ptr null, i64 1) to i64)" for each in variables
    ]
    constant = [str(int(index >= shared)) for index in range(len(variables))]
    return (
        f"define i32 @softmetal_variable_count() {{\n  ret i32 {len(variables)}\n}}\n"
        + _chosen("start", "i64", starts)
        + _chosen("size", "i64", sizes)
        + _chosen("is_constant", "i1", constant).replace("define i1", "define zeroext i1")
    )


def _chosen(name: str, kind: str, values: list[str]) -> str:
    """A function that gives a value for each number."""
    cases = "".join(f" i32 {i}, label %v{i}" for i in range(len(values)))
    blocks = "".join(f"v{i}:\n  ret {kind} {value}\n" for i, value in enumerate(values))
    return (
        f"define {kind} @softmetal_variable_{name}(i32 %index) {{\n"
        f"  switch i32 %index, label %none [{cases} ]\n"
        f"{blocks}none:\n  ret {kind} 0\n}}\n"
    )
