/* The worker pool that all streams of an executor share, and the end of the process. */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

enum {
  WAKE_NS = 12000,   /* a job with a longer estimate is shared at once, */
  AWAKE_NS = 4000,   /* or with this estimate if no helper sleeps, */
  THREAD_NS = 500,   /* and this for each thread that is to see it */
  LATE_NS = 8000,    /* a job that has run longer is shared then */
  LONG_NS = 500000,  /* from this estimate on, helpers are moved to other processors, */
  APART_NS = 100000000, /* once in this time */
  SPIN_NS = 5000,    /* an idle thread looks for work so long before it sleeps, */
  LIST_NS = 100000,  /* or so long while a list of commands runs */
  MOST_NS = 2000000, /* the longest that it looks between lists that follow each other */
  CHECKS = 16,       /* of a spinning thread for each look at the clock */
};

bool sm_block_reserve(sm_block *block, size_t size) {
  if (SM_LIKELY(block->size >= size)) return true;
  size = (size + 0xffff) & ~(size_t)0xffff;
  char *address = softmetal_allocate(size);
  if (!address) return false;
  sm_block_free(block);
  *block = (sm_block){address, size};
  return true;
}

void sm_block_free(sm_block *block) {
  if (block->address) softmetal_free(block->address, block->size);
}

/* ---- workers --------------------------------------------------------------------------------- */

static sm_mutex workers_lock;
static sm_worker *all_workers;

sm_worker *sm_worker_new(sm_pool *pool) {
  sm_worker *worker = calloc(1, sizeof *worker);
  if (!worker || !(worker->stack = sm_stack_new())) {
    free(worker);
    return NULL;
  }
  worker->pool = pool;
  sm_lock(&workers_lock);
  worker->next = all_workers;
  all_workers = worker;
  sm_unlock(&workers_lock);
  return worker;
}

void sm_worker_free(sm_worker *worker) {
  sm_lock(&workers_lock);
  sm_worker **link = &all_workers;
  while (*link != worker) link = &(*link)->next;
  *link = worker->next;
  sm_unlock(&workers_lock);
  sm_stack_free(worker->stack);
  sm_block_free(&worker->statics);
  sm_block_free(&worker->scratch);
  for (int i = 0; i < SM_PANELS; i++) sm_block_free(&worker->panels[i]);
  if (worker->arena) sm_arena_free(worker->arena);
  free(worker->check);
  free(worker);
}

/* The runtime's threads block all signals except those that an instruction raises: Ctrl-C is for
   Python's main thread. */
