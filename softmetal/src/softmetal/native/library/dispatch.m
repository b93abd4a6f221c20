/* libdispatch on threads: queues, groups, semaphores and data. */
#include "native.h"

#import <Foundation/Foundation.h>
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

typedef void (*block_call)(void *);
static void call(struct block *block) { ((block_call)block->invoke)(block); }

static void start_thread(void *(*run)(void *), void *argument) {
  pthread_t thread;
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  int failed = pthread_create(&thread, &detached, run, argument);
  if (failed) softmetal_fatal("cannot start a thread for a dispatch queue: %s", strerror(failed));
  pthread_attr_destroy(&detached);
}

/* ---- semaphores and groups: a count that threads wait for ---- */

static struct timespec time_at(dispatch_time_t when) {
  return (struct timespec){(time_t)(when / NSEC_PER_SEC), (long)(when % NSEC_PER_SEC)};
}

dispatch_time_t dispatch_time(dispatch_time_t when, int64_t nanoseconds) {
  if (when == DISPATCH_TIME_FOREVER) return when;
  return (when ? when : mach_absolute_time()) + (uint64_t)nanoseconds;
}

@interface SoftmetalCounter : NSObject {
@public
  pthread_mutex_t mutex;
  _Atomic uint32_t changes; /* threads wait for its next value */
  intptr_t count;
}
@end

@implementation SoftmetalCounter
- (instancetype)init {
  pthread_mutex_init(&mutex, NULL);
  return self;
}
- (void)dealloc {
  pthread_mutex_destroy(&mutex);
  [super dealloc];
}
@end

/* Called with the mutex held. The C library's condition variables are not used: without a version
   of their names, which this library does not have, x86-64 gets the oldest ones, which have no
   monotonic clock. */
static void announce(SoftmetalCounter *counter, int waiters) {
  atomic_fetch_add(&counter->changes, 1);
  syscall(SYS_futex, &counter->changes, FUTEX_WAKE_PRIVATE, waiters, NULL, NULL, 0);
}

/* Waits for the next change; returns whether the time is over. */
static int wait_until(SoftmetalCounter *counter, dispatch_time_t when) {
  if (when == DISPATCH_TIME_NOW) return 1;
  struct timespec end = time_at(when), *limit = when == DISPATCH_TIME_FOREVER ? NULL : &end;
  uint32_t seen = atomic_load(&counter->changes);
  pthread_mutex_unlock(&counter->mutex);
  long failed = syscall(SYS_futex, &counter->changes, FUTEX_WAIT_BITSET_PRIVATE, seen, limit, NULL,
                        FUTEX_BITSET_MATCH_ANY);
  int late = failed && errno == ETIMEDOUT;
  pthread_mutex_lock(&counter->mutex);
  return late;
}

@interface SoftmetalGroup : SoftmetalCounter {
@public
  NSMutableArray *notifications; /* pairs of a queue and a block */
}
@end

@implementation SoftmetalGroup
- (void)dealloc {
  [notifications release];
  [super dealloc];
}
@end

#define COUNTER(object) ((SoftmetalCounter *)(id)(object))

dispatch_semaphore_t dispatch_semaphore_create(intptr_t value) {
  SoftmetalCounter *counter = [[SoftmetalCounter alloc] init];
  counter->count = value;
  return (id)counter;
}

intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore) {
  SoftmetalCounter *counter = COUNTER(semaphore);
  pthread_mutex_lock(&counter->mutex);
  counter->count++;
  announce(counter, 1);
  pthread_mutex_unlock(&counter->mutex);
  return 0;
}

intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout) {
  SoftmetalCounter *counter = COUNTER(semaphore);
  int late = 0;
  pthread_mutex_lock(&counter->mutex);
  while (counter->count <= 0 && !late) late = wait_until(counter, timeout);
  int got = counter->count > 0;
  counter->count -= got;
  pthread_mutex_unlock(&counter->mutex);
  return !got;
}

dispatch_group_t dispatch_group_create(void) { return (id)[[SoftmetalGroup alloc] init]; }

void dispatch_group_enter(dispatch_group_t group) {
  SoftmetalCounter *counter = COUNTER(group);
  pthread_mutex_lock(&counter->mutex);
  counter->count++;
  pthread_mutex_unlock(&counter->mutex);
}

static void notify(NSArray *notifications) {
  for (NSUInteger i = 0; i < [notifications count]; i += 2)
    dispatch_async([notifications objectAtIndex:i], [notifications objectAtIndex:i + 1]);
}

void dispatch_group_leave(dispatch_group_t group) {
  SoftmetalGroup *all = (SoftmetalGroup *)(id)group;
  NSArray *due = nil;
  pthread_mutex_lock(&all->mutex);
  if (--all->count < 0) softmetal_fatal("dispatch_group_leave without dispatch_group_enter");
  if (!all->count) due = all->notifications, all->notifications = nil;
  announce(all, INT_MAX);
  pthread_mutex_unlock(&all->mutex);
  notify(due);
  [due release];
}

