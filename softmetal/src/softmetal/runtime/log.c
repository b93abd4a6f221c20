/* Messages that kernels print. A submission's messages go to one bounded block in which writers
   reserve room with an atomic addition; it is read once the submission is done. */
#include <string.h>
#include <sys/mman.h>

#include "format.h"
#include "runtime.h"

#define CAPACITY ((size_t)1 << 20)

_Thread_local sm_log *sm_current_log;

/* ---- the block ------------------------------------------------------------------------------- */

/* An entry: uint32 size (8-aligned, 0 in unused memory), uint32 level, then subsystem,
   category and text, each with its zero. */

static char *log_block(sm_log *log) {
  char *data = atomic_load(&log->data);
  if (data) return data;
  char *fresh =
      mmap(NULL, CAPACITY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) return NULL;
  if (atomic_compare_exchange_strong(&log->data, &data, fresh)) return fresh;
  munmap(fresh, CAPACITY);
  return data;
}

static char *append(char *to, const char *text) {
  size_t length = strlen(text) + 1;
  memcpy(to, text, length);
  return to + length;
}

static void store(sm_log *log, const char *parts[3], sm_u32 level) {
  size_t size = 8;
  for (int i = 0; i < 3; i++) size += strlen(parts[i]) + 1;
  size = (size + 7) & ~(size_t)7;
  char *data = log_block(log);
  size_t offset = data ? atomic_fetch_add(&log->used, size) : CAPACITY;
  if (offset + size > CAPACITY) {
    atomic_fetch_add(&log->dropped, 1);
    return;
  }
  sm_u32 head[2] = {(sm_u32)size, level};
  char *to = data + offset;
  memcpy(to, head, sizeof head);
  to += sizeof head;
  for (int i = 0; i < 3; i++) to = append(to, parts[i]);
}

SM_EXPORT void softmetal_log(const char *subsystem, const char *category, sm_u32 level,
                             const char *format, const sm_u8 *kinds, const sm_u64 *bits,
                             sm_u32 count) {
  sm_log *log = sm_current_log;
  if (!log) return;
  char text[SM_TEXT_BYTES];
  sm_format(text, format, kinds, bits, count);
  const char *parts[3] = {subsystem ? subsystem : "", category ? category : "", text};
  store(log, parts, level);
}

void sm_log_free(sm_log *log) {
  char *data = atomic_load(&log->data);
  if (data) munmap(data, CAPACITY);
}

void sm_log_read(sm_log *log, sm_outcome *outcome) {
  size_t used = atomic_load(&log->used);
  outcome->log = (sm_u64)atomic_load(&log->data);
  outcome->log_bytes = used < CAPACITY ? used : CAPACITY;
  outcome->log_dropped = atomic_load(&log->dropped);
}
