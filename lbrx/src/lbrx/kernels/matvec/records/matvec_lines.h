// Written by lbrx/scripts/record_headers.py from lbrx/kernels/matvec/matvec.py.
#pragma once
#include <metal_stdlib>
#include "records/matvec.h"

constant uint VECTORS [[function_constant(3)]];  // that a thread reads of a column
