/* Leaves kernels that crash or do not end.

   A worker calls sigsetjmp before it enters a kernel. The handler of a fault, or of the watchdog's
   signal, jumps back there from the stack that the kernel was on. */
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "runtime.h"
#include "switch.h"

enum {
  RETRY_NS = 1000000, /* until a thread that was outside its kernel is interrupted again */
  NEAR_STACK = 65536, /* a fault this close to the stack pointer is a stack overflow */
  STRING_CODE = 4096, /* upper bound of the code of memcpy and memset */
};

/* Handlers run in any thread, also one that never used this library. Only initial-exec storage is
   not allocated at its first use. */
static _Thread_local sm_worker *this_worker __attribute__((tls_model("initial-exec")));

static sm_u64 interrupted_at(const ucontext_t *context) {
#if defined(__x86_64__)
  return (sm_u64)context->uc_mcontext.gregs[REG_RIP];
#else
  return context->uc_mcontext.pc;
#endif
}

static sm_u64 stack_pointer(const ucontext_t *context) {
#if defined(__x86_64__)
  return (sm_u64)context->uc_mcontext.gregs[REG_RSP];
#else
  return context->uc_mcontext.sp;
#endif
}

/* ---- what happened --------------------------------------------------------------------------- */

static enum sm_cause bad_address(int number, const siginfo_t *info, sm_u64 stack) {
  sm_u64 address = (sm_u64)info->si_addr;
  if (info->si_code == SI_KERNEL) return SM_INVALID; /* x86 does not report the address */
  if (address - stack + NEAR_STACK < 2 * NEAR_STACK) return SM_OVERFLOW;
  if (number == SIGBUS) return info->si_code == BUS_ADRALN ? SM_INVALID : SM_BEYOND_FILE;
  return info->si_code == SEGV_ACCERR ? SM_PROTECTED : SM_UNMAPPED;
}

static sm_fault fault_of(int number, const siginfo_t *info, const ucontext_t *context) {
  bool illegal = number == SIGILL || number == SIGTRAP;
  enum sm_cause cause =
      illegal ? SM_ILLEGAL : bad_address(number, info, stack_pointer(context));
  return (sm_fault){cause, (sm_u64)info->si_addr};
}

