// Constructs that Apple's compiler accepts and in which clang's address spaces differ from Metal's:
// copies of classes between spaces, temporaries, conditionals, member functions, library types.
#include <metal_stdlib>
using namespace metal;

struct Bits {
  uint low : 3;
  uint high : 5;
};

struct Total {
  float sum;
  void add(float value) { sum += value; }
  float get() const { return sum; }
};

struct Holder {
  Total total;
  float values[4];
  Holder() = default;
  Holder(float first) { set(first); }
  void set(float first) { values[0] = first; }
  thread Total& inner() { return total; }
  float first(thread const float* p) const { return p[0]; }
  float all() {
    float sum = first(values);
    for (auto value : values) sum += value;
    total.add(sum);
    return total.get();
  }
};

template <typename T>
struct Tile {
  T v[4];
  template <typename F>
  void map(F f) {
    for (int i = 0; i < 4; i++) v[i] = f(v[i]);
  }
  T operator[](int i) const { return v[i]; }
  thread T& at(int i) { return v[i]; }
  static Tile filled(T value) { return {value, value, value, value}; }
};

template <int N>
struct Number {
  constexpr operator int() const { return N; }
  constexpr auto twice() const { return N * 2; }
};

template <typename T>
struct Slot {
  T value;
  uint index;
  constexpr Slot<T>() threadgroup = default;
};

struct Seed {
  float state;
  Seed() thread = default;
  Seed() threadgroup = default;
  Seed() device = default;
  Seed() constant = default;
  static Seed of(uint4 numbers) {
    Seed seed;
    seed.state = numbers.x;
    return seed;
  }
  float next() { return this->state *= 2; }
};

template <typename T, size_t N>
struct Fixed {
  T elements[N];
  thread T& operator[](size_t i) thread { return elements[i]; }
  device T& operator[](size_t i) device { return elements[i]; }
  threadgroup T& operator[](size_t i) threadgroup { return elements[i]; }
  constexpr const constant T& operator[](size_t i) const constant { return elements[i]; }
};

struct Add {
  template <typename T>
  T operator()(T a, T b) const { return a + b; }
};

template <typename Op, typename T>
T reduce(const thread T* p, Op op) { return op(p[0], p[1]); }
template <typename T, T (*f)(T)>
T applied(T x) { return f(x); }
float square(float x) { return x * x; }
uint length(constant char* text) {
  uint n = 0;
  while (text[n]) n++;
  return n;
}

union Word {
  float f;
  uint u;
};
enum class Kind : uint { A, B };
constant uint table[4] = {1, 2, 3, 4};
constant Fixed<float, 2> weights = {1, 2};
constant bool flag [[function_constant(0)]];
constant bool other = is_function_constant_defined(flag) ? flag : true;

float scaled(Holder h, const constant float* w) { return h.all() * w[0]; }
float mixed(const device half* p, constant Bits& b, threadgroup float* t, thread Holder& h) {
  return float(p[0]) + b.low + t[0] + h.all();
}

