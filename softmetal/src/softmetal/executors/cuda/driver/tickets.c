/* Lists that were launched: their errors, what they changed, and waiting for them. */
#include "driver.h"

void sm_gpu_fail(sm_ticket *ticket, const char *format, ...) {
  if (ticket->error) return;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&ticket->error, format, arguments) < 0) ticket->error = NULL;
  va_end(arguments);
}

bool sm_gpu_failed(sm_ticket *ticket, CUresult code) {
  char text[ERROR_BYTES];
  if (sm_gpu_is_fatal(code)) ticket->fatal = code; /* `finish` tells more about it */
  else if (code) sm_gpu_fail(ticket, "%s", sm_gpu_describe(code, text));
  return code;
}

static CUresult take_event(sm_gpu *gpu, CUevent *to) {
  sm_lock(&gpu->spare_lock);
  if (gpu->spare_count) *to = gpu->spare[--gpu->spare_count];
  sm_unlock(&gpu->spare_lock);
  return *to ? 0 : cuEventCreate(to, 0);
}

static void give_event(sm_gpu *gpu, CUevent event) {
  sm_lock(&gpu->spare_lock);
  const bool room = gpu->spare_count < SPARE_EVENTS;
  if (room) gpu->spare[gpu->spare_count++] = event;
  sm_unlock(&gpu->spare_lock);
  if (!room && sm_gpu_enter(gpu)) cuEventDestroy(event);
}

CUresult sm_ticket_take_events(sm_ticket *ticket) {
  CUresult code = take_event(ticket->gpu, &ticket->start);
  return code ? code : take_event(ticket->gpu, &ticket->end);
}

void sm_ticket_release(sm_ticket *ticket) {
  if (atomic_fetch_sub(&ticket->references, 1) != 1) return;
  if (ticket->start) give_event(ticket->gpu, ticket->start);
  if (ticket->end) give_event(ticket->gpu, ticket->end);
  if (ticket->log) softmetal_gpu_free_host(ticket->gpu, ticket->log, LOG_BYTES);
  free(ticket->messages);
  free(ticket->found);
  sm_uses_free(&ticket->uses);
  free(ticket->error);
  free(ticket);
}

/* Once the stream has passed them. */
void sm_ticket_note_patches(sm_ticket *ticket) {
  sm_patches *patches = &ticket->uses.patches;
  for (size_t i = 0; i < patches->count; i++) sm_mirror_patched(&patches->items[i]);
  patches->count = 0;
}

/* Brings to the host what the list has written. The sides are compared as they are now, so that what
   is absorbed later is never older. Within `sweep`. */
const char *sm_ticket_absorb(sm_ticket *ticket) {
  sm_gpu *gpu = ticket->gpu;
  for (size_t i = 0; i < ticket->uses.count; i++) {
    sm_mirror *mirror = ticket->uses.items[i].mirror;
    if (!ticket->uses.items[i].written || !sm_mirror_absorbs(mirror)) continue;
    if (gpu->fresh_size < mirror->length) {
      if (gpu->fresh) softmetal_gpu_free_host(gpu, gpu->fresh, gpu->fresh_size);
      gpu->fresh = softmetal_gpu_allocate_host(gpu, mirror->length);
      gpu->fresh_size = gpu->fresh ? mirror->length : 0;
    }
    if (!gpu->fresh) return "no memory for what the command buffer changed";
    if (cuMemcpyAsync((sm_u64)gpu->fresh, mirror->device, mirror->length, gpu->copies) ||
        cuStreamSynchronize(gpu->copies))
      return "what the command buffer changed cannot be read";
    sm_mirror_absorb(mirror, gpu->fresh);
  }
  return NULL;
}

/* When the GPU ran a list, by the host's clock, from which the GPU's moves away in time. */
static void read_times(sm_ticket *ticket) {
  float since = 0, took = 0;
  cuEventElapsedTime(&since, ticket->gpu->base, ticket->start);
  cuEventElapsedTime(&took, ticket->start, ticket->end);
  ticket->times[0] = ticket->gpu->base_time + (sm_u64)((double)since * 1e6);
  if (ticket->times[0] < ticket->submitted) ticket->times[0] = ticket->submitted;
  ticket->times[1] = ticket->times[0] + (sm_u64)((double)took * 1e6);
}

