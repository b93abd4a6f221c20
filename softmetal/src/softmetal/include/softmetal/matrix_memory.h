// simdgroup_load and simdgroup_store for memory in the address space SM_SPACE, which is empty where
// spaces are erased. metal_simdgroup_matrix includes this file once for each space.

namespace metal {

// Each lane moves its own two elements, so lanes that are not active leave theirs alone.
template <typename T>
SM_INLINE void simdgroup_load(SM_THREAD simdgroup_matrix<T, 8, 8>& d,
                              const SM_SPACE type_identity_t<T>* src,
                              ulong elements_per_row = 8, vec<ulong, 2> matrix_origin = 0,
                              bool transpose_matrix = false) {
  auto* own = softmetal::matrix_access::own(d);
#ifdef SM_MATRIX_MEMORY
  softmetal::load(own, src + matrix_origin.y * elements_per_row + matrix_origin.x, elements_per_row,
                  transpose_matrix);
#else
  auto at = softmetal::offsets(elements_per_row, matrix_origin, transpose_matrix);
  own[0] = src[at.first];
  own[1] = src[at.second];
#endif
}

template <typename T>
SM_INLINE void simdgroup_store(const SM_THREAD simdgroup_matrix<T, 8, 8>& a,
                               SM_SPACE type_identity_t<T>* dst,
                               ulong elements_per_row = 8, vec<ulong, 2> matrix_origin = 0,
                               bool transpose_matrix = false) {
  auto* own = softmetal::matrix_access::own(a);
#ifdef SM_MATRIX_MEMORY
  softmetal::store(own, dst + matrix_origin.y * elements_per_row + matrix_origin.x,
                   elements_per_row, transpose_matrix);
#else
  auto at = softmetal::offsets(elements_per_row, matrix_origin, transpose_matrix);
  dst[at.first] = own[0];
  dst[at.second] = own[1];
#endif
}

}  // namespace metal
