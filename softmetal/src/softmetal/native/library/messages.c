/* Messages to softmetal's Python objects: signatures, arguments and results; and Metal's functions.
 */
#include "python.h"

/* ---- signatures, as softmetal/native/signatures.py writes them ---- */

enum { MOST_ARGUMENTS = 12, MOST_WORDS = 3, INLINE_BYTES = 4096 };

struct type {
  char kind; /* v @ Q q I i Z C d f ^, { a structure, ? a block, o a result, * a counted pointer,
                & one that Python keeps */
  char of;   /* what a pointer points to */
  int words; /* of a structure */
  int count; /* the argument that says how many elements a pointer has */
  char block[8]; /* types of a block's arguments */
};

struct signature {
  PyObject *function;
  int takes_self, count, outs, owned, starts; /* starts: an `init` method consumes its receiver */
  struct type result, arguments[MOST_ARGUMENTS];
};

static struct type parse_type(const char *text) {
  struct type type = {.kind = text[0], .count = -1};
  switch (text[0]) {
  case '{': type.words = atoi(text + 1); break;
  case '?': snprintf(type.block, sizeof type.block, "%s", text + 1); break;
  case 'o': type.of = text[1]; break;
  case '*':
  case '&': type.count = atoi(text + 1), type.of = text[strlen(text) - 1]; break;
  default: break;
  }
  return type;
}

/* Whether a selector is of one of the families whose results are the caller's. */
static int is_family(const char *name, const char *family) {
  size_t length = strlen(family);
  return !strncmp(name, family, length) && !(name[length] >= 'a' && name[length] <= 'z');
}

static struct signature *parse(PyObject *function, int takes_self, const char *text,
                               const char *name) {
  struct signature *made = softmetal_allocate(sizeof *made);
  made->function = kept(function);
  made->takes_self = takes_self;
  made->count = -1;
  char *copy = strdup(text), *rest;
  for (char *each = strtok_r(copy, " ", &rest); each; each = strtok_r(NULL, " ", &rest)) {
    struct type type = parse_type(each);
    if (made->count < 0)
      made->result = type;
    else
      made->arguments[made->count] = type;
    made->outs += type.kind == 'o';
    made->count++;
  }
  free(copy);
  made->starts = is_family(name, "init");
  made->owned = made->starts || is_family(name, "new") || is_family(name, "alloc") ||
                is_family(name, "copy") || is_family(name, "mutableCopy");
  return made;
}

static _Noreturn void failed(Class class, SEL selector) {
  PyObject *type, *value, *trace;
  py.PyErr_Fetch(&type, &value, &trace);
  py.PyErr_NormalizeException(&type, &value, &trace);
  PyObject *text = py.PyObject_CallMethod(softmetal_helper, "explained", "O", value);
  const char *said = text ? py.PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
  softmetal_fatal("%c[%s %s]: %s", class && class->info->meta ? '+' : '-',
                  class ? class->info->name : "Metal", sel_getName(selector),
                  said ? said : "an error");
}

extern void softmetal_forward(void) __attribute__((visibility("hidden")));
extern void softmetal_forward_large(void) __attribute__((visibility("hidden")));

int softmetal_resolve(struct objc_method *method, int is_class_method) {
  int state = softmetal_enter(), takes_self;
  struct class_info *info = method->class->info;
  PyObject *function, *type = info->type ? info->type : py._Py_NoneStruct;
  const char *text, *name = sel_getName(method->selector);
  PyObject *found = py.PyObject_CallMethod(softmetal_helper, "resolve", "sOsi", info->name, type,
                                           name, is_class_method);
  if (!found) failed(method->class, method->selector);
  int known = found != py._Py_NoneStruct;
  if (known && !py.PyArg_ParseTuple(found, "Ois", &function, &takes_self, &text))
    failed(method->class, method->selector);
  if (known) {
    struct signature *signature = parse(function, takes_self, text, name);
    int large = signature->result.kind == '{' && signature->result.words > 2;
    method->signature = signature;
    method->function = large ? softmetal_forward_large : softmetal_forward;
  }
  py.Py_DecRef(found);
  softmetal_leave(state);
  return known;
}