intptr_t dispatch_group_wait(dispatch_group_t group, dispatch_time_t timeout) {
  SoftmetalCounter *counter = COUNTER(group);
  int late = 0;
  pthread_mutex_lock(&counter->mutex);
  while (counter->count > 0 && !late) late = wait_until(counter, timeout);
  int left = counter->count > 0;
  pthread_mutex_unlock(&counter->mutex);
  return left;
}

/* ---- queues: first in, first out, on as many threads as blocks run at once ---- */

enum { WIDTH = 64 }; /* as many threads as Apple's global queues start */

struct item {
  struct item *next;
  void *block;
  int alone; /* a barrier */
};

@interface SoftmetalQueue : NSObject {
@public
  pthread_mutex_t mutex;
  struct item *first, **last;
  int width, workers;
  int running, alone; /* blocks that run, and whether the one that does is a barrier */
}
@end

@implementation SoftmetalQueue
- (instancetype)init {
  pthread_mutex_init(&mutex, NULL);
  last = &first;
  return self;
}
- (void)dealloc {
  pthread_mutex_destroy(&mutex);
  [super dealloc];
}
@end

#define QUEUE(object) ((SoftmetalQueue *)(id)(object))

char _dispatch_queue_attr_concurrent[1];

static SoftmetalQueue *new_queue(int width) {
  SoftmetalQueue *queue = [[SoftmetalQueue alloc] init];
  queue->width = width;
  return queue;
}

dispatch_queue_t dispatch_queue_create(const char *label, dispatch_queue_attr_t attributes) {
  return (id)new_queue((void *)attributes == _dispatch_queue_attr_concurrent ? WIDTH : 1);
}

dispatch_queue_attr_t dispatch_queue_attr_make_with_qos_class(dispatch_queue_attr_t attributes,
                                                              dispatch_qos_class_t class,
                                                              int priority) {
  return attributes;
}

static SoftmetalQueue *shared_queue(int serial) {
  static _Atomic(SoftmetalQueue *) queues[2];
  SoftmetalQueue *known = atomic_load(&queues[serial]);
  if (known) return known;
  SoftmetalQueue *made = new_queue(serial ? 1 : WIDTH);
  if (atomic_compare_exchange_strong(&queues[serial], &known, made)) return made;
  [made release];
  return known;
}

dispatch_queue_t dispatch_get_global_queue(intptr_t identifier, uintptr_t flags) {
  return (id)shared_queue(0);
}

/* There is no run loop: blocks of the main queue run on a thread of their own. */
dispatch_queue_t dispatch_get_main_queue(void) { return (id)shared_queue(1); }

static void run_pooled(struct block *block) {
  void *pool = objc_autoreleasePoolPush();
  call(block);
  objc_autoreleasePoolPop(pool);
}

/* These three are called with the queue's mutex held. Who ends a block looks for the next one. */
static int may_start(SoftmetalQueue *queue, int alone) {
  return !queue->alone && queue->running < (alone ? 1 : queue->width);
}

static void start(SoftmetalQueue *queue, int alone) {
  queue->running++;
  queue->alone = alone;
}

static int wants_worker(SoftmetalQueue *queue) {
  int wants =
      queue->first && queue->workers < queue->width && may_start(queue, queue->first->alone);
  queue->workers += wants;
  return wants;
}

static void *run_queue(void *queue);

static void end(SoftmetalQueue *queue) {
  pthread_mutex_lock(&queue->mutex);
  queue->running--;
  queue->alone = 0;
  pthread_mutex_unlock(&queue->mutex);
}

static struct item *take(SoftmetalQueue *queue) {
  pthread_mutex_lock(&queue->mutex);
  struct item *item = queue->first;
  if (item && may_start(queue, item->alone)) {
    queue->first = item->next;
    if (!queue->first) queue->last = &queue->first;
    start(queue, item->alone);
  } else {
    item = NULL;
    queue->workers--;
  }
  int more = item && wants_worker(queue);
  pthread_mutex_unlock(&queue->mutex);
  if (more) start_thread(run_queue, [queue retain]);
  return item;
}

static void *run_queue(void *queue) {
  for (struct item *item; (item = take(queue));) {
    run_pooled(item->block);
    _Block_release(item->block);
    free(item);
    end(queue);
  }
  [(id)queue release];
  return NULL;
}

static void add(dispatch_queue_t given, dispatch_block_t block, int alone) {
  SoftmetalQueue *queue = QUEUE(given);
  struct item *item = softmetal_allocate(sizeof *item);
  *item = (struct item){NULL, _Block_copy(block), alone};
  pthread_mutex_lock(&queue->mutex);
  *queue->last = item;
  queue->last = &item->next;
  int wants = wants_worker(queue);
  pthread_mutex_unlock(&queue->mutex);
  if (wants) start_thread(run_queue, [queue retain]);
}