kernel void accepted(
    device half* d [[buffer(0)]], constant Bits& b [[buffer(1)]],
    constant float4x4& m [[buffer(2)]], device packed_float3* packed [[buffer(3)]],
    device float4* f4 [[buffer(4)]], device Holder* holders [[buffer(5)]],
    threadgroup float* t [[threadgroup(0)]], device atomic_int* counters [[buffer(6)]],
    uint3 at [[thread_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {
  // Classes.
  Holder h = holders[at.x];
  holders[1] = h;
  h.inner().add(1);
  Holder(2.0f).all();
  d[0] = half(mixed(d, b, t, h));
  threadgroup Holder shared[2];
  shared[0] = h;
  h = shared[1];
  h = at.x ? shared[0] : holders[0];
  Tile<float> tile = {};
  tile.map([&](float x) { return x * t[0] + lane; });
  tile.at(1) = tile[2] + Tile<float>::filled(1)[0];
  float sized[Number<2>{}.twice()];
  sized[Number<1>()] = 1;
  Seed seed = Seed::of({1, at.x, 2, 3});
  threadgroup Slot<float> slots[32];
  slots[lane].value = seed.next() + weights[1];
  threadgroup Fixed<float, 4> fixed;
  fixed[1] = slots[0].value;
  Fixed<float, 2> pair = {};
  pair[0] += fixed[2];
  // Arrays and functions.
  float a[2] = {1, 2};
  d[1] = half(reduce(a, Add()) + Add{}(1.0f, 2.0f) + applied<float, square>(2));
  thread auto& values = a;
  for (auto& value : values) value += 1;
  array<float, 3> three = {1, 2, 3};
  thread float& middle = three[1];
  middle = 3;
  d[2] = half(length("four") + sizeof("text"));
  // Vectors and matrices.
  float4 v = m * f4[0];
  f4[1] = m[0] + v;
  f4[2].xyz = float3(packed[0]);
  packed[1] = v.xyz;
  packed[2].x = m[1][2];
  f4[3][1] = 2;
  const device half4* q = (const device half4*)d;
  half4 x4 = q[at.z];
  x4 += q[1];
  x4 = fma(x4, q[2], q[3]);
  f4[0] = select(v, f4[1], v > 0);
  bool4 mask = v > f4[2];
  if (any(mask) && other) f4[0] = -v;
  float whole;
  d[5] = half(modf(1.5f, whole) + max(float(q[0].x), max3(1.0f, 2.0f, t[1])));
  // Other types.
  Word word;
  word.f = 1;
  Kind kind = Kind::B;
  if (kind == Kind::A) d[3] = half(table[at.y & 3] + word.u);
  bfloat narrow = bfloat(d[0]);
  packed_half4 stored = packed_half4(x4);
  x4 = half4(stored) * half(narrow);
  // Atomics, simdgroups and addresses.
  atomic_fetch_add_explicit(&counters[0], 1, memory_order_relaxed);
  threadgroup atomic_uint count;
  atomic_store_explicit(&count, 0u, memory_order_relaxed);
  uint2 size = uint2(at.xy);
  size.x = simd_shuffle(size.x, 0);
  simdgroup_float8x8 matrix = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_load(matrix, t, 8);
  simdgroup_multiply_accumulate(matrix, matrix, matrix, matrix);
  simdgroup_store(matrix, (device float*)f4, 8, ulong2(0, 0), true);
  matrix.thread_elements()[0] = 1;
  ulong address = (ulong)d;
  device half* back = reinterpret_cast<device half*>(address);
  if (d == back) return;
  uint local = 1, global = 2, generic = local + global;
  d[generic] = half(square(float(local)));
}

// An instance that takes more than 32 KiB has no pipeline; its library is right.
template <typename T>
kernel void staged(device T* x [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup T tile[8192 + 64];
  tile[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = tile[1023 - i];
}
template [[host_name("staged_half")]] kernel void staged<half>(device half*, uint);
template [[host_name("staged_float")]] kernel void staged<float>(device float*, uint);

// A class that converts to an integer moves a pointer, also where classes have such operators.
template <typename T, T v>
struct Whole {
  constexpr operator T() const { return v; }
};
struct Addend {
  float value;
};
constexpr thread Addend& operator+=(thread Addend& a, Addend b) { a.value += b.value; return a; }
constexpr device Addend& operator+=(device Addend& a, Addend b) { a.value += b.value; return a; }

kernel void moved(device float* x [[buffer(0)]], threadgroup float* s [[threadgroup(0)]]) {
  float own[4] = {1, 2, 3, 4};
  device float* p = x;
  threadgroup float* q = s;
  thread float* r = own;
  Whole<int, 1> step;
  p += step, q -= step, r += step;
  p = step + p;
  p[step] = *q + *r;
}

// What SPIRV-Cross declares for matrices in shared memory: every copy is a defaulted member.
template <typename T, int N>
struct Stored {
  vec<T, N> columns[N];
  Stored() thread = default;
  Stored() threadgroup = default;
  Stored(const thread Stored& m) thread = default;
  Stored(const threadgroup Stored& m) thread = default;
  Stored(const thread matrix<T, N, N>& m) thread {
    for (size_t i = 0; i < N; ++i) columns[i] = m.columns[i];
  }
  thread Stored& operator=(const thread Stored& m) thread = default;
  thread Stored& operator=(const threadgroup Stored& m) thread = default;
  threadgroup Stored& operator=(const thread Stored& m) threadgroup = default;
  threadgroup Stored& operator=(const threadgroup Stored& m) threadgroup = default;
  threadgroup Stored& operator=(initializer_list<vec<T, N>> list) threadgroup {
    for (auto column = list.begin(); column != list.end(); ++column)
      columns[column - list.begin()] = *column;
    return *this;
  }
  operator matrix<T, N, N>() const threadgroup { return matrix<T, N, N>(columns[0], columns[1]); }
};

kernel void stored(device float2* x [[buffer(0)]], volatile device float4& seen [[buffer(1)]],
                   volatile threadgroup int2* t [[threadgroup(0)]]) {
  threadgroup Stored<float, 2> shared;
  Stored<float, 2> own = float2x2(1);
  shared = own;
  shared = {float2(1), float2(2)};
  float2x2 m = shared;
  volatile float2 last = m[1];
  float2 read = last;
  seen = float4(read, 1, 2);
  seen += float4(1);
  t[0] = int2(read);
  t[0] <<= int2(1);
  x[0] = m[0] + float4(seen).xy + float2(int2(t[0]));
}
