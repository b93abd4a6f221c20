/* Preloaded into child processes: functions of libc that fail when a test says so, and a handler of
   signals that leaves by a jump, as some libraries have. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>

int refuse_strdup, refuse_wakes, refuse_light_guards = REFUSE_LIGHT_GUARDS;

/* The runtime's threads sleep by this call. With `refuse_wakes` those that sleep do not wake up. */
long syscall(long number, ...) {
  long (*next)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  long given[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; i++) given[i] = va_arg(arguments, long);
  va_end(arguments);
  if (refuse_wakes && number == SYS_futex && given[1] == FUTEX_WAKE_PRIVATE) return 0;
  return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

char *strdup(const char *text) {
  char *(*next)(const char *) = (char *(*)(const char *))dlsym(RTLD_NEXT, "strdup");
  return refuse_strdup ? NULL : next(text);
}

int madvise(void *address, size_t size, int advice) {
  int (*next)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
  if (!refuse_light_guards || advice != 102) return next(address, size, advice);
  errno = EINVAL;
  return -1;
}

static _Thread_local sigjmp_buf place;
static void jump(int number) { siglongjmp(place, number); }

void handle_by_jump(void) {
  struct sigaction action = {.sa_handler = jump};
  sigaction(SIGSEGV, &action, NULL);
}

/* How many of `count` accesses to address 0 were left by a jump. */
int fault_often(int count) {
  volatile int left = 0;
  for (volatile int i = 0; i < count; i++)
    if (sigsetjmp(place, 1))
      left++;
    else
      *(volatile int *)0 = 1;
  return left;
}