/* The error of a list that the driver reports; the first one of a context that is lost by it names the
   kernels that may have caused it. Within `sweep`. */
static void fail_with(sm_ticket *ticket, CUresult code) {
  char text[ERROR_BYTES], why[2 * ERROR_BYTES], names[NAME_BYTES];
  snprintf(why, sizeof why, "%s: %s", sm_gpu_kernels_of(ticket, names), sm_gpu_describe(code, text));
  if (sm_gpu_is_fatal(code)) sm_gpu_lose(ticket->gpu, why);
  sm_gpu_fail(ticket, "%s", atomic_load(&ticket->gpu->lost) ? ticket->gpu->why_lost : why);
}

/* The times and the error of a list that the GPU has finished, or that is lost with it. Within `sweep`. */
static void finish(sm_ticket *ticket, CUresult code) {
  if (code) {
    fail_with(ticket, code);
  } else {
    read_times(ticket);
    sm_gpu_read_ended(ticket);
    if (ticket->log) sm_ticket_read_log(ticket);
    if (ticket->report) sm_ticket_read_report(ticket);
  }
  sm_ticket_note_patches(ticket);
  const char *error = code ? NULL : sm_ticket_absorb(ticket);
  if (error) sm_gpu_fail(ticket, "%s", error);
  sm_uses_end(&ticket->uses);
  atomic_fetch_sub(&ticket->queue->unfinished, 1);
  ticket->queue = NULL;
  atomic_store(&ticket->state, DONE); /* threads sleep on it only until it is launched */
}

/* Finishes lists in the order of their launches, as far as the GPU has come. Within `sweep`. */
void sm_gpu_finish_launched(sm_gpu *gpu) {
  sm_ticket **place = &gpu->launched;
  const sm_gpu_queue *busy = NULL; /* later lists of this queue are not ready either */
  for (sm_ticket *ticket; (ticket = *place);) {
    CUresult code = ticket->fatal;
    if (!code && (atomic_load(&gpu->lost) || !ticket->end)) code = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!code) code = ticket->queue == busy ? CUDA_ERROR_NOT_READY : cuEventQuery(ticket->end);
    if (code == CUDA_ERROR_NOT_READY) {
      busy = ticket->queue;
      place = &ticket->next;
      continue;
    }
    *place = ticket->next;
    if (gpu->newest == &ticket->next) gpu->newest = place;
    finish(ticket, code);
    sm_ticket_release(ticket);
  }
}

void sm_gpu_finish_for(sm_mirrors *mirrors) {
  sm_gpu *gpu = (sm_gpu *)((char *)mirrors - offsetof(sm_gpu, mirrors));
  sm_lock(&gpu->sweep);
  sm_gpu_finish_launched(gpu);
  sm_unlock(&gpu->sweep);
}

/* Waits for at most `nanoseconds`: whether the list is done. */
static bool wait_for(sm_ticket *ticket, sm_u64 nanoseconds) {
  const sm_u64 begin = sm_now();
  sm_gpu_enter(ticket->gpu);
  for (;;) {
    if (atomic_load(&ticket->state) == LAUNCHED) sm_gpu_finish_for(&ticket->gpu->mirrors);
    if (atomic_load(&ticket->state) == DONE) return true;
    sm_u64 now = sm_now();
    if (now - begin >= nanoseconds) return false;
    if (now - begin <= SPIN_NS)
      sm_pause();
    else if (atomic_load(&ticket->state) == QUEUED)
      sm_futex_wait(&ticket->state, QUEUED, nanoseconds - (now - begin));
    else
      nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
  }
}

/* The same, with the outcome if it is done and asked for. */
SM_EXPORT bool softmetal_gpu_wait(sm_ticket *ticket, sm_outcome *outcome, sm_u64 nanoseconds) {
  if (!wait_for(ticket, nanoseconds)) return false;
  if (!outcome) return true;
  outcome->start = ticket->times[0];
  outcome->end = ticket->times[1];
  sm_outcome_error(outcome, ticket->error);
  outcome->log = (sm_u64)ticket->messages;
  outcome->log_bytes = ticket->message_bytes;
  outcome->log_dropped = ticket->log ? ticket->log->dropped : 0;
  return true;
}

SM_EXPORT void softmetal_gpu_forget(sm_ticket *ticket) { sm_ticket_release(ticket); }
