// Written by lbrx/scripts/record_headers.py from lbrx/kernels/matvec/matvec.py.
#pragma once
#include <metal_stdlib>
#include "records/matmul.h"

constant uint ROWS [[function_constant(1)]];  // of x, rounded up to a power of two: rows beyond the last repeat it
constant bool ALIGNED [[function_constant(2)]];  // whether four elements of y can be loaded at once
