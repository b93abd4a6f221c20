// Written by lbrx/scripts/record_headers.py from lbrx/kernels/norm/norm.py.
#pragma once
#include <metal_stdlib>

constant bool CENTRED [[function_constant(0)]];  // layer norm
constant bool RESIDUAL [[function_constant(1)]];  // an array that is added first
constant bool WEIGHT [[function_constant(2)]];
constant bool BIAS [[function_constant(3)]];
