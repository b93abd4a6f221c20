// From a launch to a kernel's arguments: their types come from the kernel's own type, the token pass
// supplies a kind and an index for each parameter. target/entry.h calls it.
#ifndef SOFTMETAL_ENTRY_H
#define SOFTMETAL_ENTRY_H

#include <softmetal/config.h>
#include <target/target.h>

// `constant T name [[function_constant(i)]]`: SM_FC_i is the value's bytes if there is one.
#define SM_FUNCTION_CONSTANT(T, name, i) \
  static constexpr T name = ::softmetal::constant_value<T>(SM_FC_##i); \
  static constexpr bool softmetal_defined_##name = SM_FC_DEFINED_##i
#define is_function_constant_defined(name) softmetal_defined_##name

// Casts that also know the way between half and bfloat, which clang lacks.
#define SM_CAST_static_cast ::softmetal::cast
#define SM_CAST_half ::softmetal::cast<half>
#define SM_CAST_bfloat ::softmetal::cast<bfloat>

namespace softmetal {

template <class T, class U>
constexpr SM_INLINE T cast(U &&value) {
  using V = __remove_cvref(U);
  if constexpr ((__is_same(T, half) && __is_same(V, bfloat)) ||
                (__is_same(T, bfloat) && __is_same(V, half)))
    return static_cast<T>(static_cast<float>(value));
  else
    return static_cast<T>(static_cast<U &&>(value));
}

template <unsigned N>
struct constant_bytes {
  unsigned char value[N];
};

template <class T>
struct constant_reader {
  template <unsigned N>
  static constexpr T read(constant_bytes<N> given, unsigned from = 0) {
    static_assert(N >= sizeof(T), "the function constant's value is smaller than its type");
    constant_bytes<sizeof(T)> part = {};
    for (unsigned i = 0; i < sizeof(T); i++) part.value[i] = given.value[from + i];
    return __builtin_bit_cast(T, part);
  }
};
template <>
struct constant_reader<bool> {  // programs pass any byte that is not zero for true
  template <unsigned N>
  static constexpr bool read(constant_bytes<N> given, unsigned from = 0) {
    return given.value[from] != 0;
  }
};
template <class T, int N>
struct constant_reader<metal::vec<T, N>> {  // bit_cast refuses its union
  template <unsigned M>
  static constexpr metal::vec<T, N> read(constant_bytes<M> given) {
    constexpr auto at = constant_reader<T>::template read<M>;
    constexpr unsigned s = sizeof(T);
    if constexpr (N == 2) return metal::vec<T, N>(at(given, 0), at(given, s));
    else if constexpr (N == 3)
      return metal::vec<T, N>(at(given, 0), at(given, s), at(given, 2 * s));
    else return metal::vec<T, N>(at(given, 0), at(given, s), at(given, 2 * s), at(given, 3 * s));
  }
};

template <class T, unsigned N>
constexpr T constant_value(constant_bytes<N> given) {
  return constant_reader<T>::read(given);
}

struct undefined_constant {};
template <class T>
constexpr T constant_value(undefined_constant) {
  return T();
}

// ---- what a thread knows of itself ------------------------------------------------------------

struct where {
  sm_u32 grid[3], groups[3], full_group[3];  // of the launch
  sm_u32 group[3];                           // threadgroup_position_in_grid
  sm_u32 group_size[3];                      // threads_per_threadgroup
  sm_u32 local[3];                           // thread_position_in_threadgroup
  sm_u32 global[3];                          // thread_position_in_grid
  sm_u32 index;                              // thread_index_in_threadgroup
};

enum class builtin {
  thread_position_in_grid, threads_per_grid, grid_size, grid_origin, threadgroups_per_grid,
  dispatch_threads_per_threadgroup, threads_per_simdgroup, thread_execution_width,
  thread_position_in_threadgroup, threadgroup_position_in_grid, threads_per_threadgroup,
  thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup,
  simdgroups_per_threadgroup, dispatch_simdgroups_per_threadgroup, thread_index_in_quadgroup,
  quadgroup_index_in_threadgroup, quadgroups_per_threadgroup, dispatch_quadgroups_per_threadgroup,
};

constexpr SM_INLINE sm_u32 volume(const sm_u32 (&size)[3]) { return size[0] * size[1] * size[2]; }
constexpr SM_INLINE sm_u32 ceil_div(sm_u32 a, sm_u32 b) { return (a + b - 1) / b; }

template <class T>
struct scalar_of {
  static constexpr int count = 1;
  using type = T;
};
template <class T, int N>
struct scalar_of<metal::vec<T, N>> {
  static constexpr int count = N;
  using type = T;
};

// Member by member: LLVM finds y and z, which a loop over x keeps, again in two halves of a register
// pair, but not in a vector.
template <class T>
SM_INLINE T position(const sm_u32 (&v)[3]) {
  using S = typename scalar_of<T>::type;
  if constexpr (scalar_of<T>::count == 1) return S(v[0]);
  else {
    T value;
    value.x = S(v[0]);
    value.y = S(v[1]);
    if constexpr (scalar_of<T>::count == 3) value.z = S(v[2]);
    return value;
  }
}

template <builtin B, class T>
SM_INLINE T builtin_value(const where &w) {
  constexpr sm_u32 zero[3] = {0, 0, 0};
  if constexpr (B == builtin::thread_position_in_grid) return position<T>(w.global);
  else if constexpr (B == builtin::threads_per_grid || B == builtin::grid_size)
    return position<T>(w.grid);
  else if constexpr (B == builtin::grid_origin) return position<T>(zero);
  else if constexpr (B == builtin::threadgroups_per_grid) return position<T>(w.groups);
  else if constexpr (B == builtin::dispatch_threads_per_threadgroup)
    return position<T>(w.full_group);
  else if constexpr (B == builtin::thread_position_in_threadgroup) return position<T>(w.local);
  else if constexpr (B == builtin::threadgroup_position_in_grid) return position<T>(w.group);
  else if constexpr (B == builtin::threads_per_threadgroup) return position<T>(w.group_size);
  else if constexpr (B == builtin::threads_per_simdgroup || B == builtin::thread_execution_width)
    return T(SM_LANES);
  else if constexpr (B == builtin::thread_index_in_threadgroup) return T(w.index);
  else if constexpr (B == builtin::thread_index_in_simdgroup) return T(w.index % SM_LANES);
  else if constexpr (B == builtin::simdgroup_index_in_threadgroup) return T(w.index / SM_LANES);
  else if constexpr (B == builtin::simdgroups_per_threadgroup)
    return T(ceil_div(volume(w.group_size), SM_LANES));
  else if constexpr (B == builtin::dispatch_simdgroups_per_threadgroup)
    return T(ceil_div(volume(w.full_group), SM_LANES));
  else if constexpr (B == builtin::thread_index_in_quadgroup) return T(w.index % 4);
  else if constexpr (B == builtin::quadgroup_index_in_threadgroup) return T(w.index / 4);
  else if constexpr (B == builtin::quadgroups_per_threadgroup)
    return T(ceil_div(volume(w.group_size), 4));
  else return T(ceil_div(volume(w.full_group), 4));
}

// ---- parameters -------------------------------------------------------------------------------

template <class T>
struct pointee {
  using type = T;
  static constexpr bool pointer = false;
};
template <class T>
struct pointee<T *> {
  using type = T;
  static constexpr bool pointer = true;
};
template <class T>
struct pointee<T &> {
  using type = T;
  static constexpr bool pointer = false;
};

template <class T>
constexpr sm_u32 size_of() {
  if constexpr (__is_void(T)) return 1;
  else return sizeof(T);
}
template <class T>
constexpr sm_u32 align_of() {
  if constexpr (__is_void(T)) return 1;
  else return alignof(T);
}

template <class A>
SM_INLINE A at_address(void *address) {
  using T = typename pointee<A>::type;
  if constexpr (pointee<A>::pointer) return static_cast<A>(address);
  else return *static_cast<T *>(address);
}

enum : sm_u32 { buffer_kind, threadgroup_kind, no_kind };

// Of each parameter, in their order; compiler/__init__.py reads it.
struct argument_info {
  sm_u32 kind, index;
  sm_u32 size, alignment;      // of what it points to
  sm_u32 writable, reference;  // reference: `constant T&`, exactly one element
};

// Each parameter kind: `load` reads what is the same for all threads, `get` makes the argument.
template <unsigned I>
struct buffer {
  static constexpr sm_u32 kind = buffer_kind, index = I;
  static SM_INLINE void *load(const sm_launch *l, char *) { return l->buffers[I]; }
  template <class A>
  static SM_INLINE A get(void *address, const where &) {
    return at_address<A>(address);
  }
};

// A `constant T&` or `constant T*`: no thread changes it. A loop over threads may keep a copy of a `T&`.
template <unsigned I>
struct constant_buffer : buffer<I> {};

template <unsigned I>
struct scratch {
  static constexpr sm_u32 kind = threadgroup_kind, index = I;
  static SM_INLINE void *load(const sm_launch *l, char *base) {
    return base + l->scratch_offset[I];
  }
  template <class A>
  static SM_INLINE A get(void *address, const where &) {
    return at_address<A>(address);
  }
};

struct absent {  // its function constant is false
  static constexpr sm_u32 kind = no_kind, index = 0;
  static SM_INLINE void *load(const sm_launch *, char *) { return nullptr; }
  template <class A>
  static SM_INLINE A get(void *address, const where &) {
    return at_address<A>(address);
  }
};

template <builtin B>
struct special {
  static constexpr sm_u32 kind = no_kind, index = 0;
  static SM_INLINE void *load(const sm_launch *, char *) { return nullptr; }
  template <class A>
  static SM_INLINE A get(void *, const where &w) {
    return builtin_value<B, __remove_cv(__remove_reference_t(A))>(w);
  }
};

template <bool Present, class P>
struct when {
  using type = P;
};
template <class P>
struct when<false, P> {
  using type = absent;
};

// ---- entries ----------------------------------------------------------------------------------

template <class T, T... I>
struct sequence {};

template <class... P>
struct list {};

// An argument before the thread is known: where it is, or the value itself, so that nothing that a
// thread stores can seem to change it.
template <class P, class A, bool Copied>
struct argument {
  void *address;
  SM_INLINE argument(const sm_launch *l, char *base) : address(P::load(l, base)) {}
  SM_INLINE A get(const where &w) const { return P::template get<A>(address, w); }
};
template <class P, class T>
struct argument<P, const T &, true> {
  T value;
  SM_INLINE argument(const sm_launch *l, char *base)
      : value(*static_cast<const T *>(P::load(l, base))) {}
  SM_INLINE const T &get(const where &) const { return value; }
};

template <class P>
constexpr bool is_constant = false;
template <unsigned I>
constexpr bool is_constant<constant_buffer<I>> = true;

// Whether a loop over threads keeps a copy.
template <class P, class A>
constexpr bool is_copied = false;
template <unsigned I, class T>
constexpr bool is_copied<constant_buffer<I>, const T &> =
    __is_trivially_copyable(T) && sizeof(T) <= 1024;

// The type of a parameter of which the optimiser knows that nothing a thread stores changes it.
template <class P, class A>
struct unaliased {
  using type = A;
};
template <unsigned I, class T>
struct unaliased<constant_buffer<I>, const T &> {
  using type = const T &__restrict;
};
template <unsigned I, class T>
struct unaliased<constant_buffer<I>, const T *> {
  using type = const T *__restrict;
};

template <unsigned Place, class Argument>
struct slot : Argument {
  using Argument::Argument;
};

#if __cplusplus >= 201703L  // kernels are; a library in an older version is only checked
template <auto F, class Parameters, class Type = decltype(F)>
struct kernel;

template <auto F, class... P, class... A>
struct kernel<F, list<P...>, void (*)(A...)> {
  static_assert(sizeof...(P) == sizeof...(A));
  static constexpr unsigned count = sizeof...(P);

  template <unsigned I, class P1, class A1, bool Looped>
  using held = slot<I, argument<P1, A1, Looped && is_copied<P1, A1>>>;
  template <bool Looped, class Places>
  struct loaded;
  template <bool Looped, unsigned... I>
  struct loaded<Looped, sequence<unsigned, I...>> : held<I, P, A, Looped>... {
    SM_INLINE loaded(const sm_launch *l, char *base) : held<I, P, A, Looped>(l, base)... {}
    template <auto Function = F>
    SM_INLINE void call(const where &w) const {
      Function(static_cast<const held<I, P, A, Looped> &>(*this).get(w)...);
    }
  };
  using places = __make_integer_seq<sequence, unsigned, count>;
#ifdef SM_CHECK
  using in_loop = loaded<false, places>;  // every access is checked
#else
  using in_loop = loaded<true, places>;
#endif
  using alone = loaded<false, places>;

  static SM_INLINE where start(const sm_launch *l) {
    where w = {};
    for (int i = 0; i < 3; i++) {
      w.grid[i] = l->grid[i];
      w.groups[i] = l->groups[i];
      w.full_group[i] = l->group[i];
    }
    return w;
  }

  // The kernel with unaliased parameters. Not always_inline: the kernel must be part of it before it is
  // inlined, else the promise is lost.
  static inline void run(typename unaliased<P, A>::type... arguments) { F(arguments...); }

  // The address of what is in `constant` memory, else null.
  template <class P1>
  static SM_INLINE const void *constant_at(const sm_launch *l) {
    if constexpr (is_constant<P1>) return l->buffers[P1::index];
    else return nullptr;
  }
  // Calls `use` with the address of each `constant` argument.
  template <class Use>
  static SM_INLINE void each_constant(const sm_launch *l, Use use) {
    const void *addresses[] = {nullptr, constant_at<P>(l)...};
    for (const void *address : addresses)
      if (address) use(address);
  }

  // The kernel of one thread, or `run`.
  template <auto Function = F>
  static SM_INLINE void thread(const sm_launch *l, char *scratch, const where &w) {
    alone(l, scratch).template call<Function>(w);
  }

  template <class T>
  static constexpr bool is_const = __is_const(typename pointee<T>::type);

  struct info {
    sm_u32 head[4];
    argument_info arguments[count ? count : 1];
  };
  static constexpr info describe(sm_u32 mode, sm_u32 max_threads) {
    return {{SM_ABI, mode, count, max_threads},
            {argument_info{P::kind, P::index, size_of<typename pointee<A>::type>(),
                         align_of<typename pointee<A>::type>(), !is_const<A>,
                         !pointee<A>::pointer}...}};
  }
};
#endif

}  // namespace softmetal

#include <target/entry.h>

#endif
