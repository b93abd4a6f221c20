/* Selectors, classes and methods, in the layout that clang writes for Apple's runtimes. */
#include "native.h"

#include <stdarg.h>

void *_objc_empty_cache, *_objc_empty_vtable;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void softmetal_fatal(const char *format, ...) {
  va_list values;
  va_start(values, format);
  fputs("softmetal: ", stderr);
  vfprintf(stderr, format, values);
  fputc('\n', stderr);
  abort();
}

void *softmetal_allocate(size_t size) {
  void *memory = calloc(1, size ? size : 1);
  if (!memory) softmetal_fatal("out of memory: cannot allocate %zu bytes", size);
  return memory;
}

/* What a program asked for and did not get, a line each, for `softmetal native --explain`. */
void softmetal_missing(const char *kind, const char *owner, const char *name) {
  const char *path = getenv("SOFTMETAL_NATIVE_MISSING");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s %s %s\n", kind, owner, name);
  fclose(file);
}

/* ---- selectors: strings that are equal where their addresses are ---- */

enum { BUCKETS = 1 << 14 };

struct name {
  struct name *next;
  char text[];
};

static _Atomic(struct name *) names[BUCKETS];

static unsigned hash_of(const char *text) {
  unsigned hash = 5381;
  while (*text) hash = hash * 33 + (unsigned char)*text++;
  return hash % BUCKETS;
}

static const char *known_name(const char *text, unsigned hash) {
  for (struct name *each = atomic_load(&names[hash]); each; each = each->next)
    if (!strcmp(each->text, text)) return each->text;
  return NULL;
}

SEL sel_registerName(const char *text) {
  unsigned hash = hash_of(text);
  const char *known = known_name(text, hash);
  if (known) return (SEL)known;
  pthread_mutex_lock(&lock);
  if (!(known = known_name(text, hash))) {
    struct name *added = softmetal_allocate(sizeof *added + strlen(text) + 1);
    strcpy(added->text, text);
    added->next = atomic_load(&names[hash]);
    atomic_store(&names[hash], added);
    known = added->text;
  }
  pthread_mutex_unlock(&lock);
  return (SEL)known;
}

SEL sel_getUid(const char *text) { return sel_registerName(text); }
const char *sel_getName(SEL selector) {
  return selector ? (const char *)selector : "<null selector>";
}
BOOL sel_isEqual(SEL a, SEL b) { return a == b; }

/* ---- methods ---- */

/* Found methods by class and selector, inherited ones too. Entries are added and never removed. */
struct found {
  Class class;
  SEL selector;
  struct objc_method *method;
  struct found *next;
};
static _Atomic(struct found *) cache[BUCKETS];
static atomic_int has_found; /* until then the cache is empty */

static unsigned place_of(Class class, SEL selector) {
  return (((uintptr_t)class >> 3) * 31 + ((uintptr_t)selector >> 3)) % BUCKETS;
}

/* Called by objc_msgSend with the program's floating point registers still in use. */
__attribute__((target("general-regs-only"), visibility("hidden"))) IMP
softmetal_cached(id object, SEL selector) {
  Class class = object->isa;
  struct found *each =
      atomic_load_explicit(&cache[place_of(class, selector)], memory_order_acquire);
  for (; each; each = each->next)
    if (each->class == class && each->selector == selector) return each->method->function;
  return NULL;
}

static struct objc_method *cached_method(Class class, SEL selector) {
  struct found *each =
      atomic_load_explicit(&cache[place_of(class, selector)], memory_order_acquire);
  for (; each; each = each->next)
    if (each->class == class && each->selector == selector) return each->method;
  return NULL;
}

static void remember(Class class, SEL selector, struct objc_method *method) {
  _Atomic(struct found *) *place = &cache[place_of(class, selector)];
  struct found *added = softmetal_allocate(sizeof *added);
  *added = (struct found){class, selector, method, atomic_load(place)};
  atomic_store(&has_found, 1);
  while (!atomic_compare_exchange_weak(place, &added->next, added)) {
  }
}

static struct objc_method *own_method(Class class, SEL selector) {
  struct objc_method *each = atomic_load(&class->info->methods);
  while (each && each->selector != selector) each = each->next;
  return each;
}

static int is_below(Class class, Class above) {
  while (class && class != above) class = class->superclass;
  return class != NULL;
}

/* Entries of the cache that a new method of `class` takes the place of. */
static void replace_found(struct objc_method *added) {
  for (int i = 0; i < BUCKETS; i++)
    for (struct found *each = atomic_load(&cache[i]); each; each = each->next)
      if (each->selector == added->selector && is_below(each->class, added->class) &&
          is_below(added->class, each->method->class))
        each->method = added;
}

