/* Reference counts, autorelease pools, ARC's functions and weak references. */
#include "native.h"

id softmetal_make(Class class, size_t size) {
  struct head *head = softmetal_allocate(sizeof *head + size);
  head->count = 1;
  id object = (id)(head + 1);
  object->isa = class;
  return object;
}

void softmetal_free(id object) {
  if (atomic_load(&HEAD(object)->associated)) softmetal_drop_associated(object);
  free(HEAD(object));
}

/* Classes, literals and blocks on the stack have no count. */
static int is_static(id object) {
  return object->isa == &constant_string || object->isa == &global_block ||
         object->isa == &stack_block || softmetal_is_class(object);
}

id objc_retain(id object) {
  if (!object || is_static(object))
    return object && object->isa == &stack_block ? _Block_copy(object) : object;
  atomic_fetch_add_explicit(&HEAD(object)->count, 1, memory_order_relaxed);
  return object;
}

/* Whether the object was alive, and is retained. */
int softmetal_try_retain(id object) {
  if (is_static(object)) return 1;
  int64_t count = atomic_load(&HEAD(object)->count);
  while (count > 0)
    if (atomic_compare_exchange_weak(&HEAD(object)->count, &count, count + 1)) return 1;
  return 0;
}

static void destroy(id object) {
  static SEL dealloc;
  if (!dealloc) dealloc = sel_registerName("dealloc");
  if (atomic_load(&HEAD(object)->weak)) softmetal_clear_weak(object);
  ((void (*)(id, SEL))softmetal_lookup(object, dealloc))(object, dealloc);
}

void objc_release(id object) {
  if (!object || is_static(object)) return;
  if (object->isa == &heap_block) {
    _Block_release(object);
    return;
  }
  int64_t before = atomic_fetch_sub_explicit(&HEAD(object)->count, 1, memory_order_acq_rel);
  if (before == 1) destroy(object);
  if (before <= 0)
    softmetal_fatal("an object of class %s was released after its end", object->isa->info->name);
}

/* ---- autorelease pools: a stack for each thread, drained when the thread ends ---- */

struct pool {
  id *objects;
  size_t count, room;
};

static pthread_key_t pool_key;
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

static void drain(struct pool *pool, size_t to) {
  while (pool->count > to) objc_release(pool->objects[--pool->count]);
}

static void end_pool(void *memory) {
  struct pool *pool = memory;
  pthread_setspecific(pool_key, pool); /* what is released may autorelease */
  drain(pool, 0);
  pthread_setspecific(pool_key, NULL);
  free(pool->objects);
  free(pool);
}

static void make_key(void) { pthread_key_create(&pool_key, end_pool); }

static struct pool *current_pool(void) {
  static __thread struct pool *mine;
  if (mine) return mine;
  pthread_once(&pool_once, make_key);
  mine = softmetal_allocate(sizeof *mine);
  pthread_setspecific(pool_key, mine);
  return mine;
}

id objc_autorelease(id object) {
  if (!object || is_static(object)) return object;
  struct pool *pool = current_pool();
  if (pool->count == pool->room) {
    pool->room = pool->room ? 2 * pool->room : 64;
    pool->objects = realloc(pool->objects, pool->room * sizeof *pool->objects);
    if (!pool->objects) softmetal_fatal("out of memory for an autorelease pool");
  }
  return pool->objects[pool->count++] = object;
}

/* A token is the height of the stack; 0 would be taken for no pool. */
void *objc_autoreleasePoolPush(void) { return (void *)(current_pool()->count + 1); }
void objc_autoreleasePoolPop(void *token) { drain(current_pool(), (size_t)token - 1); }

/* ---- what ARC calls ---- */

id objc_retainAutorelease(id object) { return objc_autorelease(objc_retain(object)); }
id objc_autoreleaseReturnValue(id object) { return objc_autorelease(object); }
id objc_retainAutoreleaseReturnValue(id object) { return objc_retainAutorelease(object); }
id objc_retainAutoreleasedReturnValue(id object) { return objc_retain(object); }
id objc_claimAutoreleasedReturnValue(id object) { return objc_retain(object); }
id objc_unsafeClaimAutoreleasedReturnValue(id object) { return object; }
id objc_retainBlock(id block) { return _Block_copy(block); }

void objc_storeStrong(id *place, id object) {
  id before = *place;
  *place = objc_retain(object);
  objc_release(before);
}

/* ---- weak references: a list of places for each object, under one lock ---- */

struct weak {
  id object;
  id *place;
  struct weak *next;
};

enum { WEAK_BUCKETS = 1024 };
static struct weak *weak[WEAK_BUCKETS];
static pthread_mutex_t weak_lock = PTHREAD_MUTEX_INITIALIZER;

static struct weak **bucket(id object) { return &weak[((uintptr_t)object >> 4) % WEAK_BUCKETS]; }

