/* Objective-C exceptions on the unwinder that the program is linked with: what clang calls for
   @try, @catch and @throw, and the personality function, which reads clang's tables of handlers.
   Exceptions of C++ are left to its own library. */
#include "native.h"

enum { HANDLER_FOUND = 6, INSTALL_CONTEXT = 7, CONTINUE_UNWIND = 8 };
enum { SEARCH_PHASE = 1, HANDLER_FRAME = 4, FORCE_UNWIND = 8 };

struct unwind_exception {
  uint64_t class;
  void (*cleanup)(int reason, struct unwind_exception *exception);
  uintptr_t own[2];
} __attribute__((aligned));
struct unwind_context;

/* The unwinder, of which each program may have one of its own, linked statically: its images hand
   it over (objc/objc.h). */
typedef int personality(int version, int actions, uint64_t class,
                        struct unwind_exception *exception, struct unwind_context *context);
static struct unwinder {
  int (*raise)(struct unwind_exception *exception);
  void *(*tables)(struct unwind_context *context);
  uintptr_t (*instruction)(struct unwind_context *context);
  uintptr_t (*start)(struct unwind_context *context);
  void (*set_register)(struct unwind_context *context, int number, uintptr_t value);
  void (*set_instruction)(struct unwind_context *context, uintptr_t address);
  personality *of_cpp; /* NULL in programs without C++, as are the others of C++ */
  void *(*begin_catch)(void *exception);
  void (*end_catch)(void);
  void (*rethrow)(void);
} unwinder;

void softmetal_use_unwinder(const struct unwinder *given) {
  if (given->raise && (!unwinder.raise || given->of_cpp)) unwinder = *given;
}

/* ---- what is thrown ---- */

static const uint64_t OURS = 0x536f66744f626a43; /* "SoftObjC" */

struct thrown {
  id object; /* NULL: an exception of C++ */
  int catches, rethrown;
  struct thrown *below; /* of those that this thread has caught */
  struct unwind_exception unwind;
};

static __thread struct thrown *caught;

static struct thrown *thrown_of(struct unwind_exception *exception) {
  return (struct thrown *)((char *)exception - offsetof(struct thrown, unwind));
}

static void discard(struct thrown *thrown) {
  objc_release(thrown->object);
  free(thrown);
}

static void cleanup(int reason, struct unwind_exception *exception) {
  discard(thrown_of(exception));
}

static _Noreturn void raise_it(struct thrown *thrown) {
  if (unwinder.raise) unwinder.raise(&thrown->unwind);
  softmetal_uncaught(thrown->object); /* no frame handles it */
}

_Noreturn void objc_exception_throw(id object) {
  struct thrown *thrown = softmetal_allocate(sizeof *thrown);
  thrown->object = objc_retain(object);
  thrown->unwind.class = OURS;
  thrown->unwind.cleanup = cleanup;
  raise_it(thrown);
}

id objc_begin_catch(struct unwind_exception *exception) {
  struct thrown *thrown;
  if (exception->class == OURS) {
    thrown = thrown_of(exception);
  } else {
    thrown = softmetal_allocate(sizeof *thrown);
    if (unwinder.begin_catch) unwinder.begin_catch(exception);
  }
  if (!thrown->catches++) thrown->below = caught, caught = thrown;
  thrown->rethrown = 0;
  return thrown->object;
}

void objc_end_catch(void) {
  struct thrown *thrown = caught;
  if (!thrown || --thrown->catches) return;
  caught = thrown->below;
  if (thrown->rethrown) return; /* it is on its way to another handler */
  if (thrown->object)
    discard(thrown);
  else
    free(thrown), unwinder.end_catch ? unwinder.end_catch() : (void)0;
}

_Noreturn void objc_exception_rethrow(void) {
  if (!caught) softmetal_fatal("@throw without an exception outside of @catch");
  if (!caught->object && unwinder.rethrow) unwinder.rethrow();
  caught->rethrown = 1;
  raise_it(caught);
}

_Noreturn void objc_terminate(void) {
  softmetal_fatal("an exception left a function that must not throw");
}

/* ---- types of handlers; C++'s personality asks them like its own and hears no ---- */

struct ehtype {
  void **functions;
  const char *name;
  Class class;
};

static int never(void) { return 0; }
void *objc_ehtype_vtable[] = {NULL, NULL, never, never, never, never, never, never, never};
struct ehtype OBJC_EHTYPE_id = {objc_ehtype_vtable + 2, "id", NULL};

/* ---- clang's tables ---- */