struct objc_method *softmetal_add(Class class, SEL selector, IMP function, const char *types) {
  struct objc_method *added = softmetal_allocate(sizeof *added);
  *added = (struct objc_method){class, selector, function, types, NULL, NULL};
  pthread_mutex_lock(&lock);
  added->next = atomic_load(&class->info->methods);
  atomic_store(&class->info->methods, added);
  if (atomic_load(&has_found)) replace_found(added);
  pthread_mutex_unlock(&lock);
  return added;
}

/* A method of this class that Python has; methods of the runtime itself are not Python's. */
static struct objc_method *bridged_method(Class class, SEL selector) {
  struct objc_method *method = softmetal_allocate(sizeof *method);
  *method = (struct objc_method){.class = class, .selector = selector};
  if (softmetal_resolve(method, class->info->meta)) return method;
  free(method);
  return NULL;
}

struct objc_method *softmetal_method(Class class, SEL selector) {
  if (!class) return NULL;
  struct objc_method *method = cached_method(class, selector);
  if (method) return method;
  for (Class each = class; each && !method; each = each->superclass) {
    method = own_method(each, selector);
    if (!method && each->info->bridged) method = bridged_method(each, selector);
  }
  if (method) remember(class, selector, method);
  return method;
}

static _Noreturn void unrecognized(Class class, SEL selector) {
  char sign = class->info->meta ? '+' : '-';
  const char *name = sel_getName(selector);
  softmetal_missing("method", class->info->name, name);
  softmetal_raise("NSInvalidArgumentException",
                  "%c[%s %s]: unrecognized selector: softmetal's %s has no such method", sign,
                  class->info->name, name, class->info->name);
}

/* ---- +initialize: before the first message to a class, after that of its superclass ---- */

enum { FRESH, INITIALIZING, INITIALIZED };
static pthread_mutex_t initializing = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t initialized = PTHREAD_COND_INITIALIZER;

/* Whether this thread is the one to call it; others wait, and the one that does may send messages.
 */
static int begins_initializing(struct class_info *info) {
  pthread_mutex_lock(&initializing);
  while (info->initialized == INITIALIZING && !pthread_equal(info->initializer, pthread_self()))
    pthread_cond_wait(&initialized, &initializing);
  int begins = info->initialized == FRESH;
  if (begins) info->initialized = INITIALIZING, info->initializer = pthread_self();
  pthread_mutex_unlock(&initializing);
  return begins;
}

static void initialize(Class class) {
  struct class_info *info = class->info;
  if (atomic_load(&info->initialized) == INITIALIZED) return;
  if (class->superclass) initialize(class->superclass);
  if (!begins_initializing(info)) return;
  SEL selector = sel_registerName("initialize");
  struct objc_method *method = softmetal_method(class->isa, selector);
  if (method) ((void (*)(Class, SEL))method->function)(class, selector);
  pthread_mutex_lock(&initializing);
  info->initialized = INITIALIZED;
  pthread_cond_broadcast(&initialized);
  pthread_mutex_unlock(&initializing);
}

IMP softmetal_lookup(id object, SEL selector) {
  if (object->isa->info->meta) initialize((Class)object);
  struct objc_method *method = softmetal_method(object->isa, selector);
  if (!method) unrecognized(object->isa, selector);
  return method->function;
}

__attribute__((visibility("hidden"))) IMP softmetal_super_lookup(struct objc_super *call,
                                                                 SEL selector) {
  struct objc_method *method = softmetal_method(call->class->superclass, selector);
  if (!method) unrecognized(call->class->superclass, selector);
  return method->function;
}

/* ---- classes ---- */

static Class *classes;
static size_t class_count, class_room;

static void list_class(Class class) {
  pthread_mutex_lock(&lock);
  if (class_count == class_room) {
    class_room = class_room ? 2 * class_room : 256;
    classes = realloc(classes, class_room * sizeof *classes);
    if (!classes) softmetal_fatal("out of memory for classes");
  }
  classes[class_count++] = class;
  pthread_mutex_unlock(&lock);
}

Class softmetal_class(const char *name) {
  Class found = NULL;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < class_count && !found; i++)
    if (!strcmp(classes[i]->info->name, name)) found = classes[i];
  pthread_mutex_unlock(&lock);
  return found;
}

static void add_methods(Class class, struct method_list *list) {
  uint32_t size = list ? list->entry_size & 0xfffc : 0;
  for (uint32_t i = 0; list && i < list->count; i++) {
    struct method_entry *entry = (void *)((char *)list->entries + i * size);
    softmetal_add(class, sel_registerName(entry->selector), entry->function, entry->types);
  }
}

