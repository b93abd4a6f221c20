/* Monotonic counters that streams and the host signal and wait for. */
#include <stdlib.h>

#include "check.h"

struct sm_event {
  sm_signals signals; /* for the checking modes */
  atomic_ullong value;
  atomic_uint sequence; /* incremented by every signal */
  atomic_uint waiters;
};

SM_EXPORT sm_event *softmetal_new_event(void) { return calloc(1, sizeof(sm_event)); }

SM_EXPORT void softmetal_free_event(sm_event *event) { free(event); }

SM_EXPORT sm_u64 softmetal_event_value(sm_event *event) { return atomic_load(&event->value); }

/* A value below the current one has no effect. */
void sm_event_signal(sm_event *event, sm_u64 value) {
  unsigned long long present = atomic_load(&event->value);
  while (present < value && !atomic_compare_exchange_weak(&event->value, &present, value)) {
  }
  atomic_fetch_add(&event->sequence, 1);
  if (atomic_load(&event->waiters)) sm_futex_wake(&event->sequence, INT_MAX);
}

sm_signals *sm_event_signals(sm_event *event) { return &event->signals; }

SM_EXPORT void softmetal_signal_event(sm_event *event, sm_u64 value) {
  sm_check_host_signal(&event->signals, value);
  sm_event_signal(event, value);
}

/* Waits once, at most `nanoseconds`, and may return early. True if the value is reached. */
bool sm_event_wait(sm_event *event, sm_u64 value, sm_u64 nanoseconds) {
  if (atomic_load(&event->value) >= value) return true;
  atomic_fetch_add(&event->waiters, 1);
  unsigned sequence = atomic_load(&event->sequence);
  if (atomic_load(&event->value) < value) sm_futex_wait(&event->sequence, sequence, nanoseconds);
  atomic_fetch_sub(&event->waiters, 1);
  return atomic_load(&event->value) >= value;
}

SM_EXPORT bool softmetal_wait_event(sm_event *event, sm_u64 value, sm_u64 nanoseconds) {
  bool reached = sm_event_wait(event, value, nanoseconds);
  if (reached) sm_check_host_wait(&event->signals, value);
  return reached;
}