void sm_report_fault(sm_submission *submission, const sm_kernel *kernel, sm_fault fault,
                     sm_u64 timeout) {
  const char *subject = kernel->subject;
  unsigned long long address = fault.address;
  switch (fault.cause) {
    case SM_TIMEOUT:
      sm_fail(submission, "%s did not end within %g s (SOFTMETAL_TIMEOUT)", subject,
              (double)timeout / 1e9);
      break;
    case SM_UNMAPPED:
      sm_fail(submission, "%s accessed address 0x%llx, which is not mapped", subject,
              address);
      break;
    case SM_PROTECTED:
      sm_fail(submission, "%s accessed address 0x%llx, which is protected", subject, address);
      break;
    case SM_BEYOND_FILE:
      sm_fail(submission, "%s accessed address 0x%llx, beyond the end of a mapped file",
              subject, address);
      break;
    case SM_INVALID:
      sm_fail(submission, "%s accessed an invalid address (out of range or misaligned)",
              subject);
      break;
    case SM_OVERFLOW:
      sm_fail(submission, "%s overflowed its stack of %d KiB per thread", subject,
              (sm_has_fibers(kernel) ? SM_FIBER_STACK : SM_WORKER_STACK) >> 10);
      break;
    default:
      sm_fail(submission, "%s executed an illegal instruction or a trap", subject);
  }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* __builtin_trap raises SIGILL on x86 and SIGTRAP on Arm. */
static const int fault_signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
enum { FAULT_SIGNALS = sizeof fault_signals / sizeof *fault_signals };

/* By signal: the handlers before ours. Each value stays as it is, since a handler on another thread
   may be reading it. */
static const struct sigaction *_Atomic previous[32];

/* Set while this thread is in a previous handler. That may leave by a jump, which restores the
   signal mask but not this: both must say so. */
static _Thread_local bool passing __attribute__((tls_model("initial-exec")));

static bool is_nested(const ucontext_t *context) {
  return passing && sigismember(&context->uc_sigmask, SM_INTERRUPT) == 1;
}

/* A fault outside kernels. The previous handler may restore ours and raise the signal again, as
   Python's faulthandler does: the second time the default action is taken. */
static void pass_on(int number, siginfo_t *info, void *context) {
  static const struct sigaction standard = {.sa_handler = SIG_DFL};
  const struct sigaction *next = is_nested(context) ? &standard : atomic_load(&previous[number]);
  bool raised = info->si_code <= 0; /* by kill or a similar call */
  passing = true;
  if (next->sa_flags & SA_SIGINFO) {
    next->sa_sigaction(number, info, context);
  } else if (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN) {
    next->sa_handler(number);
  } else if (!raised || next->sa_handler == SIG_DFL) {
    sigaction(number, &standard, NULL);
    if (raised) raise(number); /* else the instruction is repeated */
  }
  passing = false;
}

static void on_fault(int number, siginfo_t *info, void *context) {
  sm_worker *worker = this_worker;
  if (!worker || !atomic_load(&worker->kernel) || info->si_code <= 0) {
    pass_on(number, info, context);
    return;
  }
  worker->fault = fault_of(number, info, context);
  siglongjmp(worker->escape, 1);
}

/* Remembers the handler before ours, false if there is no memory. Few different ones exist. */
static bool remember(int number, const struct sigaction *present) {
  static struct known {
    struct sigaction action;
    struct known *next;
  } *all;
  struct known *same = all;
  while (same && (same->action.sa_sigaction != present->sa_sigaction ||
                  same->action.sa_flags != present->sa_flags))
    same = same->next;
  if (!same) {
    if (!(same = malloc(sizeof *same))) return false;
    *same = (struct known){*present, all};
    all = same;
  }
  atomic_store(&previous[number], &same->action);
  return true;
}

/* Whether the handler of a signal is another one. */
static bool is_replaced(int number) {
  struct sigaction present;
  return !sigaction(number, NULL, &present) && present.sa_sigaction != on_fault;
}

void sm_guard_install(void) {
  static sm_mutex lock;
  static atomic_uint calls;
  /* Each look is a call of the system. Who handles faults handles SIGSEGV; the others take turns. */
  unsigned turn = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) % FAULT_SIGNALS;
  if (!is_replaced(SIGSEGV) && !is_replaced(fault_signals[turn])) return;
  struct sigaction ours = {.sa_sigaction = on_fault,
                           .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  sigemptyset(&ours.sa_mask);
  sigaddset(&ours.sa_mask, SM_INTERRUPT); /* for is_nested */
  for (int i = 0; i < FAULT_SIGNALS; i++) {
    struct sigaction present;
    int number = fault_signals[i];
    if (!is_replaced(number)) continue;
    sm_lock(&lock);
    if (!sigaction(number, NULL, &present) && present.sa_sigaction != on_fault &&
        remember(number, &present))
      sigaction(number, &ours, NULL);
    sm_unlock(&lock);
  }
}

/* ---- workers --------------------------------------------------------------------------------- */

void sm_guard_thread(sm_worker *worker, char stack[SM_SIGNAL_STACK]) {
  this_worker = worker;
  sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = SM_SIGNAL_STACK}, NULL);
}

void sm_unguard_thread(void) {
  sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
  this_worker = NULL;
}

static int thread_id(void) {
  static _Thread_local int id;
  if (!id) id = (int)syscall(SYS_gettid);
  return id;
}

void sm_guard_claimed(sm_worker *worker) {
  atomic_store(&worker->interrupted, false); /* a signal for the thread before may be lost */
  atomic_store(&worker->id, thread_id());
}

void sm_guard_visitor(sm_worker *worker, char stack[SM_SIGNAL_STACK], sm_guard *before) {
  sigset_t needed;
  sigemptyset(&needed);
  sigaddset(&needed, SM_INTERRUPT);
  for (int i = 0; i < FAULT_SIGNALS; i++) sigaddset(&needed, fault_signals[i]);
  sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = SM_SIGNAL_STACK}, &before->stack);
  pthread_sigmask(SIG_UNBLOCK, &needed, &before->mask);
  this_worker = worker;
  sm_guard_claimed(worker);
}

void sm_unguard_visitor(const sm_guard *before) {
  this_worker = NULL;
  pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
  sigaltstack(&before->stack, NULL);
}

/* After a jump to worker->escape: restores the thread for other kernels and fails the job,
   whose other chunks are dropped. */
