/* Sends the messages of a packed list of commands to an MTLComputeCommandEncoder: in one call from
   Python, where PyObjC takes a call for each message. Objective-C's runtime is found when the
   library is opened, so it is built without an SDK. metal/packed_commands.py writes the lists. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef void *id;
typedef const void *SEL;
typedef struct {
  uint64_t width, height, depth;
} MTLSize;

/* The first word of a command; metal/packed_commands.py has the same numbers. */
enum { PIPELINE, BUFFER, BYTES, THREADGROUP_MEMORY, BARRIER, DISPATCH, KINDS };

static const char *const names[KINDS] = {
    "setComputePipelineState:",
    "setBuffer:offset:atIndex:",
    "setBytes:length:atIndex:",
    "setThreadgroupMemoryLength:atIndex:",
    "memoryBarrierWithScope:",
    "dispatchThreads:threadsPerThreadgroup:",
};

static SEL selectors[KINDS];
static void *send;

#define VISIBLE __attribute__((visibility("default")))

/* Finds the runtime in a library; returns whether it is there. */
VISIBLE int lbrx_open(const char *path) {
  void *library = dlopen(path, RTLD_NOW);
  if (!library) return 0;
  SEL (*registered)(const char *) = (SEL(*)(const char *))dlsym(library, "sel_registerName");
  send = dlsym(library, "objc_msgSend");
  if (!registered || !send) return 0;
  for (int kind = 0; kind < KINDS; kind++) selectors[kind] = registered(names[kind]);
  return 1;
}

#define SEND(kind, ...) ((void (*)(id, SEL, __VA_ARGS__))send)(encoder, selectors[kind]

/* Objects are numbered from 1; 0 is nil. */
VISIBLE void lbrx_encode(id encoder, const uint64_t *words, size_t count, const id *objects,
                         const uint8_t *bytes) {
  for (const uint64_t *w = words, *end = words + count; w < end;) {
    switch (*w) {
      case PIPELINE:
        SEND(PIPELINE, id), objects[w[1]]);
        w += 2;
        break;
      case BUFFER:
        SEND(BUFFER, id, uint64_t, uint64_t), objects[w[1]], w[2], w[3]);
        w += 4;
        break;
      case BYTES:
        SEND(BYTES, const void *, uint64_t, uint64_t), bytes + w[1], w[2], w[3]);
        w += 4;
        break;
      case THREADGROUP_MEMORY:
        SEND(THREADGROUP_MEMORY, uint64_t, uint64_t), w[1], w[2]);
        w += 3;
        break;
      case BARRIER:
        SEND(BARRIER, uint64_t), w[1]);
        w += 2;
        break;
      case DISPATCH: {
        MTLSize grid = {w[1], w[2], w[3]}, group = {w[4], w[5], w[6]};
        SEND(DISPATCH, MTLSize, MTLSize), grid, group);
        w += 7;
        break;
      }
      default:
        return; /* lists are ours: they have no other command */
    }
  }
}
