/* Objects that a program associates with others, under an address of its own. */
#include "native.h"

enum { RETAINED = 1, COPIED = 3, ATOMIC = 0x300 }; /* bits of OBJC_ASSOCIATION_... */

struct association {
  id owner, value;
  const void *key;
  int held; /* a reference of ours */
  struct association *next;
};

enum { BUCKETS = 1024 };
static struct association *table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct association **bucket(id owner) { return &table[((uintptr_t)owner >> 4) % BUCKETS]; }

static struct association **place_of(id owner, const void *key) {
  struct association **each = bucket(owner);
  while (*each && ((*each)->owner != owner || (*each)->key != key)) each = &(*each)->next;
  return each;
}

static void end(struct association *removed) {
  if (!removed) return;
  if (removed->held)
    objc_release(removed->value); /* which may come back here: not under the lock */
  free(removed);
}

id objc_getAssociatedObject(id owner, const void *key) {
  if (!owner) return NULL;
  pthread_mutex_lock(&lock);
  struct association *found = *place_of(owner, key);
  id value = found ? found->value : NULL;
  if (found && found->held) objc_retain(value);
  pthread_mutex_unlock(&lock);
  return found && found->held ? objc_autorelease(value) : value;
}

static struct association *made_of(id owner, const void *key, id value, uintptr_t policy) {
  struct association *made = softmetal_allocate(sizeof *made);
  *made = (struct association){owner, value, key, (policy & ~(uintptr_t)ATOMIC) != 0, NULL};
  if ((policy & COPIED) == COPIED)
    made->value = ((id (*)(id, SEL))softmetal_lookup(value, sel_registerName("copy")))(
        value, sel_registerName("copy"));
  else if (made->held)
    objc_retain(value);
  return made;
}

void objc_setAssociatedObject(id owner, const void *key, id value, uintptr_t policy) {
  if (!owner) return;
  struct association *made = value ? made_of(owner, key, value, policy) : NULL;
  if (!softmetal_is_class(owner)) atomic_store(&HEAD(owner)->associated, 1);
  pthread_mutex_lock(&lock);
  struct association **place = place_of(owner, key), *before = *place;
  if (before) *place = before->next;
  if (made) made->next = *bucket(owner), *bucket(owner) = made;
  pthread_mutex_unlock(&lock);
  end(before);
}

void softmetal_drop_associated(id owner) {
  struct association *removed = NULL;
  pthread_mutex_lock(&lock);
  for (struct association **each = bucket(owner); *each;) {
    struct association *found = *each;
    if (found->owner != owner) {
      each = &found->next;
      continue;
    }
    *each = found->next;
    found->next = removed;
    removed = found;
  }
  pthread_mutex_unlock(&lock);
  while (removed) {
    struct association *next = removed->next;
    end(removed);
    removed = next;
  }
}

void objc_removeAssociatedObjects(id owner) {
  if (owner) softmetal_drop_associated(owner);
}
