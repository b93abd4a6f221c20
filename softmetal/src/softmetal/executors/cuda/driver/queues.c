/* Queues, their threads, and events. */
#include "driver.h"

enum { COUNT_BYTES = 64 };

static sm_ticket *take(sm_gpu_queue *queue) {
  for (;;) {
    unsigned arrivals = atomic_load(&queue->arrivals);
    sm_lock(&queue->lock);
    sm_ticket *ticket = queue->filling ? NULL : queue->first;
    bool closed = queue->closed && !queue->filling;
    if (ticket && !(queue->first = ticket->next)) queue->last = &queue->first;
    if (ticket) queue->filling = true;
    sm_unlock(&queue->lock);
    if (ticket || closed) return ticket;
    sm_futex_wait(&queue->arrivals, arrivals, ~(sm_u64)0);
  }
}

/* Waits for its lists, which use its memory. */
static void free_queue(sm_gpu_queue *queue) {
  sm_gpu *gpu = queue->gpu;
  if (sm_gpu_enter(gpu)) {
    cuStreamSynchronize(queue->stream);
    if (queue->blas) cublasDestroy(queue->blas);
  }
  sm_gpu_finish_for(&gpu->mirrors);
  sm_gpu_free_graphs(queue);
  if (sm_gpu_enter(gpu)) {
    cuStreamDestroy(queue->stream);
    cuEventDestroy(queue->reached);
    if (queue->patches) cuMemFree(queue->patches);
    if (queue->check_block) cuMemFree(queue->check_block);
  }
  softmetal_gpu_free_host(gpu, queue->counts, COUNT_BYTES);
  softmetal_gpu_free_host(gpu, queue->control, sizeof *queue->control);
  free(queue);
}

static void wake(sm_gpu_queue *queue) {
  atomic_fetch_add(&queue->arrivals, 1);
  sm_futex_wake(&queue->arrivals, 1);
}

/* Puts a list into the stream, on the thread that has set `filling`; whether others wait. */
static bool fill(sm_gpu_queue *queue, sm_ticket *ticket) {
  sm_gpu *gpu = queue->gpu;
  sm_gpu_run_list(queue, ticket);
  ticket->next = NULL;
  sm_lock(&gpu->sweep);
  *gpu->newest = ticket; /* with the queue's reference */
  gpu->newest = &ticket->next;
  atomic_store(&ticket->state, LAUNCHED);
  sm_unlock(&gpu->sweep);
  atomic_fetch_add(&gpu->launches, 1);
  if (atomic_load(&gpu->unwatched)) sm_futex_wake(&gpu->launches, 1);
  sm_lock(&queue->lock);
  queue->filling = false;
  const bool more = queue->first || queue->closed;
  sm_unlock(&queue->lock);
  return more;
}

static void *queue_main(void *argument) {
  sm_gpu_queue *queue = argument;
  sm_ticket *ticket;
  while ((ticket = take(queue))) {
    fill(queue, ticket);
    sm_futex_wake(&ticket->state, INT_MAX);
  }
  free_queue(queue);
  return NULL;
}

SM_EXPORT sm_gpu_queue *softmetal_gpu_new_queue(sm_gpu *gpu) {
  sm_gpu_queue *queue = calloc(1, sizeof *queue);
  pthread_t thread;
  if (!queue) return NULL;
  queue->gpu = gpu;
  queue->last = &queue->first;
  queue->counts = softmetal_gpu_allocate_host(gpu, COUNT_BYTES);
  queue->control = softmetal_gpu_allocate_host(gpu, sizeof *queue->control);
  if (!queue->counts || !queue->control || cuEventCreate(&queue->reached, CU_EVENT_NO_TIMING) ||
      cuStreamCreate(&queue->stream, CU_STREAM_NON_BLOCKING) ||
      pthread_create(&thread, NULL, queue_main, queue)) {
    free(queue);
    return NULL;
  }
  pthread_detach(thread);
  return queue;
}

