// Neighbouring elements of type T that are read and written at once: a run of type V, which is one
// element, or words of 32 bits that hold several: uint, uint2 or uint4.
#pragma once
#include <metal_stdlib>
using namespace metal;

inline uint word_of(uint run, uint) { return run; }
inline uint word_of(uint2 run, uint i) { return run[i]; }
inline uint word_of(uint4 run, uint i) { return run[i]; }
inline void set_word(thread uint& run, uint, uint word) { run = word; }
inline void set_word(thread uint2& run, uint i, uint word) { run[i] = word; }
inline void set_word(thread uint4& run, uint i, uint word) { run[i] = word; }

// 16 of the 32 bytes of two vectors, from byte `from` on, which is even and less than 16.
inline uint4 bytes_of(uint4 low, uint4 high, uint from) {
  low = from & 8 ? uint4(low.zw, high.xy) : low;
  high.xy = from & 8 ? high.zw : high.xy;
  low = from & 4 ? uint4(low.yzw, high.x) : low;
  high.x = from & 4 ? high.y : high.x;
  return from & 2 ? low >> 16 | uint4(low.yzw, high.x) << 16 : low;
}

// The elements of words, by their size.
template <typename T, uint BYTES = sizeof(T)>
struct Words {
  enum : uint { IN = 4 / BYTES };  // elements in a word
  using Several = vec<T, IN>;
  template <typename V>
  static T element(V run, uint i) { return as_type<Several>(word_of(run, i / IN))[i % IN]; }
  static uint word(thread const T* at, uint i) {
    Several elements;
    for (uint j = 0; j < IN; j++) elements[j] = at[i * IN + j];
    return as_type<uint>(elements);
  }
};

template <typename T>
struct Words<T, 4> {
  template <typename V>
  static T element(V run, uint i) { return as_type<T>(word_of(run, i)); }
  static uint word(thread const T* at, uint i) { return as_type<uint>(at[i]); }
};

template <typename T>
struct Words<T, 8> {
  template <typename V>
  static T element(V run, uint i) {
    return as_type<T>(uint2(word_of(run, 2 * i), word_of(run, 2 * i + 1)));
  }
  static uint word(thread const T* at, uint i) { return as_type<uint2>(at[i / 2])[i % 2]; }
};

template <typename T, typename V>
struct Run {
  enum : uint { SIZE = sizeof(V) / sizeof(T) };
  static T element(V run, uint i) { return Words<T>::element(run, i); }
  static V of(thread const T* elements) {
    enum : uint { WORDS = sizeof(V) / sizeof(uint) };
    V run;
    for (uint i = 0; i < WORDS; i++) set_word(run, i, Words<T>::word(elements, i));
    return run;
  }
};

template <typename T>
struct Run<T, T> {
  enum : uint { SIZE = 1 };
  static T element(T run, uint) { return run; }
  static T of(thread const T* elements) { return *elements; }
};
