// Written by lbrx/scripts/record_headers.py from lbrx/kernels/quantized/quantized.py.
#pragma once
#include <metal_stdlib>

// Element types of arrays, numbered as on the host.
constant uint VALUES [[function_constant(0)]];  // activations and results
constant uint SCALES [[function_constant(1)]];  // scales and biases beside the codes
constant uint GROUP [[function_constant(2)]];  // values that share a scale