static void left_kernel(sm_worker *worker, sm_job *job) {
  const sm_kernel *kernel = atomic_exchange(&worker->kernel, NULL);
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SM_INTERRUPT);
  pthread_sigmask(SIG_UNBLOCK, &interrupt, NULL); /* blocked since its handler began */
  if (sm_has_fibers(kernel) && worker->arena) { /* its fibers are in unknown states */
    sm_arena_free(worker->arena);
    worker->arena = NULL;
  }
  if (!atomic_exchange(&job->faults, 1)) job->fault = worker->fault;
}

_Thread_local void *sm_home;

/* The first function on a worker's stack. */
static void stack_main(void) {
  this_worker->run(this_worker, this_worker->job, this_worker->chunk);
}

void sm_run_guarded(sm_worker *worker, sm_job *job, const sm_kernel *kernel, sm_u64 chunk,
                    void (*run)(sm_worker *, sm_job *, sm_u64 chunk)) {
  if (sigsetjmp(worker->escape, 0)) {
    left_kernel(worker, job);
    return;
  }
  atomic_store_explicit(&worker->kernel, kernel, memory_order_relaxed);
  atomic_signal_fence(memory_order_seq_cst); /* `run` stays between the two stores */
  worker->run = run;
  worker->job = job;
  worker->chunk = chunk;
  sm_call_on(worker->stack + SM_WORKER_STACK, stack_main);
  atomic_signal_fence(memory_order_seq_cst);
  atomic_store_explicit(&worker->kernel, NULL, memory_order_relaxed);
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool within(sm_u64 address, const void *start, size_t size) {
  return address - (sm_u64)start < size;
}

/* Whether the kernel's own code was interrupted. The runtime and libc may hold locks; the string
   functions that compilers generate calls of hold none. */
static bool may_leave(const sm_kernel *kernel, sm_u64 at) {
  return within(at, kernel->code, kernel->code_size) || within(at, memcpy, STRING_CODE) ||
         within(at, memmove, STRING_CODE) || within(at, memset, STRING_CODE);
}

static void on_interrupt(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  sm_worker *worker = this_worker;
  if (!worker) return;
  atomic_store(&worker->interrupted, false);
  if (atomic_load(&worker->activity) == SM_IN_KERNEL) sm_freeze_at_exit();
  const sm_kernel *kernel = atomic_load(&worker->kernel);
  if (!kernel) return;
  sm_u64 since = atomic_load(&worker->since);
  if (!since || since != atomic_load(&worker->overdue)) return;
  if (!may_leave(kernel, interrupted_at(context))) return;
  worker->fault = (sm_fault){.cause = SM_TIMEOUT};
  siglongjmp(worker->escape, 1);
}

void sm_interrupt(sm_worker *worker) {
  static const struct sigaction action = {.sa_sigaction = on_interrupt,
                                          .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
  int id = atomic_load(&worker->id);
  if (!id || atomic_exchange(&worker->interrupted, true)) return;
  sigaction(SM_INTERRUPT, &action, NULL);
  if (syscall(SYS_tgkill, getpid(), id, SM_INTERRUPT)) atomic_store(&worker->interrupted, false);
}

static atomic_ullong shortest = ~0ull; /* of the pools' limits */
static atomic_uint limits;             /* incremented when that changes; the watchdog waits on it */

/* A kernel that starts while the watchdog sleeps cannot be overdue before it wakes, so it need not
   be notified. */
static void *watchdog_main(void *argument) {
  for (;;) {
    unsigned seen = atomic_load(&limits);
    sm_u64 now = sm_now();
    sm_u64 next = sm_interrupt_overdue(now, now + RETRY_NS, now + atomic_load(&shortest));
    sm_u64 after = sm_now();
    if (next > after) sm_futex_wait(&limits, seen, next - after);
  }
  return argument;
}

void sm_watch(const sm_pool *pool) {
  static sm_mutex lock;
  static bool started;
  if (!pool->timeout) return;
  sm_lock(&lock);
  pthread_t thread;
  if (pool->timeout < atomic_load(&shortest)) {
    atomic_store(&shortest, pool->timeout);
    atomic_fetch_add(&limits, 1);
    sm_futex_wake(&limits, 1);
  }
  if (!started) started = sm_thread_start(&thread, watchdog_main, NULL);
  sm_unlock(&lock);
}