static void forget(id *place) {
  if (!*place) return;
  for (struct weak **each = bucket(*place); *each; each = &(*each)->next)
    if ((*each)->place == place) {
      struct weak *removed = *each;
      *each = removed->next;
      free(removed);
      return;
    }
}

static id point(id *place, id object) {
  *place = object;
  if (!object || is_static(object)) return object;
  struct weak *added = softmetal_allocate(sizeof *added);
  *added = (struct weak){object, place, *bucket(object)};
  *bucket(object) = added;
  atomic_store(&HEAD(object)->weak, 1);
  return object;
}

void softmetal_clear_weak(id object) {
  pthread_mutex_lock(&weak_lock);
  struct weak **each = bucket(object);
  while (*each) {
    struct weak *found = *each;
    if (found->object != object) {
      each = &found->next;
      continue;
    }
    *found->place = NULL;
    *each = found->next;
    free(found);
  }
  pthread_mutex_unlock(&weak_lock);
}

id objc_initWeak(id *place, id object) {
  pthread_mutex_lock(&weak_lock);
  point(place, object);
  pthread_mutex_unlock(&weak_lock);
  return object;
}

id objc_storeWeak(id *place, id object) {
  pthread_mutex_lock(&weak_lock);
  forget(place);
  point(place, object);
  pthread_mutex_unlock(&weak_lock);
  return object;
}

void objc_destroyWeak(id *place) {
  pthread_mutex_lock(&weak_lock);
  forget(place);
  pthread_mutex_unlock(&weak_lock);
}

id objc_loadWeakRetained(id *place) {
  pthread_mutex_lock(&weak_lock);
  id object = *place;
  if (object && !softmetal_try_retain(object)) object = NULL;
  pthread_mutex_unlock(&weak_lock);
  return object;
}

id objc_loadWeak(id *place) { return objc_autorelease(objc_loadWeakRetained(place)); }

void objc_copyWeak(id *to, id *from) {
  id object = objc_loadWeakRetained(from);
  objc_initWeak(to, object);
  objc_release(object);
}

void objc_moveWeak(id *to, id *from) {
  objc_copyWeak(to, from);
  objc_destroyWeak(from);
}

/* ---- properties and @synchronized ---- */

static pthread_mutex_t property_lock = PTHREAD_MUTEX_INITIALIZER;

static id copied(id object) {
  static SEL copy;
  if (!copy) copy = sel_registerName("copy");
  return object ? ((id (*)(id, SEL))softmetal_lookup(object, copy))(object, copy) : NULL;
}

static void set_property(id self, ptrdiff_t offset, id taken) {
  id *place = (id *)((char *)self + offset);
  pthread_mutex_lock(&property_lock);
  id before = *place;
  *place = taken;
  pthread_mutex_unlock(&property_lock);
  objc_release(before);
}

void objc_setProperty_nonatomic(id self, SEL selector, id value, ptrdiff_t offset) {
  set_property(self, offset, objc_retain(value));
}

void objc_setProperty_atomic(id self, SEL selector, id value, ptrdiff_t offset) {
  set_property(self, offset, objc_retain(value));
}

void objc_setProperty_nonatomic_copy(id self, SEL selector, id value, ptrdiff_t offset) {
  set_property(self, offset, copied(value));
}

void objc_setProperty_atomic_copy(id self, SEL selector, id value, ptrdiff_t offset) {
  set_property(self, offset, copied(value));
}

id objc_getProperty(id self, SEL selector, ptrdiff_t offset, BOOL atomic) {
  id *place = (id *)((char *)self + offset);
  if (!atomic) return *place;
  pthread_mutex_lock(&property_lock);
  id value = objc_retain(*place);
  pthread_mutex_unlock(&property_lock);
  return objc_autorelease(value);
}

void objc_copyStruct(void *to, const void *from, ptrdiff_t size, BOOL atomic, BOOL strong) {
  pthread_mutex_lock(&property_lock);
  memcpy(to, from, (size_t)size);
  pthread_mutex_unlock(&property_lock);
}

enum { SYNC_LOCKS = 64 };
static pthread_mutex_t sync_locks[SYNC_LOCKS];
static pthread_once_t sync_once = PTHREAD_ONCE_INIT;

static void make_sync_locks(void) {
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  for (int i = 0; i < SYNC_LOCKS; i++) pthread_mutex_init(&sync_locks[i], &recursive);
}

static pthread_mutex_t *sync_lock(id object) {
  pthread_once(&sync_once, make_sync_locks);
  return &sync_locks[((uintptr_t)object >> 4) % SYNC_LOCKS];
}

int objc_sync_enter(id object) { return object ? pthread_mutex_lock(sync_lock(object)) : 0; }
int objc_sync_exit(id object) { return object ? pthread_mutex_unlock(sync_lock(object)) : 0; }

void objc_enumerationMutation(id collection) {
  softmetal_raise("NSGenericException", "a %s was changed while it was enumerated",
                  collection->isa->info->name);
}
