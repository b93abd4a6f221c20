/* Compute encoders without Python: bindings are kept here, and dispatches are written as the
   commands that the executor runs (executors/packing.py). Python gets them all at once, before the
   encoder's next message that is not one of these. What Python would refuse is left to Python. */
#include "python.h"

/* of values of setBytes at a time; 64 KiB is what an arena of api/device.py has */
enum { LARGE_BLOCK = 1 << 16 };
enum {
  BUFFERS = 31,
  SCRATCH = 31,
  INLINE_BYTES = 4096,
  ALIGNMENT = 64,
  DISPATCH = 1,
  VERIFIED = 8
};
enum { UNCHANGED = -2, NOTHING = -1 };

struct size3 {
  uint64_t sides[3];
};

struct wanted {
  uint64_t size, low_bits;
  uint32_t index, written;
};

struct checked {
  struct size3 group;
  uint32_t scratch[SCRATCH];
};

/* What encoding needs to know of a pipeline, and the threadgroups that Python has checked for it.
 */
struct pipeline {
  uint64_t kernel;
  uint32_t buffers, scratch, wanted_count, usable;
  struct wanted wanted[BUFFERS];
  pthread_mutex_t lock;
  uint32_t checked_count;
  struct checked checked[VERIFIED];
};

struct buffer {
  uint64_t address, length;
};

struct encoder {
  int loaded, usable;
  uint64_t addresses[BUFFERS], lengths[BUFFERS];
  uint8_t owned[BUFFERS];   /* a buffer's memory, not bytes of setBytes */
  int64_t changed[BUFFERS]; /* place in `kept` of what Python does not know yet */
  id bound[BUFFERS];
  uint32_t scratch[SCRATCH];
  uint32_t emptied;
  id pipeline; /* retained */
  char *inlined;
  size_t inline_left, inline_next; /* bytes left, and how many to ask for then */
  id *kept;
  size_t kept_count, kept_room;
  char *commands;
  size_t size, room;
};

/* What encoder_facts in calls.py packs. */
struct facts {
  uint64_t usable, addresses[BUFFERS], lengths[BUFFERS];
  uint32_t scratch[SCRATCH], emptied;
  uint8_t owned[BUFFERS];
};

static void *facts_of(id object, const char *question, size_t size) {
  int state = softmetal_enter();
  struct bridged *bridged = (struct bridged *)object;
  if (!bridged->extra) {
    char *bytes;
    ptrdiff_t length;
    PyObject *got = py.PyObject_CallMethod(softmetal_helper, question, "O", bridged->object);
    if (!got || py.PyBytes_AsStringAndSize(got, &bytes, &length) || (size_t)length > size)
      py.PyErr_Print(), softmetal_fatal("%s failed", question);
    void *facts = softmetal_allocate(size);
    memcpy(facts, bytes, (size_t)length);
    py.Py_DecRef(got);
    __atomic_store_n(&bridged->extra, facts, __ATOMIC_RELEASE);
  }
  softmetal_leave(state);
  return bridged->extra;
}

static void *extra_of(id object, const char *question, size_t size) {
  void *known = __atomic_load_n(&((struct bridged *)object)->extra, __ATOMIC_ACQUIRE);
  return known ? known : facts_of(object, question, size);
}

static int is_named(id object, const char *name) { return !strcmp(object->isa->info->name, name); }

/* ---- the encoder's state, as Python has it ---- */

static struct encoder *new_state(id self) {
  struct bridged *bridged = (struct bridged *)self;
  bridged->extra = softmetal_allocate(sizeof(struct encoder));
  return bridged->extra;
}

static void load(id self, struct encoder *e) {
  struct facts facts;
  char *bytes;
  ptrdiff_t size;
  int state = softmetal_enter();
  PyObject *object = ((struct bridged *)self)->object;
  PyObject *got = py.PyObject_CallMethod(softmetal_helper, "encoder_facts", "O", object);
  if (!got || py.PyBytes_AsStringAndSize(got, &bytes, &size) || (size_t)size > sizeof facts)
    py.PyErr_Print(), softmetal_fatal("encoder_facts failed");
  memcpy(&facts, bytes, (size_t)size);
  py.Py_DecRef(got);
  softmetal_leave(state);
  e->usable = (int)facts.usable;
  memcpy(e->addresses, facts.addresses, sizeof e->addresses);
  memcpy(e->lengths, facts.lengths, sizeof e->lengths);
  memcpy(e->scratch, facts.scratch, sizeof e->scratch);
  memcpy(e->owned, facts.owned, sizeof e->owned);
  e->emptied = facts.emptied;
  for (int i = 0; i < BUFFERS; i++) e->changed[i] = UNCHANGED, e->bound[i] = NULL;
  e->loaded = 1;
}