bool sm_thread_start(pthread_t *thread, void *(*body)(void *), void *argument) {
  static const int raised[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof raised / sizeof *raised; i++) sigdelset(&blocked, raised[i]);
  sigdelset(&blocked, SM_INTERRUPT);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, SM_WORKER_STACK);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int failed = pthread_create(thread, &attributes, body, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return !failed;
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* A job's chunks are divided into a share for each thread. A thread takes its own from the front; one
   without takes the back half of another's. So a late thread delays nobody, neighbouring chunks run
   on one core, and equal jobs that follow each other find their data in the same core's cache. */

static sm_u64 share_of(sm_u64 first, sm_u64 end) { return end << 32 | first; }

static void divide(sm_pool *pool, sm_u64 first, sm_u64 end) {
  for (unsigned i = 0; i < pool->threads; i++) {
    sm_u64 from = first + (end - first) * i / pool->threads;
    sm_u64 to = first + (end - first) * (i + 1) / pool->threads;
    atomic_store_explicit(&pool->shares[i].chunks, share_of(from, to), memory_order_relaxed);
  }
}

/* The next chunk for a thread; false if none is left. */
static bool take(sm_pool *pool, unsigned self, sm_u64 *chunk) {
  for (unsigned i = 0; i < pool->threads; i++) {
    unsigned from = (self + i) % pool->threads;
    _Atomic sm_u64 *share = &pool->shares[from].chunks;
    sm_u64 seen = atomic_load_explicit(share, memory_order_relaxed);
    sm_u64 first, end;
    while ((first = (sm_u32)seen) < (end = seen >> 32)) {
      sm_u64 middle = end - (end - first + 1) / 2;
      sm_u64 left = i ? share_of(first, middle) : share_of(first + 1, end);
      if (!atomic_compare_exchange_weak_explicit(share, &seen, left, memory_order_relaxed,
                                                 memory_order_relaxed))
        continue;
      *chunk = i ? middle : first;
      if (i)
        atomic_store_explicit(&pool->shares[self].chunks, share_of(middle + 1, end),
                              memory_order_relaxed);
      return true;
    }
  }
  return false;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void run_chunk(sm_worker *worker, sm_job *job, sm_u64 chunk) {
  atomic_store_explicit(&worker->activity, job->activity, memory_order_relaxed);
  job->run(worker, job, chunk);
  sm_order_streamed_stores();
  atomic_store_explicit(&worker->activity, SM_BUSY, memory_order_relaxed);
  sm_checkpoint(worker);
}

/* Whether the thread had a chunk to run. */
static bool run_shares(sm_worker *worker, sm_job *job) {
  sm_u64 chunk;
  bool any = false;
  for (; !atomic_load_explicit(&job->faults, memory_order_relaxed) &&
         take(worker->pool, worker->place, &chunk);
       any = true)
    run_chunk(worker, job, chunk);
  return any;
}

static void help(sm_worker *worker, sm_job *job) {
  sm_pool *pool = worker->pool;
  if (job->prepare && job->prepare(worker, job)) return; /* the other workers do its part */
  atomic_store_explicit(&worker->since, job->start, memory_order_relaxed);
  sm_current_log = job->log;
  sm_u64 start = sm_now();
  if (run_shares(worker, job)) {
    sm_share *share = &pool->shares[worker->place];
    share->served = atomic_load_explicit(&pool->generation, memory_order_relaxed);
    share->worked = sm_now() - start;
  }
  atomic_store_explicit(&worker->since, 0, memory_order_relaxed);
}

static void leave(sm_pool *pool, sm_share *share) {
  atomic_store(&share->inside, 0);
  if (atomic_load(&pool->awaited)) sm_futex_wake(&share->inside, 1);
}

/* Enters the open job, if there is one. The job stays valid until `leave`: a helper says that it is
   inside before it looks whether the job is open, and the stream closes the job before it looks who
   is inside. Each helper says so on a cache line of its own, since 15 helpers that count themselves in
   one place wait for each other. */
static bool enter(sm_pool *pool, sm_share *share) {
  atomic_store(&share->inside, 1);
  if (atomic_load(&pool->open)) return true;
  leave(pool, share);
  return false;
}

/* ---- waiting and waking ---------------------------------------------------------------------- */

bool sm_spin(sm_pool *pool, atomic_uint *word, unsigned seen, bool idle) {
  sm_u64 start = sm_now();
  for (;;) {
    for (int i = 0; i < CHECKS; i++) {
      if (atomic_load_explicit(word, memory_order_relaxed) != seen) return true;
      sm_pause();
    }
    sm_u64 limit = SPIN_NS;
    if (idle) limit = atomic_load_explicit(&pool->patience, memory_order_relaxed);
    unsigned lists = atomic_load_explicit(&pool->lists, memory_order_relaxed);
    if (limit < LIST_NS && lists) limit = LIST_NS;
    sm_u64 spent = sm_now() - start;
    if (spent > limit) return false;
    /* For threads of the program, if they have no processor. Not within a list: a thread that yields to one
       that spins in another library gets its processor back after a time slice. */
    if (spent > SPIN_NS && !lists) sched_yield();
  }
}

/* Lists that follow each other at short intervals find the threads awake. */
void sm_pool_expect(sm_pool *pool, sm_u64 idle) {
  sm_u64 patience = atomic_load_explicit(&pool->patience, memory_order_relaxed);
  patience = 2 * idle <= MOST_NS && 2 * idle > patience ? 2 * idle : patience - patience / 8;
  if (patience < SPIN_NS) patience = SPIN_NS;
  atomic_store_explicit(&pool->patience, patience, memory_order_relaxed);
}

/* A processor is left to the program, so one helper does not wait for its next list. */
static unsigned await_generation(sm_worker *worker, unsigned seen) {
  sm_pool *pool = worker->pool;
  bool spare = worker->place + 1 < (unsigned)CPU_COUNT(&pool->processors);
  if (sm_spin(pool, &pool->generation, seen, spare)) return atomic_load(&pool->generation);
  atomic_fetch_add(&pool->sleepers, 1);
  unsigned generation;
  while ((generation = atomic_load(&pool->generation)) == seen)
    sm_futex_wait(&pool->generation, seen, ~(sm_u64)0);
  atomic_fetch_sub(&pool->sleepers, 1);
  return generation;
}

static void *helper_main(void *argument) {
  sm_worker *worker = argument;
  sm_pool *pool = worker->pool;
  char signal_stack[SM_SIGNAL_STACK];
  sm_guard_thread(worker, signal_stack);
  atomic_store(&worker->id, (int)syscall(SYS_gettid));
  for (unsigned seen = 0;;) {
    atomic_store(&worker->activity, SM_IDLE);
    seen = await_generation(worker, seen);
    atomic_store(&worker->activity, SM_BUSY);
    sm_checkpoint(worker);
    sm_share *share = &pool->shares[worker->place];
    if (!enter(pool, share)) continue;
    help(worker, pool->job);
    leave(pool, share);
  }
  return NULL;
}

/* Keeps helpers off the stream's processor. Linux puts them there when threads of another library
   spin on the others (numpy's do for 100 ms after a product), and does not move them back. Moving
   them costs more than it saves where the stream itself moves often. */
static void keep_apart(sm_pool *pool) {
  sm_u64 now = sm_now();
  if (now - pool->moved < APART_NS) return;
  pool->moved = now;
  int here = sched_getcpu();
  cpu_set_t others = pool->processors;
  CPU_CLR(here, &others);
  if (here == pool->avoided || CPU_COUNT(&others) == 0) return;
  pool->avoided = here;
  for (unsigned i = 0; i + 1 < pool->threads; i++) {
    int id = atomic_load(&pool->helpers[i]->id);
    if (!id || syscall(SYS_sched_setaffinity, id, sizeof others, &others)) pool->avoided = -1;
  }
}

/* Shares the chunks from `first` on; false if another stream has the pool. */
static bool open_job(sm_pool *pool, sm_job *job, sm_u64 first, double estimate) {
  if (atomic_load_explicit(&pool->busy, memory_order_relaxed) || atomic_exchange(&pool->busy, 1))
    return false;
  if (estimate > LONG_NS) keep_apart(pool);
  pool->job = job;
  divide(pool, first, job->chunks);
  atomic_store_explicit(&pool->open, true, memory_order_release);
  atomic_fetch_add(&pool->generation, 1);
  unsigned sleepers = atomic_load(&pool->sleepers), awake = pool->threads - 1 - sleepers;
  sm_u64 wanted = job->chunks - first - 1;
  if (wanted > awake && sleepers)
    sm_futex_wake(&pool->generation, wanted < INT_MAX ? (int)(wanted - awake) : INT_MAX);
  return true;
}

/* Waits for the helpers inside. */
static void close_job(sm_pool *pool, sm_job *job) {
  sm_u64 start = sm_now();
  atomic_store(&pool->open, false);
  unsigned generation = atomic_load_explicit(&pool->generation, memory_order_relaxed);
  for (unsigned i = 1; i < pool->threads; i++) {
    sm_share *share = &pool->shares[i];
    if (atomic_load(&share->inside) && !sm_spin(pool, &share->inside, 1, false)) {
      atomic_store(&pool->awaited, true);
      while (atomic_load(&share->inside)) sm_futex_wait(&share->inside, 1, ~(sm_u64)0);
      atomic_store(&pool->awaited, false);
    }
    if (share->served == generation) job->others += (double)share->worked;
  }
  job->others -= (double)(sm_now() - start);
  atomic_store(&pool->busy, 0);
}

static bool share(sm_worker *worker, sm_job *job, sm_u64 first, double estimate) {
  if (!open_job(worker->pool, job, first, estimate)) return false;
  run_shares(worker, job);
  close_job(worker->pool, job);
  return true;
}

void sm_pool_run(sm_worker *worker, sm_job *job, double estimate) {
  sm_pool *pool = worker->pool;
  bool candidate = pool->threads > 1 && job->chunks > 1 && job->chunks <= UINT_MAX;
  unsigned worthwhile = WAKE_NS;
  if (!atomic_load_explicit(&pool->sleepers, memory_order_relaxed))
    worthwhile = AWAKE_NS + pool->threads * THREAD_NS;
  atomic_store_explicit(&worker->since, job->start, memory_order_relaxed);
  if (!(candidate && estimate > worthwhile && share(worker, job, 0, estimate))) {
    sm_u64 start = candidate ? sm_now() : 0;
    for (sm_u64 chunk = 0; chunk < job->chunks && !job->faults; chunk++) {
      run_chunk(worker, job, chunk);
      bool late = candidate && chunk + 2 < job->chunks && sm_now() - start > LATE_NS;
      if (late && share(worker, job, chunk + 1, estimate)) break;
    }
  }
  atomic_store_explicit(&worker->since, 0, memory_order_relaxed);
}

/* Pools live as long as the process: executors are never destroyed. */
SM_EXPORT sm_pool *softmetal_new_pool(unsigned threads, sm_u64 timeout) {
  sm_pool *pool = aligned_alloc(_Alignof(sm_pool), sizeof *pool);
  if (!pool) return NULL;
  memset(pool, 0, sizeof *pool);
  pool->helpers = calloc(threads, sizeof *pool->helpers);
  pool->shares = aligned_alloc(_Alignof(sm_share), threads * sizeof *pool->shares);
  if (pool->shares) memset(pool->shares, 0, threads * sizeof *pool->shares);
  pool->patience = SPIN_NS;
  pool->avoided = -1;
  pool->timeout = timeout;
  syscall(SYS_sched_getaffinity, 0, sizeof pool->processors, &pool->processors);
  if (!pool->helpers || !pool->shares) threads = 1;
  for (pool->threads = 1; pool->threads < threads; pool->threads++) {
    sm_worker *worker = pool->helpers[pool->threads - 1] = sm_worker_new(pool);
    if (!worker) break;
    worker->place = pool->threads;
    pthread_t thread;
    if (!sm_thread_start(&thread, helper_main, worker)) break;
  }
  return pool;
}

/* ---- the time limit --------------------------------------------------------------------------- */

sm_u64 sm_interrupt_overdue(sm_u64 now, sm_u64 retry, sm_u64 latest) {
  sm_lock(&workers_lock);
  for (sm_worker *worker = all_workers; worker; worker = worker->next) {
    sm_u64 since = atomic_load(&worker->since), timeout = worker->pool->timeout;
    if (!since || !timeout) continue;
    sm_u64 next = since + timeout;
    if (next <= now) {
      atomic_store(&worker->overdue, since);
      if (atomic_load(&worker->kernel)) sm_interrupt(worker);
      next = retry;
    }
    if (next < latest) latest = next;
  }
  sm_unlock(&workers_lock);
  return latest;
}

/* ---- the end of the process ------------------------------------------------------------------ */

enum { STOP_KERNEL_MS = 50, STOP_BUSY_MS = 1000 };

static atomic_bool stopping;

static void sleep_forever(void) {
  for (;;) pause();
}

void sm_freeze_at_exit(void) {
  if (atomic_load(&stopping)) sleep_forever();
}

void sm_checkpoint(sm_worker *worker) {
  if (SM_LIKELY(!atomic_load_explicit(&stopping, memory_order_relaxed))) return;
  atomic_store(&worker->activity, SM_IDLE);
  sleep_forever();
}

/* Whether a thread is in an activity that has more than `elapsed` milliseconds to end. */
static bool must_wait(unsigned elapsed) {
  static const unsigned limit[] = {0, STOP_BUSY_MS, STOP_KERNEL_MS};
  for (sm_worker *worker = all_workers; worker; worker = worker->next)
    if (elapsed < limit[atomic_load(&worker->activity)]) return true;
  return false;
}

/* Called when Python exits, before it frees what kernels may be using. Threads stop at their next
   chunk; a thread that stays in a kernel is suspended. */
SM_EXPORT void softmetal_shutdown(void) {
  atomic_store(&stopping, true);
  sm_lock(&workers_lock);
  for (unsigned elapsed = 0; must_wait(elapsed); elapsed++) usleep(1000);
  for (sm_worker *worker = all_workers; worker; worker = worker->next)
    if (atomic_load(&worker->activity) == SM_IN_KERNEL) sm_interrupt(worker);
  sm_unlock(&workers_lock);
}
