/* Kernels that do not end, that trap, or that end the context. */
#include "driver.h"

_Static_assert(!offsetof(sm_launch, control) && offsetof(sm_launch, kernel) == 8 &&
                   offsetof(sm_launch, list) == 16 && !offsetof(sm_control, stop) &&
                   offsetof(sm_control, current) == 8 && offsetof(sm_control, ended) == 16,
               "stopping.py has these");

static const char REMEDY[] =
    ". The GPU takes no more work of this device: make another with MTLCreateSystemDefaultDevice(), "
    "or start a new process if the driver refuses that";
enum { LOOK_NS = 100000000 /* between two looks at running lists */ };
#define GRACE_NS 10000000000u /* for kernels to see that they have to end: they look every few seconds */

/* The errors after which the driver's documentation asks for a new process. */
bool sm_gpu_is_fatal(CUresult code) {
  return code == 214 || code == 702 || code == 710 || (code >= 714 && code <= 719) || code == 700;
}

bool sm_gpu_enter(sm_gpu *gpu) {
  return !atomic_load(&gpu->lost) && !cuCtxSetCurrent(gpu->context);
}

void sm_gpu_lose(sm_gpu *gpu, const char *why) {
  sm_lock(&gpu->events_lock);
  if (!atomic_load(&gpu->lost)) {
    snprintf(gpu->why_lost, sizeof gpu->why_lost, "%s%s", why, REMEDY);
    atomic_store(&gpu->lost, true);
  }
  for (sm_gpu_event *event = gpu->events; event; event = event->next) {
    /* Signals that are in a stream never arrive. */
    unsigned long long promised = atomic_load(&event->promised);
    if (atomic_load(event->value) < promised) atomic_store(event->value, promised);
    atomic_fetch_add(&event->sequence, 1);
    sm_futex_wake(&event->sequence, INT_MAX);
  }
  sm_unlock(&gpu->events_lock);
}

void sm_gpu_read_ended(sm_ticket *ticket) {
  atomic_ullong *place =
      (atomic_ullong *)&ticket->queue->control->ended[ticket->number % SM_ENDED_LISTS];
  const sm_u64 word = atomic_exchange(place, 0);
  const sm_gpu_kernel *kernel = (const sm_gpu_kernel *)(word & (((sm_u64)1 << HANDLE_BITS) - 1));
  if (word && word >> HANDLE_BITS == SM_ENDED_TRAPPED)
    sm_gpu_fail(ticket, "kernel '%s' executed an illegal instruction or a trap", kernel->name);
  if (ticket->stopped)
    sm_gpu_fail(ticket, "kernel '%s' did not end within %g s (SOFTMETAL_TIMEOUT)",
                kernel ? kernel->name : ticket->last ? ticket->last->name : "(none)",
                (double)ticket->gpu->timeout / 1e9);
}

/* Appends a name, if it is not the last one already. */
static void add_name(char *names, const sm_gpu_kernel *kernel, const sm_gpu_kernel *before) {
  const size_t used = strlen(names);
  if (!kernel || kernel == before) return;
  snprintf(names + used, NAME_BYTES - used, "%s'%s'", used ? ", " : "", kernel->name);
}

const char *sm_gpu_kernels_of(const sm_ticket *ticket, char names[NAME_BYTES]) {
  const sm_gpu_kernel *before = NULL;
  char listed[NAME_BYTES] = "";
  for (const char *at = ticket->list; at < ticket->list + ticket->size;) {
    const sm_command *command = (const sm_command *)at;
    if (command->opcode == SM_OP_DISPATCH) {
      const sm_command_dispatch *given = (const sm_command_dispatch *)command;
      const sm_gpu_kernel *kernel = (const sm_gpu_kernel *)given->dispatch.kernel;
      add_name(listed, kernel, before);
      before = kernel;
    }
    at += command->size;
  }
  if (ticket->last != before) add_name(listed, ticket->last, before);
  const bool several = strchr(listed, ',') != NULL;
  snprintf(names, NAME_BYTES, "%s %.*s", several ? "one of the kernels" : "kernel", NAME_BYTES - 32,
           listed[0] ? listed : "(none)");
  return names;
}

bool sm_gpu_watch(sm_ticket *ticket) {
  sm_gpu *gpu = ticket->gpu;
  char why[ERROR_BYTES], names[NAME_BYTES];
  const sm_u64 now = sm_now();
  if (!gpu->timeout) return true;
  if (!ticket->began) {
    if (ticket->start && !cuEventQuery(ticket->start)) ticket->began = now;
  } else if (!ticket->stopped) {
    if (now - ticket->began < gpu->timeout) return true;
    ticket->stopped = now;
    atomic_store((atomic_ullong *)&ticket->queue->control->stop, ticket->number);
  } else if (now - ticket->stopped > GRACE_NS) {
    snprintf(why, sizeof why, "%s did not end within %g s (SOFTMETAL_TIMEOUT) and cannot be stopped",
             sm_gpu_kernels_of(ticket, names), (double)gpu->timeout / 1e9);
    sm_gpu_lose(gpu, why);
    return false;
  }
  return true;
}

static void *watchdog_main(void *argument) {
  sm_gpu *gpu = argument;
  while (sm_gpu_enter(gpu)) {
    const unsigned launches = atomic_load(&gpu->launches);
    sm_lock(&gpu->sweep);
    sm_gpu_finish_launched(gpu);
    for (sm_ticket *ticket = gpu->launched; ticket && sm_gpu_watch(ticket); ticket = ticket->next) {
    }
    const bool idle = !gpu->launched;
    sm_unlock(&gpu->sweep);
    atomic_store(&gpu->unwatched, idle);
    if (idle) sm_futex_wait(&gpu->launches, launches, ~(sm_u64)0);
    else nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
  }
  /* What was launched fails. */
  sm_gpu_finish_for(&gpu->mirrors);
  return NULL;
}

bool sm_gpu_start_watchdog(sm_gpu *gpu) {
  pthread_t thread;
  if (!gpu->timeout) return true;
  if (pthread_create(&thread, NULL, watchdog_main, gpu)) return false;
  pthread_detach(thread);
  return true;
}

bool sm_gpu_await(sm_gpu_queue *queue, sm_ticket *ticket) {
  if (sm_gpu_failed(ticket, cuEventRecord(queue->reached, queue->stream))) return false;
  const sm_u64 begin = sm_now();
  for (;;) {
    const CUresult code = cuEventQuery(queue->reached);
    if (code != CUDA_ERROR_NOT_READY) return !sm_gpu_failed(ticket, code);
    sm_lock(&queue->gpu->sweep);
    const bool watched = sm_gpu_watch(ticket);
    sm_unlock(&queue->gpu->sweep);
    if (!watched) {
      sm_gpu_fail(ticket, "%s", queue->gpu->why_lost);
      return false;
    }
    if (sm_now() - begin > SPIN_NS) nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
    else sm_pause();
  }
}