static struct class_info *info_of(const char *name, size_t size, int meta) {
  struct class_info *info = softmetal_allocate(sizeof *info);
  info->name = name;
  info->size = size;
  info->meta = meta;
  return info;
}

/* Instance variables follow those of the superclass, whose size the compiler may not have known. */
static void place_ivars(Class class) {
  struct class_data *data = class->data;
  if (!class->superclass || !data->ivars) return;
  size_t above = class->superclass->info->size;
  if (above <= data->start) return;
  size_t shift = (above - data->start + 15) & ~(size_t)15;
  for (uint32_t i = 0; i < data->ivars->count; i++)
    *data->ivars->entries[i].offset += (int32_t)shift;
  class->info->size += shift;
}

static void register_class(Class class) {
  if (class->info && (void *)class->info != &_objc_empty_cache) return;
  if (class->superclass) register_class(class->superclass);
  class->isa->info = info_of(class->data->name, class->isa->data->size, 1);
  class->info = info_of(class->data->name, class->data->size, 0);
  if (class->superclass) {
    int bridged = class->superclass->info->bridged || !strcmp(class->data->name, "SoftmetalObject");
    class->info->bridged = class->isa->info->bridged = bridged;
    if (class->superclass->info->size > class->info->size && !class->data->ivars)
      class->info->size = class->superclass->info->size;
  }
  place_ivars(class);
  add_methods(class->isa, class->isa->data->methods);
  add_methods(class, class->data->methods);
  list_class(class);
}

static void adopt(Class class, struct protocol_list *protocols) {
  if (!protocols) return;
  struct adopted *added = softmetal_allocate(sizeof *added);
  *added = (struct adopted){protocols, class->info->adopted};
  class->info->adopted = added;
}

/* The +load of a class, or of a category, is called by itself: none takes the place of another. */
static void call_load(Class class, struct method_list *list) {
  uint32_t size = list ? list->entry_size & 0xfffc : 0;
  for (uint32_t i = 0; list && i < list->count; i++) {
    struct method_entry *entry = (void *)((char *)list->entries + i * size);
    SEL selector = sel_registerName(entry->selector);
    if (!strcmp(entry->selector, "load")) ((void (*)(Class, SEL))entry->function)(class, selector);
  }
}

static void load_class(Class class) {
  if (!class || class->info->loaded || !class->data) return;
  load_class(class->superclass);
  class->info->loaded = 1;
  call_load(class, class->isa->data->methods);
}

/* Called once or more by every image that has Objective-C in it, before its other constructors. */
void softmetal_register_image(void **const *const sections) {
  enum { SELECTORS, CLASSES, CATEGORIES };
  for (void **each = sections[2 * SELECTORS]; each < sections[2 * SELECTORS + 1]; each++)
    *each = sel_registerName(*each);
  for (void **each = sections[2 * CLASSES]; each < sections[2 * CLASSES + 1]; each++)
    register_class(*each);
  for (void **each = sections[2 * CATEGORIES]; each < sections[2 * CATEGORIES + 1]; each++) {
    struct category *category = *each;
    if (!category) continue;
    add_methods(category->class, category->methods);
    add_methods(category->class->isa, category->class_methods);
    adopt(category->class, category->protocols);
  }
  for (void **each = sections[2 * CLASSES]; each < sections[2 * CLASSES + 1]; each++)
    load_class(*each);
  for (void **each = sections[2 * CATEGORIES]; each < sections[2 * CATEGORIES + 1]; each++) {
    struct category *category = *each;
    *each = NULL; /* the next source of the image registers the same section */
    if (category) call_load(category->class, category->class_methods);
  }
}

Class objc_allocateClassPair(Class superclass, const char *name, size_t extra) {
  if (!superclass || softmetal_class(name)) return Nil;
  Class class = softmetal_allocate(2 * sizeof *class), meta = class + 1;
  *meta = (struct objc_class){superclass->isa->isa, superclass->isa, NULL, NULL, NULL};
  *class = (struct objc_class){meta, superclass, NULL, NULL, NULL};
  const char *kept = strdup(name);
  class->info = info_of(kept, superclass->info->size + extra, 0);
  meta->info = info_of(kept, superclass->isa->info->size, 1);
  class->info->bridged = meta->info->bridged = superclass->info->bridged;
  return class;
}

void objc_registerClassPair(Class class) { list_class(class); }