SM_EXPORT CUstream softmetal_gpu_stream(const sm_gpu_queue *queue) { return queue->stream; }

SM_EXPORT void softmetal_gpu_free_queue(sm_gpu_queue *queue) {
  sm_lock(&queue->lock);
  queue->closed = true;
  wake(queue);
  sm_unlock(&queue->lock);
}

static sm_u32 written_buffers(sm_u64 kernel) { return ((const sm_gpu_kernel *)kernel)->written; }

SM_EXPORT sm_ticket *softmetal_gpu_submit(sm_gpu_queue *queue, const char *list, size_t size) {
  sm_ticket *ticket = calloc(1, sizeof *ticket + size);
  if (!ticket) return NULL;
  memcpy(ticket->list, list, size);
  ticket->size = size;
  ticket->gpu = queue->gpu;
  ticket->queue = queue;
  ticket->submitted = sm_now();
  atomic_init(&ticket->references, 2);
  const char *error = NULL;
  if (sm_gpu_enter(queue->gpu)) /* else the queue's thread fails it */
    error =
        sm_uses_collect(&ticket->uses, &queue->gpu->mirrors, ticket->list, size, written_buffers);
  /* After a fault of a kernel nothing can be copied: that is the error. */
  if (error && !sm_gpu_failed(ticket, cuStreamSynchronize(queue->gpu->copies)))
    sm_gpu_fail(ticket, "%s", error);
  atomic_fetch_add(&queue->unfinished, 1);
  sm_lock(&queue->lock);
  ticket->number = ++queue->lists;
  const bool here = !queue->first && !queue->filling && sm_gpu_is_prompt(queue, ticket);
  if (here) {
    queue->filling = true;
  } else {
    *queue->last = ticket;
    queue->last = &ticket->next;
    wake(queue);
  }
  sm_unlock(&queue->lock);
  if (here && fill(queue, ticket)) wake(queue);
  return ticket;
}

SM_EXPORT sm_gpu_event *softmetal_gpu_new_event(sm_gpu *gpu) {
  sm_gpu_event *event = calloc(1, sizeof *event);
  if (event && !(event->value = softmetal_gpu_allocate_host(gpu, sizeof *event->value))) {
    free(event);
    return NULL;
  }
  if (!event) return NULL;
  sm_lock(&gpu->events_lock);
  event->next = gpu->events;
  gpu->events = event;
  sm_unlock(&gpu->events_lock);
  return event;
}

SM_EXPORT void softmetal_gpu_free_event(sm_gpu *gpu, sm_gpu_event *event) {
  sm_lock(&gpu->events_lock);
  sm_gpu_event **place = &gpu->events;
  while (*place != event) place = &(*place)->next;
  *place = event->next;
  sm_unlock(&gpu->events_lock);
  softmetal_gpu_free_host(gpu, (void *)event->value, sizeof *event->value);
  free(event);
}

SM_EXPORT sm_u64 softmetal_gpu_event_value(sm_gpu_event *event) { return atomic_load(event->value); }

SM_EXPORT void softmetal_gpu_signal_event(sm_gpu_event *event, sm_u64 value) {
  unsigned long long present = atomic_load(event->value);
  while (present < value && !atomic_compare_exchange_weak(event->value, &present, value)) {
  }
  atomic_fetch_add(&event->sequence, 1);
  sm_futex_wake(&event->sequence, INT_MAX);
}

SM_EXPORT bool softmetal_gpu_wait_event(sm_gpu_event *event, sm_u64 value, sm_u64 nanoseconds) {
  const sm_u64 begin = sm_now();
  while (atomic_load(event->value) < value) {
    sm_u64 now = sm_now();
    if (now - begin >= nanoseconds) return false;
    if (now - begin > SPIN_NS) nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
    else sm_pause();
  }
  return true;
}
