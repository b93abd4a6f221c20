/* What the parts of the native library share: Apple's layout of classes and objects, and functions
   that only the library itself calls. */
#pragma once

#include <objc/runtime.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what clang writes for Apple's runtimes ---- */

struct method_entry {
  const char *selector, *types;
  IMP function;
};

struct method_list {
  uint32_t entry_size, count;
  struct method_entry entries[];
};

struct protocol {
  void *isa;
  const char *name;
  struct protocol_list *protocols;
};

struct protocol_list {
  uintptr_t count;
  struct protocol *entries[];
};

struct ivar {
  int32_t *offset;
  const char *name, *type;
  uint32_t alignment, size;
};

struct ivar_list {
  uint32_t entry_size, count;
  struct ivar entries[];
};

struct class_data {
  uint32_t flags, start, size, reserved;
  const void *layout;
  const char *name;
  struct method_list *methods;
  struct protocol_list *protocols;
  struct ivar_list *ivars;
};

struct objc_class {
  Class isa, superclass;
  struct class_info *info; /* &_objc_empty_cache until the class is registered */
  void *unused;
  struct class_data *data;
};

struct category {
  const char *name;
  Class class;
  struct method_list *methods, *class_methods;
  struct protocol_list *protocols;
};

struct objc_super {
  id receiver;
  Class class;
};

/* ---- our own ---- */

struct objc_method {
  Class class;
  SEL selector;
  IMP function;
  const char *types;
  void *signature; /* of a method that Python has */
  struct objc_method *next;
};

struct class_info {
  const char *name;
  void *type; /* the Python class of a bridged one, once it is known */
  _Atomic(struct objc_method *) methods;
  size_t size;
  int bridged; /* its methods are Python's */
  int meta;
  struct adopted *adopted; /* by categories */
  int loaded;              /* +load was called */
  _Atomic int initialized; /* +initialize: not yet, by a thread now, done */
  pthread_t initializer;
};

/* The protocols that a category adopts. */
struct adopted {
  struct protocol_list *protocols;
  struct adopted *next;
};

/* Before every object that is counted. */
struct head {
  _Atomic int64_t count;
  _Atomic short weak;       /* some weak reference points to it */
  _Atomic short associated; /* other objects are associated with it */
};

#define HEAD(object) ((struct head *)(object) - 1)

struct block {
  Class isa;
  int flags, reserved;
  void *invoke;
  struct block_layout {
    unsigned long reserved, size;
    void (*copy)(void *to, void *from); /* these two only with BLOCK_HAS_COPY_DISPOSE */
    void (*dispose)(void *block);
  } *layout;
};

enum { BLOCK_HAS_COPY_DISPOSE = 1 << 25, BLOCK_IS_GLOBAL = 1 << 28 };

#pragma GCC visibility push(hidden)

_Noreturn void softmetal_fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* NSRangeException and others, by name */
_Noreturn void softmetal_raise(const char *exception, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void softmetal_uncaught(id object);
void softmetal_missing(const char *kind, const char *owner, const char *name);
void *softmetal_allocate(size_t size);

Class softmetal_class(const char *name);
Class softmetal_bridged_class(const char *name, void *type);
int softmetal_is_class(id object);
int softmetal_is_kind(id object, Class class);
int softmetal_has_protocol(Class class, const char *name);
struct objc_method *softmetal_method(Class class, SEL selector);
struct objc_method *softmetal_add(Class class, SEL selector, IMP function, const char *types);
IMP softmetal_lookup(id object, SEL selector);
void softmetal_call_destructors(id object);

id softmetal_make(Class class, size_t size);
int softmetal_try_retain(id object);
void softmetal_free(id object);
void softmetal_clear_weak(id object);
void softmetal_drop_associated(id object);

/* messages.c and python.c, which know Python */
int softmetal_resolve(struct objc_method *method, int is_class_method);
void softmetal_destroy_bridged(id object);

/* Foundation's values, for python.c */
id softmetal_string(const char *text, size_t size);
const char *softmetal_text(id string, size_t *size);
id softmetal_data(const void *bytes, size_t size);
id softmetal_integer(int64_t value);
id softmetal_boolean(int value);
id softmetal_real(double value);
id softmetal_array(id *taken, size_t count);
id softmetal_dictionary(id *taken_keys, id *taken_values, size_t count);
id softmetal_error(id domain, int64_t code, id description);
id softmetal_url(id text);

#pragma GCC visibility pop

_Noreturn void objc_exception_throw(id object);
id objc_retain(id object);
void objc_release(id object);
id objc_autorelease(id object);
void *objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void *pool);
void *_Block_copy(const void *block);
void _Block_release(const void *block);

extern void *_objc_empty_cache;
extern struct objc_class NSObject_class __asm__("OBJC_CLASS_$_NSObject");
extern struct objc_class stack_block __asm__("_NSConcreteStackBlock");
extern struct objc_class global_block __asm__("_NSConcreteGlobalBlock");
extern struct objc_class heap_block __asm__("_NSConcreteMallocBlock");
extern struct objc_class constant_string __asm__("__CFConstantStringClassReference");
