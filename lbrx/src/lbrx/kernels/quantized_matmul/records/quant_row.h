// Written by lbrx/scripts/record_headers.py from lbrx/kernels/quantized_matmul/quantized_row.py.
#pragma once
#include <metal_stdlib>
#include "records/quant_blocks.h"

constant bool EVEN [[function_constant(3)]];  // whether all steps are whole
constant uint OWN [[function_constant(4)]];  // words of x that a thread rounds: 1, 2, 4 or 8
constant bool ADDED [[function_constant(5)]];  // x is a sum, which is stored as well
constant bool NORMED [[function_constant(6)]];  // x has an RMS norm, with a weight
constant bool GATED [[function_constant(7)]];  // x is the gate of a SwiGLU
