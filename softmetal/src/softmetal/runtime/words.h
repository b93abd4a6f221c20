/* Fixed-width types, and the limits of Metal that both sides of a command list know. */
#ifndef SOFTMETAL_WORDS_H
#define SOFTMETAL_WORDS_H

typedef __UINT8_TYPE__ sm_u8;
typedef __UINT32_TYPE__ sm_u32;
typedef __UINT64_TYPE__ sm_u64;

enum { SM_ABI = 1, SM_BUFFERS = 31, SM_LANES = 32, SM_MAX_THREADS = 1024 };

#endif
