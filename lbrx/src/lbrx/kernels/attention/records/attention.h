// Written by lbrx/scripts/record_headers.py from lbrx/kernels/attention/attention.py.
#pragma once
#include <metal_stdlib>

// Offsets and strides of rows in elements. The last axis is contiguous.
struct PlacesRecord {
  long start;
  long batch;
  long head;
  long row;
};

struct AttentionRecord {
  PlacesRecord query;
  PlacesRecord key;
  PlacesRecord value;
  PlacesRecord mask;
  long mask_key;  // from one key to the next; 0 where the mask is the same for all
  uint heads;
  uint group;  // query heads that share a key head
  uint queries;
  uint keys;
  uint depth;
  uint value_depth;
  uint has_mask;
  uint has_lengths;
  uint has_sinks;
  uint sinks;  // where those of heads begin among the numbers of the mask
  uint causal;
  uint window;  // 0 for none
  uint chunks;  // of keys, whose partial results attention_merge merges
  float scale;
  float cap;
};

// Features of queries and keys, and of values and results: constants for the head sizes that
// models use, so that loops have a known length. 0 means that the record has them.
constant uint DEPTH [[function_constant(0)]];
constant uint VALUE_DEPTH [[function_constant(1)]];
constant bool CAPPED [[function_constant(2)]];  // whether scores are cap * tanh(score / cap)
