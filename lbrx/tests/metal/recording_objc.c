/* An Objective-C runtime that records: each message is six words, its selector's number first. */
#include <stdint.h>
#include <string.h>

#define VISIBLE __attribute__((visibility("default")))

typedef struct {
  uint64_t width, height, depth;
} MTLSize;

VISIBLE uint64_t recorded[1 << 20];
VISIBLE uint64_t recorded_words;
static char names[64][128];

VISIBLE const char *sel_registerName(const char *name) {
  int n = 0;
  while (names[n][0] && strcmp(names[n], name)) n++;
  return strcpy(names[n], name);
}

VISIBLE const char *selector_name(uint64_t number) { return names[number]; }

static void record(uint64_t word) { recorded[recorded_words++] = word; }

static void record_bytes(const uint8_t *bytes, uint64_t length) {
  for (uint64_t i = 0; i < length; i++) record(bytes[i]);
}

static void record_sizes(MTLSize grid, MTLSize group) {
  record(grid.width), record(grid.height), record(grid.depth);
  record(group.width), record(group.height), record(group.depth);
}

static int takes(const char *selector, const char *name) { return !strcmp(selector, name); }

/* The arguments where the processor's calling convention has them: structures of 24 bytes are on
   the stack, or behind pointers on arm64. */
#ifdef __aarch64__
#define SIZES MTLSize *grid_at = (MTLSize *)a, *group_at = (MTLSize *)b
#define STACKED
#else
#define SIZES MTLSize *grid_at = &grid, *group_at = &group
#define STACKED , uint64_t d, MTLSize grid, MTLSize group
#endif
VISIBLE void objc_msgSend(void *self, const char *selector, uint64_t a, uint64_t b, uint64_t c STACKED) {
  record((uint64_t)(selector - names[0]) / sizeof names[0]);
  record((uint64_t)self);
  if (takes(selector, "setBuffer:offset:atIndex:")) record(a), record(b), record(c);
  else if (takes(selector, "setBytes:length:atIndex:"))
    record(b), record(c), record_bytes((const uint8_t *)a, b);
  else if (takes(selector, "setThreadgroupMemoryLength:atIndex:")) record(a), record(b);
  else if (takes(selector, "dispatchThreads:threadsPerThreadgroup:")) {
    SIZES;
    record_sizes(*grid_at, *group_at);
  } else record(a);
}
