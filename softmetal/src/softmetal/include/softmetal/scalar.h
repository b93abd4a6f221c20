// MSL's scalar types, in metal:: and globally.
#ifndef SOFTMETAL_SCALAR_H
#define SOFTMETAL_SCALAR_H

namespace metal {
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef long ptrdiff_t;
typedef ulong size_t;
typedef long intptr_t;
typedef ulong uintptr_t;
typedef decltype(nullptr) nullptr_t;
static_assert(sizeof(long) == 8 && (char)-1 < 0, "MSL: long has 64 bits and char is signed");
}  // namespace metal

using metal::bfloat;
using metal::half;
using metal::int16_t;
using metal::int32_t;
using metal::int64_t;
using metal::int8_t;
using metal::intptr_t;
using metal::ptrdiff_t;
using metal::size_t;
using metal::uchar;
using metal::uint;
using metal::uint16_t;
using metal::uint32_t;
using metal::uint64_t;
using metal::uint8_t;
using metal::uintptr_t;
using metal::ulong;
using metal::ushort;

// M(type) for the scalar types of each kind.
#define SM_SIGNED_TYPES(M) M(char) M(short) M(int) M(long)
#define SM_UNSIGNED_TYPES(M) M(uchar) M(ushort) M(uint) M(ulong)
#define SM_INTEGER_TYPES(M) SM_SIGNED_TYPES(M) SM_UNSIGNED_TYPES(M)
#define SM_FLOAT_TYPES(M) M(float) M(half)
#define SM_SCALAR_TYPES(M) M(bool) SM_INTEGER_TYPES(M) SM_FLOAT_TYPES(M) M(bfloat)

#endif
