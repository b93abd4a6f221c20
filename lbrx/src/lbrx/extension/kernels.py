"""Kernels: runners of operations, families of variants, plans, argument records, and the device."""

from __future__ import annotations

from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import (
    FLOAT,
    LONG,
    UCHAR,
    UINT,
    Bool,
    Constants,
    Float,
    Int,
    Record,
    UInt,
    ULong,
    dtype_of,
    packed,
)
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of, size_class, whole_buffer
from lbrx.kernels.elementwise.elementwise import access, constant, is_host
from lbrx.kernels.finishing import Finish, finishes
from lbrx.kernels.layouts import contiguous
from lbrx.kernels.registry import Call, KernelFamily, computes, policy
from lbrx.metal import Buffer, Context, DeviceInfo, context
from lbrx.metal.arrays import empty
from lbrx.program.element_program import (
    Access,
    ProgramInput,
    ProgramStep,
    assignment,
    converted,
    preamble,
    value_types,
)

__all__ = [
    "FLOAT",
    "LONG",
    "UCHAR",
    "UINT",
    "Access",
    "Bool",
    "Buffer",
    "Builder",
    "Call",
    "Constants",
    "Context",
    "DeviceInfo",
    "DeviceKind",
    "Finish",
    "Float",
    "Int",
    "KernelFamily",
    "ProgramInput",
    "ProgramStep",
    "Record",
    "UInt",
    "ULong",
    "access",
    "assignment",
    "buffer_of",
    "computes",
    "constant",
    "context",
    "contiguous",
    "converted",
    "dtype_of",
    "empty",
    "finishes",
    "is_host",
    "packed",
    "policy",
    "preamble",
    "size_class",
    "value_types",
    "whole_buffer",
]
