// Written by lbrx/scripts/record_headers.py from lbrx/kernels/rows/rows.py.
#pragma once
#include <metal_stdlib>

// Rows of one length; rows that are too long for a team are split into parts.
struct RowsRecord {
  uint length;
  uint part;  // elements of all parts but the last
  uint parts;  // of a row
  ulong stride;  // from row to row of the input, in elements
};
