// Products of 8x8 matrices, for the strict check.
#ifndef SOFTMETAL_TARGET_MATRIX_H
#define SOFTMETAL_TARGET_MATRIX_H

namespace softmetal {

template <class D, class A, class B, class C>
void multiply(D* d, const A* a, const B* b, const C* c);
template <class D, class A, class B> void multiply(D* d, const A* a, const B* b);

}  // namespace softmetal

#endif