/* ---- arguments: the program's registers and stack, as send_*.S hands them over ---- */

#ifdef __x86_64__
enum { INTEGER_REGISTERS = 6 };
#else
enum { INTEGER_REGISTERS = 8 };
#endif

struct registers {
  uint64_t integers[INTEGER_REGISTERS];
  double reals[8];
  uint64_t *stack;
  uint64_t *large_result; /* on aarch64; the first argument on x86-64 */
};

struct result {
  uint64_t integers[2];
  double real;
};

union value {
  uint64_t words[MOST_WORDS];
  double real;
};

struct reader {
  struct registers *from;
  int integers, reals;
  uint64_t *stack;
};

static uint64_t next_integer(struct reader *reader) {
  if (reader->integers < INTEGER_REGISTERS) return reader->from->integers[reader->integers++];
  return *reader->stack++;
}

static double next_real(struct reader *reader) {
  if (reader->reals < 8) return reader->from->reals[reader->reals++];
  return *(double *)reader->stack++;
}

static union value next_structure(struct reader *reader, int words) {
  union value value;
  int left = INTEGER_REGISTERS - reader->integers;
  if (words > 2) {
#ifdef __x86_64__
    memcpy(value.words, reader->stack, 8 * (size_t)words);
    reader->stack += words;
#else
    memcpy(value.words, (void *)next_integer(reader), 8 * (size_t)words);
#endif
    return value;
  }
  if (words > left) { /* a structure is not divided between registers and the stack */
    memcpy(value.words, reader->stack, 8 * (size_t)words);
    reader->stack += words;
#ifdef __aarch64__
    reader->integers = INTEGER_REGISTERS;
#endif
    return value;
  }
  for (int i = 0; i < words; i++) value.words[i] = next_integer(reader);
  return value;
}

static union value next_value(struct reader *reader, const struct type *type) {
  union value value;
  if (type->kind == '{') return next_structure(reader, type->words);
  if (type->kind == 'd' || type->kind == 'f') {
    value.real = next_real(reader);
    if (type->kind == 'f') {
      float single;
      memcpy(&single, &value.real, sizeof single);
      value.real = single;
    }
    return value;
  }
  value.words[0] = next_integer(reader);
  return value;
}

static PyObject *python_words(const uint64_t *words, int count) {
  PyObject *tuple = py.PyTuple_New(count);
  for (int i = 0; i < count; i++)
    py.PyTuple_SetItem(tuple, i, py.PyLong_FromUnsignedLongLong(words[i]));
  return tuple;
}

static PyObject *python_memory(const struct type *type, uint64_t address, uint64_t count) {
  if (!address) return none();
  if (type->of == 'v') {
    if (type->kind == '*' && count <= INLINE_BYTES)
      return py.PyBytes_FromStringAndSize((char *)address, (ptrdiff_t)count);
    return py.PyMemoryView_FromMemory((char *)address, (ptrdiff_t)count, PyBUF_WRITE);
  }
  PyObject *list = py.PyList_New((ptrdiff_t)count);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t word = ((uint64_t *)address)[i];
    PyObject *item =
        type->of == '@' ? softmetal_to_python((id)word) : py.PyLong_FromUnsignedLongLong(word);
    py.PyList_SetItem(list, (ptrdiff_t)i, item);
  }
  return list;
}

