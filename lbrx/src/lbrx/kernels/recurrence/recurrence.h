// Recurrent layers: a thread walks over the tokens of a text with its part of the state.
// At position 0 the state is zeros; tokens at positions below zero are padding.
#pragma once
#include "records/recurrence.h"
#include <metal_stdlib>
using namespace metal;

constant constexpr uint MOST_TAPS = 16;
constant constexpr uint MOST_STATES = 256;

// One channel: the last inputs are its state.
kernel void short_convolution(device float* state [[buffer(0)]], device const float* x [[buffer(1)]],
                              device const float* weight [[buffer(2)]],
                              device const float* bias [[buffer(3)]],
                              device const int* positions [[buffer(4)]],
                              device float* out [[buffer(5)]],
                              constant ShortConvolutionRecord& p [[buffer(6)]],
                              uint2 at [[thread_position_in_grid]]) {
  const uint channel = at.x, before = p.taps - 1;
  device float* own = state + (ulong(at.y) * p.channels + channel) * before;
  float taps[MOST_TAPS], window[MOST_TAPS];
  for (uint i = 0; i < p.taps; i++) taps[i] = weight[channel * p.taps + i];
  for (uint i = 0; i < before; i++) window[i] = own[i];
  const float first = p.has_bias ? bias[channel] : 0.0f;
  for (uint t = 0; t < p.tokens; t++) {
    const ulong place = (ulong(at.y) * p.tokens + t) * p.channels + channel;
    const int position = positions[at.y * p.tokens + t];
    if (position < 0) {
      out[place] = 0;
      continue;
    }
    if (position == 0)
      for (uint i = 0; i < before; i++) window[i] = 0;
    window[before] = x[place];
    float sum = first;
    for (uint i = 0; i < p.taps; i++) sum = fma(window[i], taps[i], sum);
    out[place] = sum;
    for (uint i = 0; i < before; i++) window[i] = window[i + 1];
  }
  for (uint i = 0; i < before; i++) own[i] = window[i];
}

// One row of a head's state.
kernel void recurrence_rows(device float* state [[buffer(0)]], device const float* values [[buffer(1)]],
                            device const float* keys [[buffer(2)]],
                            device const float* queries [[buffer(3)]],
                            device const float* decay [[buffer(4)]],
                            device const float* gate [[buffer(5)]],
                            device const int* positions [[buffer(6)]],
                            device float* out [[buffer(7)]],
                            constant RecurrenceRecord& p [[buffer(8)]],
                            uint3 at [[thread_position_in_grid]]) {
  const uint row = at.x, head = at.y, text = at.z;
  device float* own = state + ((ulong(text) * p.heads + head) * p.width + row) * p.size;
  float kept[MOST_STATES];
  for (uint i = 0; i < p.size; i++) kept[i] = own[i];
  for (uint t = 0; t < p.tokens; t++) {
    const ulong token = ulong(text) * p.tokens + t;
    const ulong place = (token * p.heads + head) * p.width + row;
    const int position = positions[token];
    if (position < 0) {
      out[place] = 0;
      continue;
    }
    const ulong shared = (token * p.key_heads + head / p.share) * p.size;
    device const float* key = keys + shared;
    device const float* query = queries + shared;
    const float less = position == 0 ? 0.0f : decay[token * p.heads + head];
    float value = values[place];
    if (position == 0)
      for (uint i = 0; i < p.size; i++) kept[i] = 0;
    for (uint i = 0; i < p.size; i++) kept[i] *= less;
    if (p.delta) {
      float known = 0;
      for (uint i = 0; i < p.size; i++) known = fma(kept[i], key[i], known);
      value -= known;
    }
    value *= gate[token * p.heads + head];
    float sum = 0;
    for (uint i = 0; i < p.size; i++) {
      kept[i] = fma(value, key[i], kept[i]);
      sum = fma(kept[i], query[i], sum);
    }
    out[place] = sum;
  }
  for (uint i = 0; i < p.size; i++) own[i] = kept[i];
}
