/* Clock, futex and mutex. pthread's condition variables are avoided: the library is linked without
   libc, and an unversioned reference would resolve to glibc's obsolete version. */
#ifndef SOFTMETAL_SYNC_H
#define SOFTMETAL_SYNC_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "words.h"

static inline sm_u64 sm_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (sm_u64)now.tv_sec * 1000000000u + (sm_u64)now.tv_nsec;
}

/* Sleeps while *word == expected, for at most `nanoseconds` (UINT64_MAX: no limit). May return
   early, also for a signal. */
static inline void sm_futex_wait(atomic_uint *word, unsigned expected, sm_u64 nanoseconds) {
  struct timespec limit = {(time_t)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected,
          nanoseconds == ~(sm_u64)0 ? NULL : &limit, NULL, 0);
}

static inline void sm_futex_wake(atomic_uint *word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void sm_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  __asm__ volatile("yield");
#endif
}

/* Stores past the caches become visible before later stores do. The other architectures order them
   with those of an atomic release. */
static inline void sm_order_streamed_stores(void) {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

typedef struct sm_mutex {
  atomic_uint word; /* 0 free, 1 held, 2 held and a thread may be waiting */
} sm_mutex;

static inline void sm_lock(sm_mutex *mutex) {
  unsigned expected = 0;
  if (atomic_compare_exchange_strong(&mutex->word, &expected, 1)) return;
  while (atomic_exchange(&mutex->word, 2)) sm_futex_wait(&mutex->word, 2, ~(sm_u64)0);
}

static inline void sm_unlock(sm_mutex *mutex) {
  if (atomic_exchange(&mutex->word, 0) == 2) sm_futex_wake(&mutex->word, 1);
}

#endif
