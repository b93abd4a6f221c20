/* See uses.h. */
#include "uses.h"

#include <stdlib.h>

typedef struct finder {
  sm_uses *uses;
  sm_mirrors *mirrors;
  sm_u32 (*writes)(sm_u64 kernel);
  const char *error;
  sm_mirror *last; /* found: kernels of a list often have their arguments in one buffer */
} finder;

/* The mirror's entry in the uses; null: no memory. */
static sm_used *entry_of(finder *f, sm_mirror *mirror) {
  sm_uses *uses = f->uses;
  size_t place = atomic_load(&mirror->place); /* of another list, perhaps */
  if (place < uses->count && uses->items[place].mirror == mirror) return &uses->items[place];
  if (uses->count == uses->capacity) {
    size_t capacity = uses->capacity ? 2 * uses->capacity : 16;
    sm_used *items = realloc(uses->items, capacity * sizeof *items);
    if (!items) {
      f->error = "no memory for what the program changed";
      return NULL;
    }
    uses->items = items;
    uses->capacity = capacity;
  }
  atomic_store(&mirror->place, uses->count);
  uses->items[uses->count] = (sm_used){.mirror = mirror};
  return &uses->items[uses->count++];
}

static void note(finder *f, sm_u64 address, bool written) {
  const bool same = f->last && address - f->last->device < f->last->length;
  sm_mirror *mirror = same ? f->last : address ? sm_mirror_find(f->mirrors, address) : NULL;
  sm_used *used = mirror ? entry_of(f, mirror) : NULL;
  if (!used) return;
  if (written && !used->written) atomic_fetch_add(&mirror->writers, 1);
  used->written |= written;
  if (same) return;
  f->last = mirror;
  const char *error = sm_mirror_begin(f->mirrors, mirror);
  if (error) f->error = error;
}

/* Memory of a copy: its address on the side that counts. */
static sm_u64 note_copied(finder *f, sm_u64 address, bool written) {
  sm_mirror *mirror = sm_mirror_find(f->mirrors, address);
  sm_used *used = mirror ? entry_of(f, mirror) : NULL;
  if (!used) return address;
  char *host = sm_mirror_stage(mirror, written && !used->copied);
  if (!host) {
    note(f, address, written);
    return address;
  }
  used->copied |= written;
  return (sm_u64)host + (address - mirror->device);
}

static void note_dispatch(finder *f, const sm_dispatch *dispatch, const sm_dispatch *inherited) {
  sm_u64 kernel = dispatch->kernel || !inherited ? dispatch->kernel : inherited->kernel;
  const sm_dispatch *bound = dispatch->buffer_count || !inherited ? dispatch : inherited;
  sm_u32 writes = kernel ? f->writes(kernel) : 0;
  for (sm_u32 i = 0; i < bound->buffer_count; i++)
    note(f, bound->buffers[i], writes >> i & 1);
  note(f, dispatch->indirect, false);
}

/* All slots: which of them run may be decided later. */
static void note_execute(finder *f, const sm_command_execute *execute) {
  note(f, execute->range, false);
  for (sm_u32 i = 0; i < execute->slot_count; i++) {
    const char *slot = (const char *)execute->slots + (size_t)i * SM_SLOT_BYTES;
    if (((const sm_dispatch *)slot)->group[0])
      note_dispatch(f, (const sm_dispatch *)slot, &execute->inherited);
  }
}

static void note_command(finder *f, const sm_command *command) {
  switch (command->opcode) {
    case SM_OP_DISPATCH:
      note_dispatch(f, &((const sm_command_dispatch *)command)->dispatch, NULL);
      break;
    case SM_OP_FILL:
      note(f, ((const sm_command_fill *)command)->destination, true);
      break;
    case SM_OP_TIMESTAMP:
      note(f, ((const sm_command_timestamp *)command)->address, true);
      break;
    case SM_OP_GEMM:
      note(f, ((const sm_command_gemm *)command)->a, false);
      note(f, ((const sm_command_gemm *)command)->b, false);
      note(f, ((const sm_command_gemm *)command)->c, true);
      break;
    case SM_OP_EXECUTE:
      note_execute(f, (const sm_command_execute *)command);
      break;
    case SM_OP_USE:
      note(f, ((const sm_command_use *)command)->address,
           ((const sm_command_use *)command)->written);
      break;
    default:
      break;
  }
}

const char *sm_uses_collect(sm_uses *uses, sm_mirrors *mirrors, char *list, size_t size,
                            sm_u32 (*writes)(sm_u64 kernel)) {
  finder f = {uses, mirrors, writes, NULL, NULL};
  if (!mirrors->count) return NULL;
  for (char *at = list; at < list + size; at += ((sm_command *)at)->size)
    note_command(&f, (sm_command *)at);
  /* Kernels decide which sides count, so copies come after them. */
  for (char *at = list; at < list + size; at += ((sm_command *)at)->size) {
    sm_command_copy *copy = (sm_command_copy *)at;
    if (copy->head.opcode != SM_OP_COPY) continue;
    copy->source = note_copied(&f, copy->source, false);
    copy->destination = note_copied(&f, copy->destination, true);
  }
  for (size_t i = 0; i < uses->count && !f.error; i++)
    f.error = sm_mirror_collect(uses->items[i].mirror, &uses->patches);
  return f.error;
}

void sm_uses_end(sm_uses *uses) {
  for (size_t i = 0; i < uses->count; i++) {
    sm_used *used = &uses->items[i];
    if (used->written) atomic_fetch_sub(&used->mirror->writers, 1);
    if (used->copied) atomic_fetch_sub(&used->mirror->copiers, 1);
  }
}

void sm_uses_free(sm_uses *uses) {
  free(uses->items);
  free(uses->patches.items);
}