static PyObject *python_argument(const struct signature *signature, int place,
                                 const union value *values) {
  const struct type *type = &signature->arguments[place];
  const uint64_t *words = values[place].words;
  switch (type->kind) {
  case '@': return softmetal_to_python((id)words[0]);
  case '?': return softmetal_block_to_python((void *)words[0], type->block);
  case 'q': return py.PyLong_FromLongLong((int64_t)words[0]);
  case 'i': return py.PyLong_FromLongLong((int32_t)words[0]);
  case 'I': return py.PyLong_FromUnsignedLongLong((uint32_t)words[0]);
  case 'C': return py.PyLong_FromUnsignedLongLong((uint8_t)words[0]);
  case 'Z': return py.PyBool_FromLong((uint8_t)words[0] != 0);
  case 'd':
  case 'f': return py.PyFloat_FromDouble(values[place].real);
  case '{': return python_words(words, type->words);
  case 'o': return none();
  case '*':
  case '&': {
    /* the length of an array may be that of a range */
    int in_range = signature->arguments[type->count].kind == '{';
    return python_memory(type, words[0], values[type->count].words[in_range]);
  }
  default: return py.PyLong_FromUnsignedLongLong(words[0]);
  }
}

/* ---- results ---- */

static void store_out(const struct type *type, uint64_t address, PyObject *value) {
  if (!address || !value) return;
  if (type->of == '@')
    *(id *)address = objc_autorelease(softmetal_to_native(value));
  else
    *(uint64_t *)address = softmetal_to_bits(value);
}

/* Python returns a tuple of the result, if there is one, and of what its pointers get. */
static PyObject *store_outs(const struct signature *signature, const union value *values,
                            PyObject *got) {
  int at = signature->result.kind != 'v';
  for (int i = 0; i < signature->count; i++)
    if (signature->arguments[i].kind == 'o') {
      PyObject *value = at < py.PyTuple_Size(got) ? py.PyTuple_GetItem(got, at) : NULL;
      store_out(&signature->arguments[i], values[i].words[0], value);
      at++;
    }
  return py.PyTuple_GetItem(got, 0);
}

static void store_words(uint64_t *to, int words, PyObject *value) {
  for (int i = 0; i < words; i++) {
    PyObject *member = py.PySequence_GetItem(value, i);
    to[i] = member ? softmetal_to_bits(member) : 0;
    if (member) py.Py_DecRef(member);
  }
}

/* Stores the result; an object is returned as well, retained. */
static id store_result(const struct type *type, PyObject *value, struct result *result,
                       uint64_t *large) {
  float single;
  id object = NULL;
  switch (type->kind) {
  case 'v': break;
  case '@':
    object = softmetal_to_native(value);
    result->integers[0] = (uint64_t)object;
    break;
  case 'd': result->real = py.PyFloat_AsDouble(value); break;
  case 'f':
    single = (float)py.PyFloat_AsDouble(value);
    memcpy(&result->real, &single, sizeof single);
    break;
  case 'Z': result->integers[0] = py.PyObject_IsTrue(value) == 1; break;
  case '{': store_words(large ? large : result->integers, type->words, value); break;
  default: result->integers[0] = softmetal_to_bits(value);
  }
  return object;
}

/* An exception becomes an NSError where the method has one; elsewhere it ends the process, as
   exceptions of Objective-C and Metal's debug layer do. */
static void store_exception(Class class, SEL selector, const struct signature *signature,
                            const union value *values) {
  int place = -1;
  for (int i = 0; i < signature->count; i++)
    if (signature->arguments[i].kind == 'o' && signature->arguments[i].of == '@') place = i;
  if (place < 0) failed(class, selector);
  PyObject *type, *value, *trace;
  py.PyErr_Fetch(&type, &value, &trace);
  py.PyErr_NormalizeException(&type, &value, &trace);
  PyObject *error = py.PyObject_CallMethod(softmetal_helper, "error_of", "O", value);
  if (!error) failed(class, selector);
  store_out(&signature->arguments[place], values[place].words[0], error);
  py.Py_DecRef(error), py.Py_DecRef(type), py.Py_DecRef(value);
  if (trace) py.Py_DecRef(trace);
}

