/* Runs softmetal's runtime inside an emulated process for a Python process outside of it.

   Arguments: the runtime's shared object, a file of shared memory, its address and its length. The
   file is mapped at the same address as in the Python process, so that buffers need no translation.
   Requests come on stdin and replies go to stdout, as 64-bit words:

     CALL  length of the name, number of arguments, the name, the arguments  ->  the result
     READ  address, size                                                     ->  the bytes
     WRITE address, size, the bytes                                          ->  (no reply)  */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t u64;
typedef u64 (*function)(u64, u64, u64, u64, u64, u64);

enum { CALL = 1, READ, WRITE };
enum { NAME_BYTES = 256, ARGUMENTS = 6 };

static void fail(const char *what, const char *why) {
  fprintf(stderr, "emulation driver: %s: %s\n", what, why);
  _exit(1);
}

/* Ends the process when the Python process has closed the pipe. */
static void receive(void *to, u64 size) {
  for (u64 done = 0; done < size;) {
    ssize_t got = read(0, (char *)to + done, size - done);
    if (got == 0) _exit(0);
    if (got < 0 && errno != EINTR) fail("read", strerror(errno));
    if (got > 0) done += (u64)got;
  }
}

static void reply(const void *from, u64 size) {
  for (u64 done = 0; done < size;) {
    ssize_t sent = write(1, (const char *)from + done, size - done);
    if (sent < 0 && errno != EINTR) fail("write", strerror(errno));
    if (sent > 0) done += (u64)sent;
  }
}

static void call(u64 length, u64 count) {
  char name[NAME_BYTES] = {0};
  u64 arguments[ARGUMENTS] = {0};
  if (length >= NAME_BYTES || count > ARGUMENTS) fail("call", "request too long");
  receive(name, length);
  receive(arguments, count * sizeof(u64));
  function target = (function)dlsym(RTLD_DEFAULT, name);
  if (!target) fail(name, "no such function");
  u64 result = target(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                      arguments[5]);
  reply(&result, sizeof result);
}

static void share_memory(const char *path, u64 address, u64 length) {
  int file = open(path, O_RDWR);
  if (file < 0) fail(path, strerror(errno));
  void *got = mmap((void *)address, length, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, file, 0);
  if (got != (void *)address) fail("mmap", strerror(errno));
  close(file);
}

int main(int count, char **given) {
  if (count != 5) fail("usage", "driver RUNTIME FILE ADDRESS LENGTH");
  if (!dlopen(given[1], RTLD_NOW | RTLD_GLOBAL)) fail(given[1], dlerror());
  share_memory(given[2], strtoull(given[3], NULL, 0), strtoull(given[4], NULL, 0));
  for (;;) {
    u64 request[3];
    receive(request, sizeof request);
    if (request[0] == CALL)
      call(request[1], request[2]);
    else if (request[0] == READ)
      reply((const void *)request[1], request[2]);
    else
      receive((void *)request[1], request[2]);
  }
}