Class softmetal_bridged_class(const char *name, void *type) {
  Class class = softmetal_class(name);
  if (!class) {
    class = objc_allocateClassPair(softmetal_class("SoftmetalObject"), name, 0);
    list_class(class);
  }
  if (class->info->bridged) class->info->type = class->isa->info->type = type;
  return class;
}

int softmetal_is_class(id object) { return object->isa->info && object->isa->info->meta; }

int softmetal_is_kind(id object, Class class) {
  for (Class each = object->isa; each; each = each->superclass)
    if (each == class) return 1;
  return 0;
}

static int names_protocol(struct protocol_list *list, const char *name) {
  for (uintptr_t i = 0; list && i < list->count; i++)
    if (!strcmp(list->entries[i]->name, name) || names_protocol(list->entries[i]->protocols, name))
      return 1;
  return 0;
}

static int adopts(Class class, const char *name) {
  for (struct adopted *each = class->info->adopted; each; each = each->next)
    if (names_protocol(each->protocols, name)) return 1;
  return class->data && names_protocol(class->data->protocols, name);
}

/* Python's classes have the names of the protocols that Apple's objects conform to. */
int softmetal_has_protocol(Class class, const char *name) {
  for (Class each = class; each; each = each->superclass)
    if (adopts(each, name) || (each->info->bridged && !strcmp(each->info->name, name))) return 1;
  return 0;
}

/* Calls `.cxx_destruct` of each class that has one: it releases the variables of ARC. */
void softmetal_call_destructors(id object) {
  static SEL selector;
  if (!selector) selector = sel_registerName(".cxx_destruct");
  for (Class each = object->isa; each; each = each->superclass) {
    struct objc_method *method = own_method(each, selector);
    if (method) ((void (*)(id, SEL))method->function)(object, selector);
  }
}

/* ---- the functions that programs call ---- */

Class objc_lookUpClass(const char *name) {
  Class found = softmetal_class(name);
  if (!found) softmetal_missing("class", "-", name);
  return found;
}

Class objc_getClass(const char *name) { return objc_lookUpClass(name); }

Class objc_getRequiredClass(const char *name) {
  Class found = objc_lookUpClass(name);
  if (!found) softmetal_fatal("there is no class %s", name);
  return found;
}

Class objc_getMetaClass(const char *name) {
  Class found = objc_lookUpClass(name);
  return found ? found->isa : Nil;
}

Class object_getClass(id object) { return object ? object->isa : Nil; }
const char *class_getName(Class class) { return class ? class->info->name : "nil"; }
const char *object_getClassName(id object) { return class_getName(object_getClass(object)); }
Class class_getSuperclass(Class class) { return class ? class->superclass : Nil; }
BOOL class_isMetaClass(Class class) { return class && class->info->meta; }
size_t class_getInstanceSize(Class class) { return class ? class->info->size : 0; }
BOOL object_isClass(id object) { return object && softmetal_is_class(object); }

Method class_getInstanceMethod(Class class, SEL selector) {
  return softmetal_method(class, selector);
}

Method class_getClassMethod(Class class, SEL selector) {
  if (!class) return NULL;
  initialize(class);
  return softmetal_method(class->isa, selector);
}

IMP class_getMethodImplementation(Class class, SEL selector) {
  struct objc_method *method = softmetal_method(class, selector);
  return method ? method->function : NULL;
}

IMP method_getImplementation(Method method) { return method ? method->function : NULL; }
SEL method_getName(Method method) { return method ? method->selector : NULL; }

BOOL class_respondsToSelector(Class class, SEL selector) {
  return softmetal_method(class, selector) != NULL;
}

BOOL class_addMethod(Class class, SEL selector, IMP function, const char *types) {
  if (!class || own_method(class, selector)) return NO;
  softmetal_add(class, selector, function, types);
  return YES;
}

IMP class_replaceMethod(Class class, SEL selector, IMP function, const char *types) {
  struct objc_method *known = softmetal_method(class, selector);
  softmetal_add(class, selector, function, types);
  return known ? known->function : NULL;
}

BOOL class_conformsToProtocol(Class class, struct objc_object *protocol) {
  return class && protocol && softmetal_has_protocol(class, ((struct protocol *)protocol)->name);
}

/* GNUstep's names for looking a method up, which objc2 and compilers for its runtime use. */
static id nothing(void) { return NULL; }

IMP objc_msg_lookup(id object, SEL selector) {
  return object ? softmetal_lookup(object, selector) : (IMP)nothing;
}

IMP objc_msg_lookup_super(struct objc_super *call, SEL selector) {
  if (!call->receiver) return (IMP)nothing;
  struct objc_method *method = softmetal_method(call->class, selector);
  if (!method) unrecognized(call->class, selector);
  return method->function;
}
