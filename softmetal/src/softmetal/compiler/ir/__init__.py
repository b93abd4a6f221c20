"""LLVM IR as text: read, changed and printed again.

`Module` has functions of blocks of instructions, variables, attributes and metadata. Nothing is
read before it is asked for, and what nobody changed is printed letter by letter as it was: a
compilation does not become slower, and a construct that is not known here passes through.
"""

from softmetal.compiler.ir.instruction import Instruction, expression
from softmetal.compiler.ir.module import Block, Function, Module, Node, Variable
from softmetal.compiler.ir.reading import Line, Operand, unquoted

__all__ = (
    "Block",
    "Function",
    "Instruction",
    "Line",
    "Module",
    "Node",
    "Operand",
    "Variable",
    "expression",
    "unquoted",
)
