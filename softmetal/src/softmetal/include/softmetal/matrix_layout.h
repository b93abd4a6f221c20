// Which elements of an 8x8 simdgroup_matrix a lane holds: two neighbours in a row. On Apple GPUs, and
// wherever a program can see it through thread_elements(), the lanes have Apple's order; otherwise
// a target may ask for the order of NVIDIA's tensor cores.
#ifndef SOFTMETAL_MATRIX_LAYOUT_H
#define SOFTMETAL_MATRIX_LAYOUT_H

#include <softmetal/config.h>

namespace softmetal {

#ifdef SM_TENSOR_ORDER
constexpr bool matrix_is_tensor_order = true;
SM_INLINE constexpr unsigned matrix_row(unsigned lane) { return lane / 4; }
SM_INLINE constexpr unsigned matrix_column(unsigned lane) { return lane % 4 * 2; }
SM_INLINE constexpr unsigned matrix_lane(unsigned row, unsigned column) {
  return row * 4 + column / 2;
}
#else
constexpr bool matrix_is_tensor_order = false;
SM_INLINE constexpr unsigned matrix_row(unsigned lane) {
  return (lane >> 4 & 1) * 4 + (lane >> 2 & 1) * 2 + (lane >> 1 & 1);
}
SM_INLINE constexpr unsigned matrix_column(unsigned lane) {
  return (lane >> 3 & 1) * 4 + (lane & 1) * 2;
}
// The lane that holds an element.
SM_INLINE constexpr unsigned matrix_lane(unsigned row, unsigned column) {
  return (row >> 2 & 1) * 16 + (column >> 2 & 1) * 8 + (row >> 1 & 1) * 4 + (row & 1) * 2 +
         (column >> 1 & 1);
}
#endif

}  // namespace softmetal

#endif
