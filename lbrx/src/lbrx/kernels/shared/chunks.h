// Chunks: neighbouring elements of an array that are read or written at once, as 2 to 16 bytes at
// an address that is a multiple of their size. Indices of elements are constants after unrolling.
#pragma once
#include <metal_stdlib>
using namespace metal;

template <uint BYTES> struct ChunkBits;
template <> struct ChunkBits<2> { typedef ushort type; };
template <> struct ChunkBits<4> { typedef uint type; };
template <> struct ChunkBits<8> { typedef uint2 type; };
template <> struct ChunkBits<16> { typedef uint4 type; };

// The 32-bit word of a chunk with this number.
inline uint chunk_word(ushort bits, uint) { return bits; }
inline uint chunk_word(uint bits, uint) { return bits; }
inline uint chunk_word(uint2 bits, uint i) { return bits[i]; }
inline uint chunk_word(uint4 bits, uint i) { return bits[i]; }
inline void add_word(thread ushort& bits, uint, uint word) { bits |= ushort(word); }
inline void add_word(thread uint& bits, uint, uint word) { bits |= word; }
inline void add_word(thread uint2& bits, uint i, uint word) { bits[i] |= word; }
inline void add_word(thread uint4& bits, uint i, uint word) { bits[i] |= word; }

// Elements from and to the bits of a chunk, by their size.
template <typename T, uint SIZE = sizeof(T)> struct ChunkElement;
template <typename T> struct ChunkElement<T, 1> {
  template <typename B> static T get(B bits, uint i) {
    return as_type<T>(uchar(chunk_word(bits, i / 4) >> (8 * (i % 4))));
  }
  template <typename B> static void put(thread B& bits, uint i, T x) {
    add_word(bits, i / 4, uint(as_type<uchar>(x)) << (8 * (i % 4)));
  }
};
template <> struct ChunkElement<bool, 1> {
  template <typename B> static bool get(B bits, uint i) {
    return ChunkElement<uchar>::get(bits, i) != 0;
  }
  template <typename B> static void put(thread B& bits, uint i, bool x) {
    ChunkElement<uchar>::put(bits, i, uchar(x));
  }
};
template <typename T> struct ChunkElement<T, 2> {
  template <typename B> static T get(B bits, uint i) {
    return as_type<T>(ushort(chunk_word(bits, i / 2) >> (16 * (i % 2))));
  }
  template <typename B> static void put(thread B& bits, uint i, T x) {
    add_word(bits, i / 2, uint(as_type<ushort>(x)) << (16 * (i % 2)));
  }
};
template <typename T> struct ChunkElement<T, 4> {
  template <typename B> static T get(B bits, uint i) { return as_type<T>(chunk_word(bits, i)); }
  template <typename B> static void put(thread B& bits, uint i, T x) {
    add_word(bits, i, as_type<uint>(x));
  }
};
template <typename T> struct ChunkElement<T, 8> {
  template <typename B> static T get(B bits, uint i) {
    return as_type<T>(uint2(chunk_word(bits, 2 * i), chunk_word(bits, 2 * i + 1)));
  }
  template <typename B> static void put(thread B& bits, uint i, T x) {
    const uint2 words = as_type<uint2>(x);
    add_word(bits, 2 * i, words.x), add_word(bits, 2 * i + 1, words.y);
  }
};

template <typename T, uint N> struct Chunk {
  typedef typename ChunkBits<sizeof(T) * N>::type Bits;
  Bits bits = Bits(0);
  T get(uint i) const { return ChunkElement<T>::get(bits, i); }
  void put(uint i, T x) { ChunkElement<T>::put(bits, i, x); }  // into a chunk of zeros
};
