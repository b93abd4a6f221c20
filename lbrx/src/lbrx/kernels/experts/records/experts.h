// Written by lbrx/scripts/record_headers.py from lbrx/kernels/experts/experts.py.
#pragma once
#include <metal_stdlib>

// Results are numbered by token, then by which of its experts it is.
struct ExpertsRecord {
  uint results;
  uint each;  // results that share a row of x
  uint experts;
  uint words;  // of 32 bits in an index
  uint ordered;  // whether there are runs
  uint longest;  // results of a run, at most
  uint runs;  // at most
  uint n;
  uint k;
};

// Some results of one expert. A run of none is not used.
struct ExpertRun {
  uint first;  // place in the order
  uint length;
  uint expert;
};
