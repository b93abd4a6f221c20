/* Python's interpreter, and its values as native ones.

   A Python object has one native object as long as the program holds it. Strings, numbers,
   collections, data, errors and URLs are converted instead. */
#include "python.h"

#include <dlfcn.h>
#include <limits.h>

#include "place.h" /* written by the build: where Python and softmetal are */

struct python py;
PyObject *softmetal_helper;
static PyObject *error_type, *url_type, *object_type;

/* ---- the interpreter: the process's own, or one that is started ---- */

static void *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) softmetal_fatal("this Python has no %s: softmetal needs CPython 3.11 or later", name);
  return found;
}

static void *python_library(void) {
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized")) return RTLD_DEFAULT;
  if (!*LIBPYTHON)
    softmetal_fatal(
        "%s has no libpython.so to start in a native program: use a Python with a shared "
        "library (Debian's package libpython3-dev has it)",
        PYTHON_HOME);
  void *library = dlopen(LIBPYTHON, RTLD_NOW | RTLD_GLOBAL); /* its extensions need its symbols */
  if (!library) softmetal_fatal("cannot load Python: %s", dlerror());
  return library;
}

static void find_symbols(void) {
  void *library = python_library();
#define X(type, name, arguments) py.name = symbol(library, #name);
  PYTHON_FUNCTIONS(X)
#undef X
#define X(name) py.name = symbol(library, #name);
  PYTHON_OBJECTS(X)
#undef X
}

static void end_interpreter(void *unused) {
  int state = py.PyGILState_Ensure();
  PyObject *done = py.PyObject_CallMethod(softmetal_helper, "at_exit", NULL);
  if (!done) py.PyErr_Print();
  py.PyGILState_Release(state);
}

/* atexit is a function of the program's, not of libc.so. */
int __cxa_atexit(void (*function)(void *), void *argument, void *library);

static void start_interpreter(void) {
  const char *before = getenv("PYTHONHOME");
  if (!before) setenv("PYTHONHOME", PYTHON_HOME, 1);
  py.Py_InitializeEx(0); /* 0: signals stay the program's */
  if (!before) unsetenv("PYTHONHOME");
  py.PyEval_SaveThread();
  __cxa_atexit(end_interpreter, NULL, NULL);
}

static void add_paths(void) {
  static const char *const paths[] = {PYTHON_PATHS NULL};
  PyObject *path = py.PySys_GetObject("path");
  for (int i = 0; paths[i]; i++) {
    PyObject *folder = py.PyUnicode_FromString(paths[i]);
    if (!py.PySequence_Contains(path, folder)) py.PyList_Append(path, folder);
    py.Py_DecRef(folder);
  }
}

static PyObject *attribute(const char *name) {
  PyObject *found = py.PyObject_GetAttrString(softmetal_helper, name);
  if (!found) py.PyErr_Print(), softmetal_fatal("softmetal.native.calls has no %s", name);
  return found;
}

static void start(void) {
  find_symbols();
  if (!py.Py_IsInitialized()) start_interpreter();
  int state = py.PyGILState_Ensure();
  add_paths();
  softmetal_helper = py.PyImport_ImportModule("softmetal.native.calls");
  if (!softmetal_helper) py.PyErr_Print(), softmetal_fatal("softmetal cannot be imported");
  error_type = attribute("NSError");
  url_type = attribute("NSURL");
  object_type = attribute("Object");
  py.PyGILState_Release(state);
}

int softmetal_enter(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  return py.PyGILState_Ensure();
}

void softmetal_leave(int state) { py.PyGILState_Release(state); }

/* ---- identity: the native object of each Python object; guarded by Python's lock ---- */

struct pair {
  PyObject *object;
  struct bridged *native;
  struct pair *next;
};

enum { PAIR_BUCKETS = 1 << 12 };
static struct pair *pairs[PAIR_BUCKETS];

