/* libcuda.so.1 without a GPU, for tests of the driver's code: streams are threads, device memory is the
   process's, and of all kernels only `add`, those of faults and the driver's two do something. After a
   fault every call fails, until the context is reset; with FAKE_RESET=0 that fails too. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../src/softmetal/executors/cuda/include/target/launch.h"
#include "../../src/softmetal/runtime/mirror.h"

#define EXPORT __attribute__((visibility("default")))
enum { NOT_READY = 600, ILLEGAL_ADDRESS = 700, OPS = 1 << 16 };

typedef struct op {
  enum { OP_COPY, OP_SET, OP_WAIT, OP_WRITE, OP_RECORD, OP_ADD, OP_STAMP, OP_PATCH, OP_FAULT, OP_SPIN, OP_TRAP, OP_HANG } kind;
  uint64_t a, b, c;
  sm_launch launch;
} op;

typedef struct stream {
  pthread_t thread;
  op *ops[OPS]; /* never reused: tests are short */
  atomic_uint head, tail;
} stream;

typedef struct event {
  atomic_uint asked, passed;
  atomic_ullong when;
} event;

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static atomic_int dead; /* the error of the context */

static void end_early(const sm_launch *launch, uint64_t reason) {
  const uint64_t list = launch->list ? launch->list : launch->control->current;
  launch->control->ended[list % SM_ENDED_LISTS] = launch->kernel | reason << SM_ENDED_SHIFT;
}

static void run(const op *o) {
  switch (o->kind) {
    case OP_FAULT: atomic_store(&dead, ILLEGAL_ADDRESS); break;
    case OP_TRAP: end_early(&o->launch, SM_ENDED_TRAPPED); break;
    case OP_HANG:
      for (;;) usleep(1000);
    case OP_SPIN:
      while (*(volatile uint64_t *)&o->launch.control->stop < o->launch.list) usleep(1000);
      end_early(&o->launch, SM_ENDED_STOPPED);
      break;
    case OP_COPY: memcpy((void *)o->a, (void *)o->b, o->c); break;
    case OP_SET: memset((void *)o->a, (int)o->b, o->c); break;
    case OP_WAIT:
      while ((int64_t)(atomic_load((atomic_ullong *)o->a) - o->b) < 0) usleep(20);
      break;
    case OP_WRITE: atomic_store((atomic_ullong *)o->a, o->b); break;
    case OP_RECORD:
      atomic_store(&((event *)o->a)->when, now());
      atomic_fetch_add(&((event *)o->a)->passed, 1);
      break;
    case OP_PATCH:
      for (sm_patch *p = (sm_patch *)o->a; p < (sm_patch *)o->a + o->b; p++)
        for (uint64_t i = 0; i < p->size; i++)
          if (p->changed[i]) ((unsigned char *)p->device)[i] = p->bytes[i];
      break;
    case OP_STAMP: *(uint64_t *)o->a = now() + o->b; break;
    case OP_ADD: {
      uint32_t *x = o->launch.buffers[0], n = *(uint32_t *)o->launch.buffers[1];
      for (uint32_t i = 0; i < o->launch.grid[0]; i++) x[i] += n;
      usleep(100);
    }
  }
}

static void *work(void *argument) {
  stream *s = argument;
  for (;;) {
    while (atomic_load(&s->tail) == atomic_load(&s->head)) usleep(20);
    op *o = s->ops[atomic_load(&s->tail)];
    if (!atomic_load(&dead)) run(o);
    atomic_fetch_add(&s->tail, 1);
  }
  return NULL;
}

static stream *make(void) {
  stream *s = calloc(1, sizeof *s);
  pthread_create(&s->thread, NULL, work, s);
  return s;
}

static stream *of(stream *given) {
  static stream *legacy;
  if (given) return given;
  if (!legacy) legacy = make();
  return legacy;
}

static int put(stream *s, op o) {
  if (atomic_load(&dead)) return atomic_load(&dead);
  op *kept = malloc(sizeof *kept);
  *kept = o;
  s = of(s);
  s->ops[atomic_load(&s->head)] = kept;
  atomic_fetch_add(&s->head, 1);
  return 0;
}

