// Transfer functions between coded values and linear light; lbrx/video/transfer.py defines them.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Functions that are not defined for negative values are extended as odd functions.
namespace video_light {
inline float bt709(float v) {
  const float a = fabs(v);
  return copysign(a < 0.081242858f ? a / 4.5f : powr((a + 0.09929683f) / 1.09929683f, 1 / 0.45f), v);
}
inline float bt1886(float v) { return copysign(powr(fabs(v), 2.4f), v); }
inline float gamma22(float v) { return copysign(powr(fabs(v), 2.2f), v); }
inline float gamma28(float v) { return copysign(powr(fabs(v), 2.8f), v); }
inline float srgb(float v) {
  const float a = fabs(v);
  return copysign(a <= 0.04045f ? a / 12.92f : powr((a + 0.055f) / 1.055f, 2.4f), v);
}
inline float pq(float v) {
  const float p = powr(clamp(v, 0.0f, 1.0f), 1 / 78.84375f);
  return powr(max(p - 0.8359375f, 0.0f) / (18.8515625f - 18.6875f * p), 1 / 0.1593017578125f);
}
inline float hlg(float v) {
  const float a = fabs(v);
  const float high = (exp((a - 0.55991073f) / 0.17883277f) + 0.28466892f) / 12;
  return copysign(a <= 0.5f ? a * a / 3 : high, v);
}
inline float linear(float v) { return v; }
}  // namespace video_light

namespace video_code {
inline float bt709(float v) {
  const float a = fabs(v);
  return copysign(a < 0.018053969f ? 4.5f * a : 1.09929683f * powr(a, 0.45f) - 0.09929683f, v);
}
inline float bt1886(float v) { return copysign(powr(fabs(v), 1 / 2.4f), v); }
inline float gamma22(float v) { return copysign(powr(fabs(v), 1 / 2.2f), v); }
inline float gamma28(float v) { return copysign(powr(fabs(v), 1 / 2.8f), v); }
inline float srgb(float v) {
  const float a = fabs(v);
  return copysign(a <= 0.0031308f ? a * 12.92f : 1.055f * powr(a, 1 / 2.4f) - 0.055f, v);
}
inline float pq(float v) {
  const float p = powr(max(v, 0.0f), 0.1593017578125f);
  return powr((0.8359375f + 18.8515625f * p) / (1 + 18.6875f * p), 78.84375f);
}
inline float hlg(float v) {
  const float a = fabs(v);
  const float high = 0.17883277f * log(max(12 * a - 0.28466892f, 1e-30f)) + 0.55991073f;
  return copysign(a <= 1 / 12.0f ? sqrt(3 * a) : high, v);
}
inline float linear(float v) { return v; }
}  // namespace video_code
