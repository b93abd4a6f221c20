// Functions between lanes, for the strict check.
#ifndef SOFTMETAL_TARGET_LANES_H
#define SOFTMETAL_TARGET_LANES_H

#include <softmetal/lane_types.h>

namespace softmetal {

template <class Op, unsigned Width, class V> V reduce(V value);
template <class Op, unsigned Width, bool Inclusive, class V> V scan(V value);
template <class Source, unsigned Width, class V> V shuffle(V value, unsigned argument);
template <bool Up, class V> V shuffle_and_fill(V value, V fill, unsigned delta, unsigned width);
template <unsigned Width> votes vote(bool predicate);

}  // namespace softmetal

#endif
