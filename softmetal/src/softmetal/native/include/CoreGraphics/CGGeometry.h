/* metal-cpp names these types. */
#pragma once

typedef double CGFloat;
typedef struct CGSize {
  CGFloat width, height;
} CGSize;