/* Runs the block here and now, if nothing is before it; whether it did. */
static int run_here(SoftmetalQueue *queue, dispatch_block_t block, int alone) {
  pthread_mutex_lock(&queue->mutex);
  int free = !queue->first && may_start(queue, alone);
  if (free) start(queue, alone);
  pthread_mutex_unlock(&queue->mutex);
  if (!free) return 0;
  run_pooled((struct block *)block);
  end(queue);
  pthread_mutex_lock(&queue->mutex);
  int wants = wants_worker(queue);
  pthread_mutex_unlock(&queue->mutex);
  if (wants) start_thread(run_queue, [queue retain]);
  return 1;
}

static void add_and_wait(dispatch_queue_t queue, dispatch_block_t block, int alone) {
  if (run_here(QUEUE(queue), block, alone)) return;
  dispatch_semaphore_t done = dispatch_semaphore_create(0);
  add(
      queue,
      ^{
        call((struct block *)block);
        dispatch_semaphore_signal(done);
      },
      alone);
  dispatch_semaphore_wait(done, DISPATCH_TIME_FOREVER);
  [done release];
}

/* In the queue that everybody shares a barrier is a block like others, as by Apple. */
static int is_barrier(dispatch_queue_t queue) { return QUEUE(queue) != shared_queue(0); }

void dispatch_async(dispatch_queue_t queue, dispatch_block_t block) { add(queue, block, 0); }

void dispatch_barrier_async(dispatch_queue_t queue, dispatch_block_t block) {
  add(queue, block, is_barrier(queue));
}

void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block) {
  add_and_wait(queue, block, 0);
}

void dispatch_barrier_sync(dispatch_queue_t queue, dispatch_block_t block) {
  add_and_wait(queue, block, is_barrier(queue));
}

void dispatch_async_f(dispatch_queue_t queue, void *context, dispatch_function_t work) {
  dispatch_async(queue, ^{
    work(context);
  });
}

void dispatch_sync_f(dispatch_queue_t queue, void *context, dispatch_function_t work) {
  dispatch_sync(queue, ^{
    work(context);
  });
}

void dispatch_apply(size_t iterations, dispatch_queue_t queue, void (^block)(size_t)) {
  __block _Atomic size_t next = 0;
  void (^work)(void) = ^{
    for (size_t i; (i = atomic_fetch_add(&next, 1)) < iterations;) block(i);
  };
  SoftmetalQueue *given = QUEUE(queue);
  size_t processors = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
  size_t helpers = given && given->width == 1 ? 0 : MIN(iterations, processors);
  dispatch_group_t group = dispatch_group_create();
  for (size_t i = 1; i < helpers; i++) dispatch_group_async(group, (id)shared_queue(0), work);
  work();
  dispatch_group_wait(group, DISPATCH_TIME_FOREVER);
  [group release];
}

void dispatch_once(dispatch_once_t *predicate, dispatch_block_t block) {
  static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  if (__atomic_load_n(predicate, __ATOMIC_ACQUIRE)) return;
  pthread_mutex_lock(&lock);
  if (!*predicate) {
    block();
    __atomic_store_n(predicate, ~0l, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
}

struct delayed {
  dispatch_time_t when;
  dispatch_queue_t queue;
  void *block;
};

static void *wait_and_add(void *argument) {
  struct delayed delayed = *(struct delayed *)argument;
  free(argument);
  struct timespec end = time_at(delayed.when);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR) {
  }
  dispatch_async(delayed.queue, delayed.block);
  _Block_release(delayed.block);
  [delayed.queue release];
  return NULL;
}

void dispatch_after(dispatch_time_t when, dispatch_queue_t queue, dispatch_block_t block) {
  struct delayed *delayed = softmetal_allocate(sizeof *delayed);
  *delayed = (struct delayed){when, [queue retain], _Block_copy(block)};
  start_thread(wait_and_add, delayed);
}

void dispatch_group_async(dispatch_group_t group, dispatch_queue_t queue, dispatch_block_t block) {
  dispatch_group_enter(group);
  dispatch_async(queue, ^{
    block();
    dispatch_group_leave(group);
  });
}

void dispatch_group_notify(dispatch_group_t group, dispatch_queue_t queue, dispatch_block_t block) {
  SoftmetalGroup *all = (SoftmetalGroup *)(id)group;
  pthread_mutex_lock(&all->mutex);
  int pending = all->count > 0;
  if (pending) {
    if (!all->notifications) all->notifications = [[NSMutableArray alloc] init];
    id copy = _Block_copy(block);
    [all->notifications addObject:queue];
    [all->notifications addObject:copy];
    [copy release];
  }
  pthread_mutex_unlock(&all->mutex);
  if (!pending) dispatch_async(queue, block);
}

void dispatch_retain(dispatch_object_t object) { objc_retain(object); }
void dispatch_release(dispatch_object_t object) { objc_release(object); }

/* ---- data: dispatch_data_t is an NSData, as on a Mac ---- */

dispatch_data_t dispatch_data_create(const void *buffer, size_t size, dispatch_queue_t queue,
                                     dispatch_block_t destructor) {
  id data = softmetal_data(buffer, size);
  if (destructor) destructor();
  return data;
}

size_t dispatch_data_get_size(dispatch_data_t data) { return [(NSData *)(id)data length]; }
