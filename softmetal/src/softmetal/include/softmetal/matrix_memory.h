// simdgroup_load and simdgroup_store for memory in the address space SM_SPACE, which is empty where
// spaces are erased. metal_simdgroup_matrix includes this file once for each space.

namespace metal {

// Each lane moves its own two elements, so lanes that are not active leave theirs alone.
template <typename T>
SM_INLINE void simdgroup_load(SM_THREAD simdgroup_matrix<T, 8, 8>& d,
                              const SM_SPACE type_identity_t<T>* src,
                              ulong elements_per_row = 8, vec<ulong, 2> matrix_origin = 0,
                              bool transpose_matrix = false) {
  auto at = softmetal::offsets(elements_per_row, matrix_origin, transpose_matrix);
  d.thread_elements() = {src[at.first], src[at.second]};
}

template <typename T>
SM_INLINE void simdgroup_store(const SM_THREAD simdgroup_matrix<T, 8, 8>& a,
                               SM_SPACE type_identity_t<T>* dst,
                               ulong elements_per_row = 8, vec<ulong, 2> matrix_origin = 0,
                               bool transpose_matrix = false) {
  auto at = softmetal::offsets(elements_per_row, matrix_origin, transpose_matrix);
  dst[at.first] = a.thread_elements().x;
  dst[at.second] = a.thread_elements().y;
}

}  // namespace metal
