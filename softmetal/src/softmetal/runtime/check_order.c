/* Which dispatches are ordered: by encoders, barriers, fences, events and the host's waits. */
#include <stdlib.h>
#include <string.h>

#include "check_state.h"

/* As packing.py numbers them. */
enum { SERIAL, CONCURRENT, BARRIER, UPDATE_FENCE, WAIT_FENCE, CONCURRENCY, FROM, TO };
record sm_records[STAMPS];
static sm_u32 last_stamp;
bool sm_ordered[2][STAMPS];
atomic_bool sm_racing;
static sm_clock host_clock, queue_clock[SM_QUEUES];
static sm_u64 encoders;
static fence fences[FENCES];

static void merge(sm_clock *into, const sm_clock *from) {
  for (int i = 0; i < SM_QUEUES; i++)
    if (into->time[i] < from->time[i]) into->time[i] = from->time[i];
}

static void add_ancestor(ancestry *to, sm_u64 encoder) {
  for (sm_u32 i = 0; i < to->count && i < ANCESTORS; i++)
    if (to->encoder[i] == encoder) return;
  to->encoder[to->count++ % ANCESTORS] = encoder;
}

static bool is_ancestor(const ancestry *of, sm_u64 encoder) {
  for (sm_u32 i = 0; i < of->count && i < ANCESTORS; i++)
    if (of->encoder[i] == encoder) return true;
  return false;
}

static fence *fence_named(sm_u64 name) {
  fence *found = &fences[name * 0x9e3779b97f4a7c15ull >> 56];
  if (found->name != name) *found = (fence){.name = name};
  return found;
}

void sm_check_submitted(sm_submission *submission) {
  if (!atomic_load_explicit(&sm_racing, memory_order_relaxed)) return;
  if (!(submission->order = calloc(1, sizeof(sm_order)))) abort();
  sm_lock(&sm_check_lock);
  submission->order->clock = submission->order->seen = host_clock;
  submission->order->seed = sm_check_seed;
  sm_unlock(&sm_check_lock);
}

void sm_check_started(sm_submission *submission, sm_u32 queue) {
  sm_order *order = submission->order;
  if (!order) return;
  sm_lock(&sm_check_lock);
  order->queue = queue % SM_QUEUES;
  merge(&order->clock, &queue_clock[order->queue]);
  order->encoder = ++encoders;
  sm_unlock(&sm_check_lock);
}

void sm_check_order(sm_submission *submission, sm_u32 kind, sm_u64 value) {
  sm_order *order = submission->order;
  if (!order) return;
  sm_lock(&sm_check_lock);
  if (kind == SERIAL || kind == CONCURRENT) {
    order->encoder = ++encoders;
    order->phase = 0;
    order->concurrent = kind == CONCURRENT;
    order->before.count = order->barriers = 0;
  } else if (kind == BARRIER) {
    order->phase++;
  } else if (kind == FROM) {
    order->barrier[order->barriers % RESOURCE_BARRIERS].start = value;
  } else if (kind == TO) {
    order->barrier[order->barriers++ % RESOURCE_BARRIERS].end = value;
  } else if (kind == CONCURRENCY) { /* an indirect command buffer begins or ends */
    order->phase++;
    order->concurrent = value;
  } else if (kind == UPDATE_FENCE) {
    fence *to = fence_named(value);
    for (sm_u32 i = 0; i < order->before.count && i < ANCESTORS; i++)
      add_ancestor(&to->before, order->before.encoder[i]);
    add_ancestor(&to->before, order->encoder);
  } else if (kind == WAIT_FENCE) {
    const fence *from = fence_named(value);
    for (sm_u32 i = 0; i < from->before.count && i < ANCESTORS; i++)
      add_ancestor(&order->before, from->before.encoder[i]);
  }
  sm_unlock(&sm_check_lock);
}

static void add_signal(sm_signals *signals, sm_u64 value, const sm_clock *clock) {
  sm_u32 at = signals->count++ % SM_SIGNALS;
  signals->last[at].value = value;
  signals->last[at].clock = *clock;
}

