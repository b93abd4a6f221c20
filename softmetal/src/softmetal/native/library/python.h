/* Python, for python.c, messages.c and encoder.c, the only sources that know it: functions of its
   stable interface, found when the first Metal object is needed. The library is built without
   Python's headers, and is not tied to one version. */
#pragma once

#include "native.h"

typedef struct PyObject PyObject;
typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *arguments);

typedef struct {
  const char *name;
  PyCFunction function;
  int flags;
  const char *text;
} PyMethodDef;

enum { PyBUF_READ = 0x100, PyBUF_WRITE = 0x200, METH_VARARGS = 1 };

#define PYTHON_FUNCTIONS(X)                                                                  \
  X(int, Py_IsInitialized, (void))                                                           \
  X(void, Py_InitializeEx, (int))                                                            \
  X(void *, PyEval_SaveThread, (void))                                                       \
  X(void, PyEval_RestoreThread, (void *))                                                    \
  X(int, PyGILState_Ensure, (void))                                                          \
  X(void, PyGILState_Release, (int))                                                         \
  X(void, Py_IncRef, (PyObject *))                                                           \
  X(void, Py_DecRef, (PyObject *))                                                           \
  X(PyObject *, PyImport_ImportModule, (const char *))                                       \
  X(PyObject *, PySys_GetObject, (const char *))                                             \
  X(PyObject *, PyObject_GetAttrString, (PyObject *, const char *))                          \
  X(PyObject *, PyObject_Type, (PyObject *))                                                 \
  X(int, PyObject_IsInstance, (PyObject *, PyObject *))                                      \
  X(int, PyObject_IsTrue, (PyObject *))                                                      \
  X(PyObject *, PyObject_Str, (PyObject *))                                                  \
  X(PyObject *, PyObject_Vectorcall, (PyObject *, PyObject *const *, size_t, PyObject *))    \
  X(PyObject *, PyObject_CallFunction, (PyObject *, const char *, ...))                      \
  X(PyObject *, PyObject_CallMethod, (PyObject *, const char *, const char *, ...))          \
  X(int, PyArg_ParseTuple, (PyObject *, const char *, ...))                                  \
  X(PyObject *, PyErr_Occurred, (void))                                                      \
  X(void, PyErr_Clear, (void))                                                               \
  X(void, PyErr_Print, (void))                                                               \
  X(void, PyErr_Fetch, (PyObject **, PyObject **, PyObject **))                              \
  X(void, PyErr_NormalizeException, (PyObject **, PyObject **, PyObject **))                 \
  X(PyObject *, PyUnicode_FromString, (const char *))                                        \
  X(PyObject *, PyUnicode_DecodeUTF8, (const char *, ptrdiff_t, const char *))               \
  X(const char *, PyUnicode_AsUTF8AndSize, (PyObject *, ptrdiff_t *))                        \
  X(PyObject *, PyLong_FromLongLong, (long long))                                            \
  X(PyObject *, PyLong_FromUnsignedLongLong, (unsigned long long))                           \
  X(long long, PyLong_AsLongLong, (PyObject *))                                              \
  X(unsigned long long, PyLong_AsUnsignedLongLongMask, (PyObject *))                         \
  X(PyObject *, PyNumber_Long, (PyObject *))                                                 \
  X(PyObject *, PyBool_FromLong, (long))                                                     \
  X(PyObject *, PyFloat_FromDouble, (double))                                                \
  X(double, PyFloat_AsDouble, (PyObject *))                                                  \
  X(PyObject *, PyBytes_FromStringAndSize, (const char *, ptrdiff_t))                        \
  X(int, PyBytes_AsStringAndSize, (PyObject *, char **, ptrdiff_t *))                        \
  X(PyObject *, PyMemoryView_FromMemory, (char *, ptrdiff_t, int))                           \
  X(PyObject *, PyList_New, (ptrdiff_t))                                                     \
  X(int, PyList_SetItem, (PyObject *, ptrdiff_t, PyObject *))                                \
  X(int, PyList_Append, (PyObject *, PyObject *))                                            \
  X(PyObject *, PyTuple_New, (ptrdiff_t))                                                    \
  X(ptrdiff_t, PyTuple_Size, (PyObject *))                                                   \
  X(PyObject *, PyTuple_GetItem, (PyObject *, ptrdiff_t))                                    \
  X(int, PyTuple_SetItem, (PyObject *, ptrdiff_t, PyObject *))                               \
  X(ptrdiff_t, PySequence_Size, (PyObject *))                                                \
  X(PyObject *, PySequence_GetItem, (PyObject *, ptrdiff_t))                                 \
  X(int, PySequence_Contains, (PyObject *, PyObject *))                                      \
  X(PyObject *, PyDict_New, (void))                                                          \
  X(int, PyDict_SetItem, (PyObject *, PyObject *, PyObject *))                               \
  X(int, PyDict_Next, (PyObject *, ptrdiff_t *, PyObject **, PyObject **))                   \
  X(PyObject *, PyCFunction_New, (PyMethodDef *, PyObject *))                                \
  X(PyObject *, PyCapsule_New, (void *, const char *, void (*)(PyObject *)))                 \
  X(void *, PyCapsule_GetPointer, (PyObject *, const char *))                                \
  X(int, PyCapsule_IsValid, (PyObject *, const char *))                                      \
  X(int, PyCapsule_SetContext, (PyObject *, void *))                                         \
  X(void *, PyCapsule_GetContext, (PyObject *))

#define PYTHON_OBJECTS(X)                                                                  \
  X(_Py_NoneStruct) X(_Py_TrueStruct) X(PyUnicode_Type) X(PyLong_Type) X(PyBool_Type)      \
  X(PyFloat_Type) X(PyBytes_Type) X(PyDict_Type) X(PyList_Type) X(PyTuple_Type)

#pragma GCC visibility push(hidden)

struct bridged {
  Class isa;
  PyObject *object;
  void *extra; /* of buffers, pipelines and encoders: see encoder.c */
};

extern struct python {
#define X(type, name, arguments) type(*name) arguments;
  PYTHON_FUNCTIONS(X)
#undef X
#define X(name) PyObject *name;
  PYTHON_OBJECTS(X)
#undef X
} py;

extern PyObject *softmetal_helper; /* the module softmetal.native.calls */

int softmetal_enter(void); /* takes Python's lock; starts Python at first */
void softmetal_leave(int state);
id softmetal_to_native(PyObject *value); /* retained */
PyObject *softmetal_to_python(id object);
void softmetal_prepare_encoders(Class class); /* encoder.c */
void softmetal_flush_encoder(id object);
void softmetal_free_extra(id object);
PyObject *softmetal_block_to_python(void *block, const char *types);
uint64_t softmetal_to_bits(PyObject *number);

#pragma GCC visibility pop

static inline PyObject *kept(PyObject *object) {
  py.Py_IncRef(object);
  return object;
}

static inline PyObject *none(void) { return kept(py._Py_NoneStruct); }