static struct pair **pair_of(PyObject *object) {
  struct pair **each = &pairs[((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15ull >> 52];
  while (*each && (*each)->object != object) each = &(*each)->next;
  return each;
}

static id known_native(PyObject *object) {
  struct pair *pair = *pair_of(object);
  return pair && softmetal_try_retain((id)pair->native) ? (id)pair->native : NULL;
}

static id new_native(PyObject *object, PyObject *type) {
  PyObject *name = py.PyObject_GetAttrString(type, "__name__");
  const char *text = py.PyUnicode_AsUTF8AndSize(name, NULL);
  int encodes = !strcmp(text, "MTLComputeCommandEncoder") && !softmetal_class(text);
  Class class = softmetal_bridged_class(text, type);
  if (encodes) softmetal_prepare_encoders(class);
  py.Py_DecRef(name);
  struct bridged *native = (struct bridged *)softmetal_make(class, sizeof *native);
  native->object = kept(object);
  struct pair **place = pair_of(object);
  if (!*place) *place = softmetal_allocate(sizeof **place), (*place)->object = object;
  (*place)->native = native; /* in the place of one that ends just now, if any */
  return (id)native;
}

void softmetal_destroy_bridged(id object) {
  struct bridged *native = (struct bridged *)object;
  if (!native->object || !py.Py_IsInitialized()) return; /* after Python's end there is no lock */
  int state = softmetal_enter();
  struct pair **place = pair_of(native->object), *pair = *place;
  if (pair && pair->native == native) {
    *place = pair->next;
    free(pair);
  }
  softmetal_free_extra(object);
  py.Py_DecRef(native->object);
  softmetal_leave(state);
  softmetal_free(object);
}

/* ---- Python's values to native ones (retained), and back ---- */

static id native_text(PyObject *text) {
  ptrdiff_t size;
  const char *bytes = py.PyUnicode_AsUTF8AndSize(text, &size);
  if (bytes) return softmetal_string(bytes, (size_t)size);
  py.PyErr_Clear(); /* it has surrogates */
  return softmetal_string("?", 1);
}

static id native_array(PyObject *items) {
  ptrdiff_t count = py.PySequence_Size(items);
  id *objects = softmetal_allocate((size_t)count * sizeof *objects);
  for (ptrdiff_t i = 0; i < count; i++) {
    PyObject *item = py.PySequence_GetItem(items, i);
    objects[i] = softmetal_to_native(item);
    py.Py_DecRef(item);
  }
  id array = softmetal_array(objects, (size_t)count);
  free(objects);
  return array;
}

static id native_dictionary(PyObject *items) {
  ptrdiff_t at = 0;
  PyObject *key, *value;
  size_t used = 0, room = 0;
  id *keys = NULL, *values = NULL;
  while (py.PyDict_Next(items, &at, &key, &value)) {
    if (used == room) {
      room = room ? 2 * room : 16;
      keys = realloc(keys, room * sizeof *keys), values = realloc(values, room * sizeof *values);
      if (!keys || !values) softmetal_fatal("out of memory for a dictionary");
    }
    keys[used] = softmetal_to_native(key), values[used++] = softmetal_to_native(value);
  }
  id dictionary = softmetal_dictionary(keys, values, used);
  free(keys), free(values);
  return dictionary;
}

static id native_error(PyObject *error) {
  PyObject *code = py.PyObject_CallMethod(error, "code", NULL);
  PyObject *domain = py.PyObject_CallMethod(error, "domain", NULL);
  PyObject *text = py.PyObject_CallMethod(error, "localizedDescription", NULL);
  id domain_text = softmetal_to_native(domain), description = softmetal_to_native(text);
  id native = softmetal_error(domain_text, py.PyLong_AsLongLong(code), description);
  objc_release(domain_text), objc_release(description);
  py.Py_DecRef(code), py.Py_DecRef(domain), py.Py_DecRef(text);
  return native;
}

static id native_url(PyObject *url) {
  PyObject *text = py.PyObject_CallMethod(url, "absoluteString", NULL);
  id string = softmetal_to_native(text), native = softmetal_url(string);
  objc_release(string);
  py.Py_DecRef(text);
  return native;
}

static id native_data(PyObject *bytes) {
  char *memory;
  ptrdiff_t size;
  py.PyBytes_AsStringAndSize(bytes, &memory, &size);
  return softmetal_data(memory, (size_t)size);
}

static int is(PyObject *value, PyObject *type) { return py.PyObject_IsInstance(value, type) == 1; }

id softmetal_to_native(PyObject *value) {
  if (!value || value == py._Py_NoneStruct) return NULL;
  id known = known_native(value);
  if (known) return known;
  PyObject *type = py.PyObject_Type(value);
  py.Py_DecRef(type); /* the value keeps it */
  if (is(value, py.PyUnicode_Type)) return native_text(value);
  if (is(value, py.PyBool_Type)) return softmetal_boolean(value == py._Py_TrueStruct);
  if (is(value, py.PyLong_Type)) return softmetal_integer(py.PyLong_AsLongLong(value));
  if (is(value, error_type)) return native_error(value);
  if (is(value, url_type)) return native_url(value);
  if (is(value, object_type)) return new_native(value, type);
  if (is(value, py.PyFloat_Type)) return softmetal_real(py.PyFloat_AsDouble(value));
  if (is(value, py.PyBytes_Type)) return native_data(value);
  if (is(value, py.PyDict_Type)) return native_dictionary(value);
  if (is(value, py.PyList_Type) || is(value, py.PyTuple_Type)) return native_array(value);
  if (py.PyCapsule_IsValid(value, "object"))
    return objc_retain(py.PyCapsule_GetPointer(value, "object"));
  return new_native(value, type);
}

static void release_capsule(PyObject *capsule) {
  objc_release(py.PyCapsule_GetPointer(capsule, "object"));
}

/* Foundation's classes, by what Python has in their place. */
static SEL selector(const char *name) { return sel_registerName(name); }
#define SEND(type, object, name)                                                                   \
  ((type (*)(id, SEL))objc_lookup(object, name))(object, selector(name))
static IMP objc_lookup(id object, const char *name) {
  return softmetal_lookup(object, selector(name));
}
#define SEND_AT(object, name, value)                                                               \
  ((id (*)(id, SEL, uintptr_t))objc_lookup(object, name))(object, selector(name),                  \
                                                          (uintptr_t)(value))

static PyObject *python_text(id string) {
  size_t size;
  const char *text = softmetal_text(string, &size);
  return py.PyUnicode_DecodeUTF8(text, (ptrdiff_t)size, "surrogateescape");
}

static PyObject *python_number(id number) {
  const char *type = SEND(const char *, number, "objCType");
  switch (*type) {
  case 'd':
  case 'f': return py.PyFloat_FromDouble(SEND(double, number, "doubleValue"));
  case 'B': return py.PyBool_FromLong(SEND(BOOL, number, "boolValue"));
  case 'Q': return py.PyLong_FromUnsignedLongLong(SEND(uint64_t, number, "unsignedLongLongValue"));
  default: return py.PyLong_FromLongLong(SEND(long long, number, "longLongValue"));
  }
}

static PyObject *python_list(id array) {
  ptrdiff_t count = SEND(ptrdiff_t, array, "count");
  PyObject *list = py.PyList_New(count);
  for (ptrdiff_t i = 0; i < count; i++)
    py.PyList_SetItem(list, i, softmetal_to_python(SEND_AT(array, "objectAtIndex:", i)));
  return list;
}

static PyObject *python_dictionary(id dictionary) {
  PyObject *made = py.PyDict_New();
  void *pool = objc_autoreleasePoolPush();
  id keys = SEND(id, dictionary, "allKeys");
  for (ptrdiff_t i = 0, count = SEND(ptrdiff_t, keys, "count"); i < count; i++) {
    id key = SEND_AT(keys, "objectAtIndex:", i);
    PyObject *name = softmetal_to_python(key),
             *value = softmetal_to_python(SEND_AT(dictionary, "objectForKey:", key));
    py.PyDict_SetItem(made, name, value);
    py.Py_DecRef(name), py.Py_DecRef(value);
  }
  objc_autoreleasePoolPop(pool);
  return made;
}

static PyObject *python_data(id data) {
  ptrdiff_t size = SEND(ptrdiff_t, data, "length");
  PyObject *bytes = py.PyBytes_FromStringAndSize(SEND(const char *, data, "bytes"), size);
  PyObject *made = py.PyObject_CallMethod(softmetal_helper, "NSData", "O", bytes);
  py.Py_DecRef(bytes);
  return made;
}

static PyObject *python_url(id url) {
  void *pool = objc_autoreleasePoolPush();
  PyObject *made = py.PyObject_CallFunction(url_type, "s",
                                            softmetal_text(SEND(id, url, "absoluteString"), NULL));
  objc_autoreleasePoolPop(pool);
  return made;
}

static PyObject *python_error(id error) {
  void *pool = objc_autoreleasePoolPush();
  PyObject *made = py.PyObject_CallMethod(
      error_type, "described", "sLs", softmetal_text(SEND(id, error, "domain"), NULL),
      SEND(long long, error, "code"),
      softmetal_text(SEND(id, error, "localizedDescription"), NULL));
  objc_autoreleasePoolPop(pool);
  return made;
}

static PyObject *python_queue(id queue) {
  return py.PyObject_CallMethod(softmetal_helper, "queue", NULL);
}

static const struct {
  const char *class;
  PyObject *(*convert)(id);
} conversions[] = {
    {"NSString", python_text},           {"NSNumber", python_number},      {"NSArray", python_list},
    {"NSDictionary", python_dictionary}, {"NSData", python_data},          {"NSURL", python_url},
    {"NSError", python_error},           {"SoftmetalQueue", python_queue},
};

static PyObject *python_class(Class class) {
  if (!class->info->type) {
    PyObject *type =
        py.PyObject_CallMethod(softmetal_helper, "class_named", "s", class->info->name);
    if (type) softmetal_bridged_class(class->info->name, type);
  }
  return class->info->type ? kept(class->info->type) : NULL;
}

PyObject *softmetal_to_python(id object) {
  if (!object) return none();
  if (softmetal_is_class(object)) return python_class((Class)object);
  if (object->isa->info->bridged) return kept(((struct bridged *)object)->object);
  for (size_t i = 0; i < sizeof conversions / sizeof *conversions; i++)
    if (softmetal_is_kind(object, softmetal_class(conversions[i].class)))
      return conversions[i].convert(object);
  return py.PyCapsule_New(objc_retain(object), "object", release_capsule);
}

uint64_t softmetal_to_bits(PyObject *value) {
  if (value == py._Py_NoneStruct) return 0;
  PyObject *number = py.PyNumber_Long(value);
  uint64_t bits = number ? py.PyLong_AsUnsignedLongLongMask(number) : 0;
  if (number) py.Py_DecRef(number);
  return bits;
}

/* ---- blocks that Python calls ---- */

enum { MOST_BLOCK_ARGUMENTS = 4 };

static PyObject *call_block(PyObject *capsule, PyObject *arguments) {
  struct block *block = py.PyCapsule_GetPointer(capsule, "block");
  const char *types = py.PyCapsule_GetContext(capsule);
  uint64_t values[MOST_BLOCK_ARGUMENTS] = {0};
  ptrdiff_t given = py.PyTuple_Size(arguments), count = (ptrdiff_t)strlen(types);
  for (ptrdiff_t i = 0; i < count && i < given && i < MOST_BLOCK_ARGUMENTS; i++) {
    PyObject *value = py.PyTuple_GetItem(arguments, i);
    values[i] = types[i] == '@' ? (uint64_t)softmetal_to_native(value) : softmetal_to_bits(value);
  }
  if (py.PyErr_Occurred()) return NULL;
  void *thread = py.PyEval_SaveThread();
  void *pool = objc_autoreleasePoolPush();
  ((void (*)(void *, uint64_t, uint64_t, uint64_t, uint64_t))block->invoke)(
      block, values[0], values[1], values[2], values[3]);
  objc_autoreleasePoolPop(pool);
  for (ptrdiff_t i = 0; i < count && i < MOST_BLOCK_ARGUMENTS; i++)
    if (types[i] == '@') objc_release((id)values[i]);
  py.PyEval_RestoreThread(thread);
  return none();
}

static void release_block(PyObject *capsule) {
  _Block_release(py.PyCapsule_GetPointer(capsule, "block"));
}

PyObject *softmetal_block_to_python(void *block, const char *types) {
  static PyMethodDef method = {"block", call_block, METH_VARARGS, NULL};
  if (!block) return none();
  PyObject *capsule = py.PyCapsule_New(_Block_copy(block), "block", release_block);
  py.PyCapsule_SetContext(capsule, (void *)types);
  PyObject *function = py.PyCFunction_New(&method, capsule);
  py.Py_DecRef(capsule);
  return function;
}