static uintptr_t read_number(const uint8_t **at) {
  uintptr_t value = 0;
  for (int shift = 0;; shift += 7) {
    uint8_t byte = *(*at)++;
    value |= (uintptr_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
}

static intptr_t read_signed(const uint8_t **at) {
  const uint8_t *start = *at;
  intptr_t value = (intptr_t)read_number(at);
  int bits = 7 * (int)(*at - start);
  return (*at)[-1] & 64 && bits < 64 ? value | -((intptr_t)1 << bits) : value;
}

/* DWARF's encodings of addresses: the low bits say how long, 0x10 relative to its place, 0x80 an
   address of an address. */
static uintptr_t read_address(const uint8_t **at, uint8_t encoding) {
  const uint8_t *place = *at;
  uintptr_t value = 0;
  switch (encoding & 15) {
  case 0:
  case 4:
  case 12: value = *(uintptr_t *)place, *at += 8; break;
  case 1: value = read_number(at); break;
  case 2: value = *(uint16_t *)place, *at += 2; break;
  case 3: value = *(uint32_t *)place, *at += 4; break;
  case 9: value = (uintptr_t)read_signed(at); break;
  case 10: value = (uintptr_t)*(int16_t *)place, *at += 2; break;
  case 11: value = (uintptr_t)(intptr_t)*(int32_t *)place, *at += 4; break;
  default: softmetal_fatal("a table of exceptions has the unknown encoding %d", encoding);
  }
  if (value && (encoding & 0x70) == 0x10) value += (uintptr_t)place;
  return value && encoding & 0x80 ? *(uintptr_t *)value : value;
}

static size_t size_of(uint8_t encoding) {
  static const uint8_t sizes[16] = {8, 0, 2, 4, 8, 0, 0, 0, 8, 0, 2, 4, 8};
  return sizes[encoding & 15];
}

struct handler {
  uintptr_t place; /* 0: none here */
  intptr_t type;   /* 0: a cleanup alone */
};

static int handles(uintptr_t type, struct unwind_exception *exception) {
  if (!type) return 1; /* @catch (...) */
  struct ehtype *wanted = (struct ehtype *)type;
  int is_ours = wanted->functions == objc_ehtype_vtable + 2; /* else it is a type of C++ */
  if (exception->class != OURS || !is_ours) return 0;
  Class class = wanted->class;
  return !class || softmetal_is_kind(thrown_of(exception)->object, class);
}

static intptr_t chosen(const uint8_t *action, const uint8_t *types, uint8_t encoding,
                       struct unwind_exception *exception) {
  for (;;) {
    intptr_t type = read_signed(&action);
    const uint8_t *next = action;
    intptr_t offset = read_signed(&action);
    const uint8_t *entry = types - type * (intptr_t)size_of(encoding);
    if (type > 0 && handles(read_address(&entry, encoding), exception)) return type;
    if (!offset) return 0;
    action = next + offset;
  }
}

static struct handler handler_of(struct unwind_exception *exception,
                                 struct unwind_context *context) {
  struct handler none = {0};
  const uint8_t *at = unwinder.tables(context), *types = NULL;
  if (!at) return none;
  uintptr_t start = unwinder.start(context), call = unwinder.instruction(context) - 1 - start;
  uint8_t encoding = *at++;
  uintptr_t base = encoding == 0xff ? start : read_address(&at, encoding);
  uint8_t type_encoding = *at++;
  if (type_encoding != 0xff) {
    uintptr_t offset = read_number(&at);
    types = at + offset;
  }
  encoding = *at++;
  uintptr_t length = read_number(&at);
  const uint8_t *actions = at + length;
  while (at < actions) {
    uintptr_t from = read_address(&at, encoding), size = read_address(&at, encoding);
    uintptr_t place = read_address(&at, encoding), action = read_number(&at);
    if (call < from || call >= from + size) continue;
    if (!place) return none;
    intptr_t type = action ? chosen(actions + action - 1, types, type_encoding, exception) : 0;
    return (struct handler){base + place, type};
  }
  return none;
}

int __objc_personality_v0(int version, int actions, uint64_t class,
                          struct unwind_exception *exception, struct unwind_context *context) {
  if (class != OURS && unwinder.of_cpp)
    return unwinder.of_cpp(version, actions, class, exception, context);
  struct handler handler = handler_of(exception, context);
  if (!handler.place) return CONTINUE_UNWIND;
  if (actions & SEARCH_PHASE) return handler.type ? HANDLER_FOUND : CONTINUE_UNWIND;
  if (!(actions & HANDLER_FRAME) || actions & FORCE_UNWIND) handler.type = 0;
  unwinder.set_register(context, __builtin_eh_return_data_regno(0), (uintptr_t)exception);
  unwinder.set_register(context, __builtin_eh_return_data_regno(1), (uintptr_t)handler.type);
  unwinder.set_instruction(context, handler.place);
  return INSTALL_CONTEXT;
}
