/* printf formats with Metal's additions, on values that kernels logged. */
#include "format.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { SPEC_BYTES = 32 };

typedef struct output {
  char *at, *end; /* `end` leaves room for the final zero */
} output;

static void put(output *out, const char *text, size_t length) {
  size_t room = (size_t)(out->end - out->at);
  if (length > room) length = room;
  memcpy(out->at, text, length);
  out->at += length;
}

/* One conversion of a format: "%-8.3hlf" is flags "-", width 8, precision 3, letter 'f'. */
typedef struct conversion {
  char spec[SPEC_BYTES]; /* '%', flags, width and precision: what snprintf gets, without letter */
  size_t length;
  unsigned elements; /* %v4f takes 4 values */
  int longs;         /* 64-bit modifiers seen */
  char letter;
} conversion;

typedef struct values {
  const sm_u8 *kinds;
  const sm_u64 *bits;
  sm_u32 count, next;
} values;

static void add_number(conversion *c, long long number) {
  if (number > 999) number = 999;
  if (number < -999) number = -999;
  int written = snprintf(c->spec + c->length, SPEC_BYTES - 8 - c->length, "%lld", number);
  c->length += (size_t)written;
}

static const char *read_number(conversion *c, const char *format, values *arguments) {
  if (*format == '*') {
    if (arguments->next < arguments->count)
      add_number(c, (long long)arguments->bits[arguments->next++]);
    return format + 1;
  }
  long long number = 0;
  bool any = false;
  for (; *format >= '0' && *format <= '9'; format++, any = true)
    if (number < 1000) number = number * 10 + (*format - '0');
  if (any) add_number(c, number);
  return format;
}

/* Reads the conversion after a '%'; returns where the format goes on. */
static const char *read_conversion(conversion *c, const char *format, values *arguments) {
  *c = (conversion){.spec = "%", .length = 1, .elements = 1};
  while (*format && strchr("-+ #0", *format)) {
    if (c->length < 6) c->spec[c->length++] = *format;
    format++;
  }
  format = read_number(c, format, arguments);
  if (*format == '.') {
    c->spec[c->length++] = '.';
    format = read_number(c, format + 1, arguments);
  }
  if (*format == 'v') {
    c->elements = 0;
    for (format++; *format >= '0' && *format <= '9'; format++)
      c->elements = c->elements * 10 + (unsigned)(*format - '0');
  }
  for (; *format && strchr("hlLqjzt", *format); format++)
    c->longs += *format != 'h' ? 1 : -1; /* "hl" is OpenCL's 32 bits */
  c->letter = *format;
  return *format ? format + 1 : format;
}

static double as_double(sm_u8 kind, sm_u64 bits) {
  double number;
  memcpy(&number, &bits, sizeof number);
  if (kind == 'f') return number;
  return kind == 'i' ? (double)(long long)bits : (double)bits;
}

static long long as_integer(sm_u8 kind, sm_u64 bits) {
  return kind == 'f' ? (long long)as_double(kind, bits) : (long long)bits;
}

/* Formats one value by handing snprintf the same conversion with a 64-bit modifier. */
static void put_value(output *out, conversion *c, sm_u8 kind, sm_u64 bits) {
  char text[SM_TEXT_BYTES];
  char *tail = c->spec + c->length;
  int written = 0;
  if (strchr("di", c->letter)) {
    strcpy(tail, "lld");
    written = snprintf(text, sizeof text, c->spec, as_integer(kind, bits));
  } else if (strchr("uxXo", c->letter)) {
    unsigned long long number = (unsigned long long)as_integer(kind, bits);
    if (kind == 'i' && c->longs <= 0) number = (sm_u32)number;
    memcpy(tail, "ll", 2);
    tail[2] = c->letter;
    tail[3] = 0;
    written = snprintf(text, sizeof text, c->spec, number);
  } else if (strchr("fFeEgGaA", c->letter)) {
    tail[0] = c->letter;
    tail[1] = 0;
    written = snprintf(text, sizeof text, c->spec, as_double(kind, bits));
  } else if (c->letter == 'c') {
    strcpy(tail, "c");
    written = snprintf(text, sizeof text, c->spec, (int)as_integer(kind, bits));
  } else if (c->letter == 's') {
    strcpy(tail, "s");
    const char *string = kind == 's' && bits ? (const char *)bits : "(null)";
    written = snprintf(text, sizeof text, c->spec, string);
  } else if (c->letter == 'p') {
    strcpy(tail, "p");
    written = snprintf(text, sizeof text, c->spec, (void *)bits);
  }
  if (written > 0) put(out, text, written < SM_TEXT_BYTES ? (size_t)written : SM_TEXT_BYTES - 1);
}

static void put_conversion(output *out, conversion *c, values *arguments) {
  for (unsigned i = 0; i < c->elements; i++) {
    if (i) put(out, ",", 1);
    if (arguments->next == arguments->count) {
      put(out, "(missing)", 9);
      return;
    }
    sm_u32 next = arguments->next++;
    put_value(out, c, arguments->kinds[next], arguments->bits[next]);
  }
}

static void format_text(output *out, const char *format, values *arguments) {
  while (*format) {
    size_t plain = strcspn(format, "%");
    put(out, format, plain);
    format += plain;
    if (!*format) break;
    const char *start = format++;
    if (*format == '%') {
      put(out, format++, 1);
      continue;
    }
    conversion c;
    format = read_conversion(&c, format, arguments);
    if (c.letter && strchr("diuxXofFeEgGaAcsp", c.letter))
      put_conversion(out, &c, arguments);
    else
      put(out, start, (size_t)(format - start));
  }
}

void sm_format(char text[SM_TEXT_BYTES], const char *format, const sm_u8 *kinds, const sm_u64 *bits,
               sm_u32 count) {
  output out = {text, text + SM_TEXT_BYTES - 1};
  values arguments = {kinds, bits, count, 0};
  format_text(&out, format, &arguments);
  *out.at = 0;
}