EXPORT int cuInit(unsigned f) { return (int)f; }
EXPORT int cuDeviceGetCount(int *n) { return *n = 1, 0; }
EXPORT int cuGetErrorName(int c, const char **t) {
  return *t = c == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : c ? "FAKE_ERROR" : "OK", 0;
}
EXPORT int cuGetErrorString(int c, const char **t) { return *t = c ? "of the fake" : "", 0; }
EXPORT int cuDeviceGet(int *d, int i) { return *d = i, 0; }
EXPORT int cuDeviceGetName(char *t, int n, int d) { return strncpy(t, "Fake GPU", (size_t)n), d; }
EXPORT int cuDeviceTotalMem_v2(size_t *n, int d) { return *n = (size_t)1 << 30, d; }
EXPORT int cuDeviceGetAttribute(int *v, int a, int d) { return *v = a == 75 ? 9 : 0, d; }
EXPORT int cuDevicePrimaryCtxRetain(void **c, int d) { return *c = (void *)8, d ? d : dead; }
EXPORT int cuDevicePrimaryCtxReset_v2(int d) {
  const char *possible = getenv("FAKE_RESET");
  if (!possible || *possible != '0') atomic_store(&dead, 0);
  return d ? d : atomic_load(&dead);
}
EXPORT int cuCtxSetCurrent(void *c) { return c ? 0 : 201; }
/* A module is its PTX; one of machine code has functions of every name. */
static const char MACHINE_CODE[] = "\x7f" "ELF";
static unsigned machine_codes;
EXPORT unsigned fake_machine_codes(void) { return machine_codes; }
EXPORT int cuModuleLoadDataEx(void **m, const void *i, unsigned n, int *o, void **v) {
  machine_codes += !memcmp(i, MACHINE_CODE, 4);
  return *m = strdup(i), (void)n, (void)o, (void)v, 0;
}
EXPORT int cuModuleUnload(void *m) { return free(m), 0; }
EXPORT int cuModuleGetFunction(void **f, void *m, const char *name) {
  bool found = m && (strstr(m, name) || !memcmp(m, MACHINE_CODE, 4));
  return *f = strdup(name), found ? 0 : 500;
}
EXPORT int cuModuleGetGlobal_v2(uint64_t *a, size_t *n, void *m, const char *name) {
  return *a = *n = 0, strstr(m, name) ? 0 : 500;
}
EXPORT int cuFuncGetAttribute(int *v, int a, void *f) { return *v = 1024, (void)f, a; }
EXPORT int cuFuncSetAttribute(void *f, int a, int v) { return (void)f, (void)a, (void)v, 0; }
static _Thread_local unsigned launched_here;
EXPORT unsigned fake_launches_here(void) { return launched_here; } /* of the calling thread */
EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, stream *s, void **arguments, void **extra) {
  (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
  launched_here++;
  if (!strcmp(f, "stamp"))
    return put(s, (op){OP_STAMP, *(uint64_t *)arguments[0], *(uint64_t *)arguments[1], 0, {0}});
  if (!strcmp(f, "patch")) return put(s, (op){OP_PATCH, *(uint64_t *)arguments[0], gx, 0, {0}});
  static const struct { const char *name; int kind; } kernels[] = {
      {"metal_add", OP_ADD}, {"metal_fault", OP_FAULT}, {"metal_spin", OP_SPIN}, {"metal_trap", OP_TRAP},
      {"metal_hang", OP_HANG}};
  for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
    if (!strcmp(f, kernels[i].name))
      return put(s, (op){kernels[i].kind, 0, 0, 0, *(sm_launch *)arguments[0]});
  return 0;
}

typedef struct config {
  unsigned grid[3], block[3], shared;
  stream *stream;
  int *attributes;
  unsigned count;
} config;
static unsigned early; /* launches and edges that let a kernel begin before the one before it ends */
EXPORT unsigned fake_early(void) { return early; }
EXPORT int cuLaunchKernelEx(const config *c, void *f, void **arguments, void **extra) {
  if (c->count != 1 || c->attributes[0] != 6 || c->attributes[2] != 1) return 1;
  early++;
  return cuLaunchKernel(f, c->grid[0], 1, 1, c->block[0], 1, 1, c->shared, c->stream, arguments, extra);
}

/* Graphs: kernels in order. */
typedef struct node { void *function; sm_launch launch; unsigned blocks; } node;
typedef struct graph { node nodes[64]; unsigned count, edges; } graph;
typedef struct node_parameters { void *function; unsigned grid[3], block[3], shared; void **arguments, **extra; } node_parameters;
static unsigned launched;
EXPORT unsigned fake_graph_launches(void) { return launched; }
static int set(node *n, const node_parameters *p) {
  *n = (node){p->function, *(sm_launch *)p->arguments[0], p->grid[0]};
  return 0;
}
EXPORT int cuGraphCreate(graph **g, unsigned f) { return *g = calloc(1, sizeof **g), (int)f; }
EXPORT int cuGraphDestroy(graph *g) { return (void)g, 0; }
EXPORT int cuGraphAddKernelNode(node **n, graph *g, node **before, size_t count, const node_parameters *p) {
  if (count && *before != &g->nodes[g->count - 1]) return 1;
  g->edges += count;
  return set(*n = &g->nodes[g->count++], p);
}
EXPORT int cuGraphAddDependencies_v2(graph *g, node **from, node **to, const unsigned char *data, size_t count) {
  bool fits = count == 1 && *to == &g->nodes[g->count - 1] && *from == *to - 1 && data[0] == 1 && data[2] == 1;
  early++;
  g->edges++;
  return fits ? 0 : 1;
}
EXPORT int cuGraphInstantiateWithFlags(graph **e, graph *g, unsigned long long f) {
  return *e = g, g->edges == g->count - 1 ? (int)f : 1;
}
EXPORT int cuGraphExecKernelNodeSetParams(graph *e, node *n, const node_parameters *p) { return (void)e, set(n, p); }
EXPORT int cuGraphExecDestroy(graph *e) { return free(e), 0; }
EXPORT int cuGraphLaunch(graph *e, stream *s) {
  launched++;
  for (unsigned i = 0; i < e->count; i++) {
    void *arguments[] = {&e->nodes[i].launch};
    cuLaunchKernel(e->nodes[i].function, e->nodes[i].blocks, 1, 1, 32, 1, 1, 0, s, arguments, NULL);
  }
  return 0;
}
EXPORT int cuStreamCreate(stream **s, unsigned f) { return *s = make(), (void)f, 0; }
EXPORT int cuStreamDestroy_v2(stream *s) { return (void)s, 0; }
EXPORT int cuStreamSynchronize(stream *s) {
  s = of(s);
  unsigned end = atomic_load(&s->head);
  while (atomic_load(&s->tail) < end) usleep(20);
  return atomic_load(&dead);
}
EXPORT int cuStreamWaitValue64_v2(stream *s, uint64_t a, uint64_t v, unsigned f) {
  return (void)f, put(s, (op){OP_WAIT, a, v, 0, {0}});
}
EXPORT int cuStreamWriteValue64_v2(stream *s, uint64_t a, uint64_t v, unsigned f) {
  return (void)f, put(s, (op){OP_WRITE, a, v, 0, {0}});
}
EXPORT int cuEventCreate(event **e, unsigned f) { return *e = calloc(1, sizeof **e), (void)f, 0; }
EXPORT int cuEventDestroy_v2(event *e) { return (void)e, 0; }
EXPORT int cuEventRecord(event *e, stream *s) {
  atomic_fetch_add(&e->asked, 1);
  return put(s, (op){OP_RECORD, (uint64_t)e, 0, 0, {0}});
}
EXPORT int cuEventQuery(event *e) {
  if (atomic_load(&dead)) return atomic_load(&dead);
  return atomic_load(&e->passed) == atomic_load(&e->asked) ? 0 : NOT_READY;
}
EXPORT int cuEventElapsedTime(float *ms, event *a, event *b) {
  *ms = (float)((double)(int64_t)(atomic_load(&b->when) - atomic_load(&a->when)) / 1e6);
  return 0;
}
EXPORT int cuMemAlloc_v2(uint64_t *a, size_t n) { return *a = (uint64_t)malloc(n), 0; }
EXPORT int cuMemFree_v2(uint64_t a) { return free((void *)a), 0; }
EXPORT int cuMemHostRegister_v2(void *a, size_t n, unsigned f) {
  return (void)a, (void)n, (void)f, atomic_load(&dead);
}
EXPORT int cuMemHostUnregister(void *a) { return (void)a, atomic_load(&dead); }
EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, stream *s) {
  return put(s, (op){OP_COPY, to, from, n, {0}});
}
EXPORT int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, stream *s) {
  return put(s, (op){OP_SET, to, v, n, {0}});
}
