/* Blocks in Apple's layout: copied to the heap when they are kept. */
#include "native.h"

enum { FIELD_OBJECT = 3, FIELD_BLOCK = 7, FIELD_BYREF = 8, FIELD_WEAK = 16, FIELD_CALLER = 128 };
enum { FIELD_KINDS = 0x9f };

void *_Block_copy(const void *given) {
  struct block *block = (struct block *)given;
  if (!block || block->flags & BLOCK_IS_GLOBAL) return block;
  if (block->isa == &heap_block) {
    atomic_fetch_add(&HEAD(block)->count, 1);
    return block;
  }
  struct block *copy = (struct block *)softmetal_make(&heap_block, block->layout->size);
  memcpy(copy, block, block->layout->size);
  copy->isa = &heap_block;
  if (block->flags & BLOCK_HAS_COPY_DISPOSE) block->layout->copy(copy, block);
  return copy;
}

void _Block_release(const void *given) {
  struct block *block = (struct block *)given;
  if (!block || block->isa != &heap_block) return;
  if (atomic_fetch_sub(&HEAD(block)->count, 1) != 1) return;
  if (block->flags & BLOCK_HAS_COPY_DISPOSE) block->layout->dispose(block);
  softmetal_free((id)block);
}

/* A `__block` variable: it moves to the heap when the first block that uses it does. */
struct byref {
  void *isa;
  struct byref *forwarding;
  int flags, size;
};

struct byref_with_copy {
  struct byref start;
  void (*keep)(void *to, void *from);
  void (*destroy)(void *variable);
};

enum { BYREF_HAS_COPY_DISPOSE = 1 << 25 };

/* On the heap a count comes before it. */
static _Atomic int64_t *byref_count(struct byref *variable) { return &HEAD(variable)->count; }

static struct byref *copied_byref(struct byref *variable) {
  if (variable->forwarding != variable || variable->isa == &heap_block) {
    atomic_fetch_add(byref_count(variable->forwarding), 1);
    return variable->forwarding;
  }
  struct byref *copy = (struct byref *)softmetal_make(&heap_block, (size_t)variable->size);
  memcpy(copy, variable, (size_t)variable->size);
  copy->isa = &heap_block;
  copy->forwarding = variable->forwarding = copy;
  atomic_store(byref_count(copy), 2); /* the block's, and that of the scope it was declared in */
  if (variable->flags & BYREF_HAS_COPY_DISPOSE)
    ((struct byref_with_copy *)variable)->keep(copy, variable);
  return copy;
}

static void release_byref(struct byref *given) {
  struct byref *variable = given->forwarding;
  if (variable->isa != &heap_block) return; /* it never left the stack */
  if (atomic_fetch_sub(byref_count(variable), 1) != 1) return;
  if (variable->flags & BYREF_HAS_COPY_DISPOSE)
    ((struct byref_with_copy *)variable)->destroy(variable);
  softmetal_free((id)variable);
}

void _Block_object_assign(void *to, const void *object, int flags) {
  switch (flags & FIELD_KINDS) {
  case FIELD_OBJECT: *(id *)to = objc_retain((id)object); break;
  case FIELD_BLOCK: *(void **)to = _Block_copy(object); break;
  case FIELD_BYREF:
  case FIELD_BYREF | FIELD_WEAK: *(void **)to = copied_byref((struct byref *)object); break;
  default: *(const void **)to = object; /* a variable of a `__block` one: not retained */
  }
}

void _Block_object_dispose(const void *object, int flags) {
  switch (flags & FIELD_KINDS) {
  case FIELD_OBJECT: objc_release((id)object); break;
  case FIELD_BLOCK: _Block_release(object); break;
  case FIELD_BYREF:
  case FIELD_BYREF | FIELD_WEAK: release_byref((struct byref *)object); break;
  default: break;
  }
}
