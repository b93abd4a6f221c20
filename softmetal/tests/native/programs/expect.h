/* Checks that name themselves: a program ends with the number of those that fail. */
#pragma once

#include <stdio.h>

static int failures;

#define EXPECT(...)                                                       \
  do {                                                                    \
    if (!(__VA_ARGS__)) {                                                 \
      failures++;                                                         \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
    }                                                                     \
  } while (0)