static PyObject *call(const struct signature *signature, id self, const union value *values) {
  PyObject *arguments[MOST_ARGUMENTS + 1];
  size_t count = 0;
  if (signature->takes_self) arguments[count++] = softmetal_to_python(self);
  for (int i = 0; i < signature->count; i++) {
    arguments[count] = python_argument(signature, i, values);
    if (!arguments[count++]) failed(self->isa, sel_registerName("an argument"));
  }
  PyObject *got = py.PyObject_Vectorcall(signature->function, arguments, count, NULL);
  for (size_t i = 0; i < count; i++) py.Py_DecRef(arguments[i]);
  return got;
}

/* Called by softmetal_forward; `large`: the program passes the address of the result. */
__attribute__((visibility("hidden"))) void softmetal_call(struct registers *from,
                                                          struct result *result, int large) {
  struct reader reader = {.from = from, .stack = from->stack};
  uint64_t *to = NULL;
#ifdef __x86_64__
  if (large) to = (uint64_t *)next_integer(&reader);
#else
  if (large) to = from->large_result;
#endif
  id self = (id)next_integer(&reader);
  SEL name = (SEL)next_integer(&reader);
  const struct signature *signature = softmetal_method(self->isa, name)->signature;
  union value values[MOST_ARGUMENTS];
  for (int i = 0; i < signature->count; i++)
    values[i] = next_value(&reader, &signature->arguments[i]);
  memset(result, 0, sizeof *result);
  int state = softmetal_enter();
  if (!softmetal_is_class(self)) softmetal_flush_encoder(self);
  PyObject *got = call(signature, self, values);
  id object = NULL;
  if (got) {
    PyObject *value = signature->outs ? store_outs(signature, values, got) : got;
    object = store_result(&signature->result, value, result, to);
    py.Py_DecRef(got);
  }
  if (py.PyErr_Occurred()) store_exception(self->isa, name, signature, values);
  softmetal_leave(state);
  if (signature->starts)
    objc_release(self);
  else if (object && !signature->owned)
    objc_autorelease(object);
}

/* ---- Metal's functions ---- */

static id call_helper(const char *name) {
  int state = softmetal_enter();
  PyObject *got = py.PyObject_CallMethod(softmetal_helper, name, NULL);
  if (!got) failed(Nil, sel_registerName(name));
  id object = softmetal_to_native(got);
  py.Py_DecRef(got);
  softmetal_leave(state);
  return object;
}

id MTLCreateSystemDefaultDevice(void) { return call_helper("default_device"); }
id MTLCopyAllDevices(void) { return call_helper("all_devices"); }

id MTLCopyAllDevicesWithObserver(id *observer, void *handler) {
  if (observer) *observer = NULL; /* devices never come or go */
  return MTLCopyAllDevices();
}

void MTLRemoveDeviceObserver(id observer) {}

/* The private interface to Apple's compiler that tinygrad uses. */
void *MTLCodeGenServiceCreate(const char *name) { return strdup(name); }

void MTLCodeGenServiceBuildRequest(void *service, void *unused, int type, const void *request,
                                   size_t size, struct block *reply) {
  int state = softmetal_enter(), code;
  char *data;
  ptrdiff_t length;
  PyObject *answered, *bytes = py.PyBytes_FromStringAndSize(request, (ptrdiff_t)size);
  PyObject *got = py.PyObject_CallMethod(softmetal_helper, "compile_request", "iO", type, bytes);
  py.Py_DecRef(bytes);
  if (!got || !py.PyArg_ParseTuple(got, "iO", &code, &answered) ||
      py.PyBytes_AsStringAndSize(answered, &data, &length))
    failed(Nil, sel_registerName(__func__));
  void (*answer)(void *, int, const void *, size_t, const char *) = reply->invoke;
  void *thread = py.PyEval_SaveThread();
  if (code)
    answer(reply, code, NULL, 0, data);
  else
    answer(reply, 0, data, (size_t)length, NULL);
  py.PyEval_RestoreThread(thread);
  py.Py_DecRef(got);
  softmetal_leave(state);
}