/* The state if this encoder can do without Python now. */
static struct encoder *usable(id self) {
  struct encoder *e = ((struct bridged *)self)->extra;
  if (!e) e = new_state(self);
  if (!e->loaded) load(self, e);
  return e->usable ? e : NULL;
}

static PyObject *bytes_of(const void *memory, size_t size) {
  return py.PyBytes_FromStringAndSize(memory, (ptrdiff_t)size);
}

/* Hands Python what it does not know yet; Python's lock is held. */
void softmetal_flush_encoder(id self) {
  struct encoder *e =
      is_named(self, "MTLComputeCommandEncoder") ? ((struct bridged *)self)->extra : NULL;
  if (!e || !e->loaded) return;
  e->loaded = 0;
  if (!e->usable) return;
  PyObject *kept_list = py.PyList_New((ptrdiff_t)e->kept_count);
  for (size_t i = 0; i < e->kept_count; i++)
    py.PyList_SetItem(kept_list, (ptrdiff_t)i, softmetal_to_python(e->kept[i]));
  PyObject *parts[] = {
      bytes_of(e->commands, e->size),          bytes_of(e->addresses, sizeof e->addresses),
      bytes_of(e->lengths, sizeof e->lengths), bytes_of(e->changed, sizeof e->changed),
      bytes_of(e->scratch, sizeof e->scratch),
  };
  PyObject *pipeline = softmetal_to_python(e->pipeline);
  PyObject *done = py.PyObject_CallMethod(
      softmetal_helper, "encoded", "OOOOOOOOI", ((struct bridged *)self)->object, parts[0],
      parts[1], parts[2], parts[3], parts[4], kept_list, pipeline, e->emptied);
  if (!done) py.PyErr_Print(), softmetal_fatal("encoded failed");
  for (int i = 0; i < 5; i++) py.Py_DecRef(parts[i]);
  py.Py_DecRef(kept_list), py.Py_DecRef(pipeline), py.Py_DecRef(done);
  for (size_t i = 0; i < e->kept_count; i++) objc_release(e->kept[i]);
  e->kept_count = e->size = e->inline_left = 0;
}

void softmetal_free_extra(id object) {
  struct bridged *bridged = (struct bridged *)object;
  if (!bridged->extra) return;
  if (is_named(object, "MTLComputeCommandEncoder")) {
    struct encoder *e = bridged->extra;
    for (size_t i = 0; i < e->kept_count; i++) objc_release(e->kept[i]);
    objc_release(e->pipeline);
    free(e->kept), free(e->commands);
  }
  free(bridged->extra);
}

static int64_t keep(struct encoder *e, id object) {
  if (e->kept_count == e->kept_room) {
    e->kept_room = e->kept_room ? 2 * e->kept_room : 32;
    e->kept = realloc(e->kept, e->kept_room * sizeof *e->kept);
    if (!e->kept) softmetal_fatal("out of memory for an encoder");
  }
  e->kept[e->kept_count] = objc_retain(object);
  return (int64_t)e->kept_count++;
}

/* ---- the messages ---- */

extern void softmetal_forward(void) __attribute__((visibility("hidden")));

static void set_pipeline(id self, SEL selector, id pipeline) {
  struct encoder *e = usable(self);
  if (e && pipeline && is_named(pipeline, "MTLComputePipelineState")) {
    if (pipeline == e->pipeline) return;
    keep(e, pipeline);
    objc_retain(pipeline), objc_release(e->pipeline);
    e->pipeline = pipeline;
    return;
  }
  ((void (*)(id, SEL, id))softmetal_forward)(self, selector, pipeline);
}

static void set_buffer(id self, SEL selector, id object, uint64_t offset, uint64_t index) {
  struct encoder *e = usable(self);
  struct buffer *buffer = NULL;
  if (object && is_named(object, "MTLBuffer"))
    buffer = extra_of(object, "buffer_facts", sizeof *buffer);
  if (!e || index >= BUFFERS || (object && (!buffer || offset >= buffer->length))) {
    ((void (*)(id, SEL, id, uint64_t, uint64_t))softmetal_forward)(self, selector, object, offset,
                                                                   index);
    return;
  }
  e->addresses[index] = buffer ? buffer->address + offset : 0;
  e->lengths[index] = buffer ? buffer->length - offset : 0;
  e->owned[index] = buffer != NULL;
  if (!buffer)
    e->changed[index] = NOTHING;
  else if (e->bound[index] != object)
    e->changed[index] = keep(e, object);
  e->bound[index] = object;
}