/* A wait ends with the first signal that reaches its value. */
static void merge_signal(sm_clock *into, const sm_signals *signals, sm_u64 value) {
  sm_u32 first = signals->count > SM_SIGNALS ? signals->count - SM_SIGNALS : 0;
  for (sm_u32 i = first; i < signals->count; i++)
    if (signals->last[i % SM_SIGNALS].value >= value) {
      merge(into, &signals->last[i % SM_SIGNALS].clock);
      return;
    }
}

void sm_check_signal(sm_submission *submission, sm_signals *signals, sm_u64 value) {
  if (!submission->order) return;
  sm_lock(&sm_check_lock);
  add_signal(signals, value, &submission->order->clock);
  sm_unlock(&sm_check_lock);
}

void sm_check_wait(sm_submission *submission, const sm_signals *signals, sm_u64 value) {
  if (!submission->order) return;
  sm_lock(&sm_check_lock);
  merge_signal(&submission->order->clock, signals, value);
  merge_signal(&submission->order->seen, signals, value);
  sm_unlock(&sm_check_lock);
}

void sm_check_host_saw(const sm_clock *seen) {
  if (!atomic_load_explicit(&sm_racing, memory_order_relaxed)) return;
  sm_lock(&sm_check_lock);
  merge(&host_clock, seen);
  sm_unlock(&sm_check_lock);
}

void sm_check_host_signal(sm_signals *signals, sm_u64 value) {
  if (!atomic_load_explicit(&sm_racing, memory_order_relaxed)) return;
  sm_lock(&sm_check_lock);
  add_signal(signals, value, &host_clock);
  sm_unlock(&sm_check_lock);
}

void sm_check_host_wait(const sm_signals *signals, sm_u64 value) {
  if (!atomic_load_explicit(&sm_racing, memory_order_relaxed)) return;
  sm_lock(&sm_check_lock);
  merge_signal(&host_clock, signals, value);
  sm_unlock(&sm_check_lock);
}

const sm_clock *sm_order_clock(const sm_order *order) { return &order->clock; }

void sm_check_free(sm_submission *submission) {
  free(submission->order);
  free(submission->findings);
}

static bool comes_before(const record *first, const record *then, const sm_order *order,
                         bool tracked) {
  if (first->encoder == then->encoder) return first->phase != then->phase;
  if (first->queue != then->queue) return first->time <= order->clock.time[first->queue];
  return tracked || first->time <= order->seen.time[first->queue] ||
         is_ancestor(&order->before, first->encoder);
}

/* A stamp for the next dispatch or blit; also stores what is ordered before it. */
sm_u64 sm_new_stamp(sm_submission *submission, record now) {
  sm_order *order = submission->order;
  if (last_stamp == STAMPS - 1) {
    sm_age_shadow(STAMPS / 2);
    last_stamp -= STAMPS / 2;
    memmove(sm_records + 1, sm_records + 1 + STAMPS / 2, last_stamp * sizeof *sm_records);
  }
  if (order) {
    if (!order->concurrent) order->phase++;
    order->seed += 0x9e3779b97f4a7c15ull;
    now.queue = order->queue;
    now.time = ++queue_clock[order->queue].time[order->queue];
    now.encoder = order->encoder;
    now.phase = order->phase;
    now.barriers = order->barriers;
    for (sm_u32 i = 1; i <= last_stamp; i++)
      for (int tracked = 0; tracked < 2; tracked++)
        sm_ordered[tracked][i] = comes_before(&sm_records[i], &now, order, tracked);
    /* Last: a dispatch is not ordered before itself. */
    order->clock.time[order->queue] = now.time;
    merge(&queue_clock[order->queue], &order->clock);
  } else {
    memset(sm_ordered, 1, sizeof sm_ordered);
  }
  sm_records[++last_stamp] = now;
  return last_stamp;
}
/* Whether a barrier for the resource at `address` follows a dispatch of the current encoder. */
bool sm_barrier_since(const sm_order *order, const record *first, sm_u64 address) {
  if (!order || first->encoder != order->encoder) return false;
  if (order->barriers - first->barriers > RESOURCE_BARRIERS) return true; /* too old: not known */
  for (sm_u32 i = first->barriers; i < order->barriers; i++)
    if (address >= order->barrier[i % RESOURCE_BARRIERS].start &&
        address < order->barrier[i % RESOURCE_BARRIERS].end)
      return true;
  return false;
}
