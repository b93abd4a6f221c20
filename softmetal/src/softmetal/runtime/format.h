/* The text of a log message. */
#ifndef SOFTMETAL_FORMAT_H
#define SOFTMETAL_FORMAT_H

#include "words.h"

enum { SM_TEXT_BYTES = 1024 };

/* kinds[i]: 'i' int64, 'u' uint64, 'f' double, 's' string, 'p' pointer; the text ends with a zero. */
void sm_format(char text[SM_TEXT_BYTES], const char *format, const sm_u8 *kinds, const sm_u64 *bits,
               sm_u32 count);

#endif