static void set_offset(id self, SEL selector, uint64_t offset, uint64_t index) {
  struct encoder *e = usable(self);
  id object = e && index < BUFFERS ? e->bound[index] : NULL;
  if (object)
    set_buffer(self, selector, object, offset, index);
  else
    ((void (*)(id, SEL, uint64_t, uint64_t))softmetal_forward)(self, selector, offset, index);
}

/* Room for bytes that live as long as the command buffer. */
static char *inline_room(id self, struct encoder *e, size_t length) {
  size_t taken = (length + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
  if (taken > e->inline_left) {
    int state = softmetal_enter();
    size_t wanted = e->inline_next ? e->inline_next : INLINE_BYTES;
    PyObject *got = py.PyObject_CallMethod(softmetal_helper, "inline_block", "Oi",
                                           ((struct bridged *)self)->object, (int)wanted);
    if (!got) py.PyErr_Print(), softmetal_fatal("inline_block failed");
    e->inlined = (char *)softmetal_to_bits(got);
    e->inline_left = wanted;
    e->inline_next = LARGE_BLOCK;
    py.Py_DecRef(got);
    softmetal_leave(state);
  }
  char *room = e->inlined;
  e->inlined += taken, e->inline_left -= taken;
  return room;
}

static void set_bytes(id self, SEL selector, const void *bytes, uint64_t length, uint64_t index) {
  struct encoder *e = usable(self);
  if (!e || index >= BUFFERS || !bytes || !length || length > INLINE_BYTES) {
    ((void (*)(id, SEL, const void *, uint64_t, uint64_t))softmetal_forward)(self, selector, bytes,
                                                                             length, index);
    return;
  }
  char *room = inline_room(self, e, length);
  memcpy(room, bytes, length);
  e->addresses[index] = (uint64_t)room;
  e->lengths[index] = length;
  e->owned[index] = 0;
  e->changed[index] = NOTHING;
  e->bound[index] = NULL;
}

static void set_scratch(id self, SEL selector, uint64_t length, uint64_t index) {
  struct encoder *e = usable(self);
  if (!e || index >= SCRATCH || length > 1 << 16) {
    ((void (*)(id, SEL, uint64_t, uint64_t))softmetal_forward)(self, selector, length, index);
    return;
  }
  e->scratch[index] = ((uint32_t)length + 15) & ~15u; /* as by Apple's driver */
  e->emptied = (e->emptied & ~(1u << index)) | (uint32_t)!length << index;
}

/* Whether Python has accepted this size of threadgroups, and these lengths of their memory. */
static int is_checked(struct encoder *e, struct pipeline *p, struct size3 group) {
  size_t lengths = p->scratch * sizeof *e->scratch;
  int found = 0;
  pthread_mutex_lock(&p->lock);
  uint32_t known = p->checked_count < VERIFIED ? p->checked_count : VERIFIED;
  for (uint32_t i = 0; i < known && !found; i++)
    found = !memcmp(&p->checked[i].group, &group, sizeof group) &&
            !memcmp(p->checked[i].scratch, e->scratch, lengths);
  pthread_mutex_unlock(&p->lock);
  if (found && !(p->scratch && e->emptied)) return 1;
  int state = softmetal_enter();
  PyObject *packed = bytes_of(e->scratch, lengths);
  PyObject *got = py.PyObject_CallMethod(softmetal_helper, "checks_group", "OKKKOI",
                                         ((struct bridged *)e->pipeline)->object, group.sides[0],
                                         group.sides[1], group.sides[2], packed, e->emptied);
  if (!got) py.PyErr_Print(), softmetal_fatal("checks_group failed");
  int accepted = got == py._Py_TrueStruct;
  py.Py_DecRef(packed), py.Py_DecRef(got);
  softmetal_leave(state);
  if (!accepted) return 0;
  pthread_mutex_lock(&p->lock);
  struct checked *place = &p->checked[p->checked_count++ % VERIFIED];
  place->group = group;
  memcpy(place->scratch, e->scratch, lengths);
  pthread_mutex_unlock(&p->lock);
  return 1;
}

static int are_bound(struct encoder *e, struct pipeline *p) {
  for (uint32_t i = 0; i < p->wanted_count; i++) {
    struct wanted *w = &p->wanted[i];
    if (e->lengths[w->index] < w->size || e->addresses[w->index] & w->low_bits ||
        (w->written && !e->owned[w->index]))
      return 0;
  }
  return 1;
}

static void *put(struct encoder *e, const void *bytes, size_t size) {
  memcpy(e->commands + e->size, bytes, size);
  e->size += size;
  return NULL;
}

static void write_dispatch(struct encoder *e, struct pipeline *p, struct size3 grid,
                           struct size3 group) {
  size_t scratch = (p->scratch + 1) / 2 * 8;
  size_t size = 8 + 8 + 24 + 8 + 8 + 8 * (size_t)p->buffers + scratch;
  if (e->size + size > e->room) {
    e->room = 2 * (e->room + size);
    e->commands = realloc(e->commands, e->room);
    if (!e->commands) softmetal_fatal("out of memory for an encoder");
  }
  uint32_t head[] = {DISPATCH, (uint32_t)size}, sides[6], counts[] = {p->buffers, p->scratch};
  uint64_t indirect = 0;
  for (int i = 0; i < 3; i++)
    sides[i] = (uint32_t)grid.sides[i], sides[3 + i] = (uint32_t)group.sides[i];
  put(e, head, sizeof head), put(e, &p->kernel, 8), put(e, sides, sizeof sides),
      put(e, &indirect, 8);
  put(e, counts, sizeof counts), put(e, e->addresses, 8 * (size_t)p->buffers);
  put(e, e->scratch, 4 * (size_t)p->scratch);
  if (p->scratch % 2) put(e, &indirect, 4);
}

/* Returns whether the dispatch is done. */
static int dispatch(id self, struct size3 grid, struct size3 group) {
  struct encoder *e = usable(self);
  if (!e || !e->pipeline) return 0;
  struct pipeline *p = extra_of(e->pipeline, "pipeline_facts", sizeof *p);
  if (!p->usable || !are_bound(e, p)) return 0;
  for (int i = 0; i < 3; i++)
    if (grid.sides[i] > UINT32_MAX) return 0;
  if (!is_checked(e, p, group)) return 0;
  if (grid.sides[0] && grid.sides[1] && grid.sides[2]) write_dispatch(e, p, grid, group);
  return 1;
}

static void dispatch_threads(id self, SEL selector, struct size3 grid, struct size3 group) {
  if (!dispatch(self, grid, group))
    ((void (*)(id, SEL, struct size3, struct size3))softmetal_forward)(self, selector, grid, group);
}

static void dispatch_groups(id self, SEL selector, struct size3 groups, struct size3 group) {
  struct size3 grid = groups;
  for (int i = 0; i < 3; i++)
    if (__builtin_mul_overflow(groups.sides[i], group.sides[i], &grid.sides[i]))
      grid.sides[i] = ~0ull;
  if (!dispatch(self, grid, group))
    ((void (*)(id, SEL, struct size3, struct size3))softmetal_forward)(self, selector, groups,
                                                                       group);
}

/* Commands run in order: only the checking modes, under which no encoder is usable, want barriers.
 */
static void barrier(id self, SEL selector, uint64_t scope) {
  if (!usable(self)) ((void (*)(id, SEL, uint64_t))softmetal_forward)(self, selector, scope);
}

static const struct {
  const char *selector;
  void *function;
} messages[] = {
    {"setComputePipelineState:", set_pipeline},
    {"setBuffer:offset:atIndex:", set_buffer},
    {"setBufferOffset:atIndex:", set_offset},
    {"setBytes:length:atIndex:", set_bytes},
    {"setThreadgroupMemoryLength:atIndex:", set_scratch},
    {"dispatchThreads:threadsPerThreadgroup:", dispatch_threads},
    {"dispatchThreadgroups:threadsPerThreadgroup:", dispatch_groups},
    {"memoryBarrierWithScope:", barrier},
};

void softmetal_prepare_encoders(Class class) {
  for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
    SEL selector = sel_registerName(messages[i].selector);
    struct objc_method *method = softmetal_add(class, selector, NULL, NULL);
    softmetal_resolve(method, 0);
    method->function = (IMP)messages[i].function;
  }
}
