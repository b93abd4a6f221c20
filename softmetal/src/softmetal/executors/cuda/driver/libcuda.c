/* Finding the functions of libcuda, and its errors. */
#include "driver.h"

#define LIBCUDA_DEFINE(name, symbol, arguments) CUresult(*name) arguments;
LIBCUDA(LIBCUDA_DEFINE)
LIBCUDA_NEWER(LIBCUDA_DEFINE)
LIBCUBLAS(LIBCUDA_DEFINE)

const char *sm_find_libcuda(void) {
  static const char *missing;
  static bool done;
  if (done) return missing;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return missing = "libcuda.so.1 is not installed: there is no NVIDIA driver";
#define LIBCUDA_FIND(name, symbol, arguments) \
  if (!(name = (CUresult(*) arguments)dlsym(library, #symbol))) missing = #symbol;
  LIBCUDA(LIBCUDA_FIND)
#define LIBCUDA_TRY(name, symbol, arguments) name = (CUresult(*) arguments)dlsym(library, #symbol);
  LIBCUDA_NEWER(LIBCUDA_TRY)
  done = true;
  return missing;
}

const char *sm_gpu_describe(CUresult code, char text[ERROR_BYTES]) {
  const char *name = NULL, *words = NULL;
  cuGetErrorName(code, &name);
  cuGetErrorString(code, &words);
  snprintf(text, ERROR_BYTES, "%s (%d): %s", name ? name : "unknown error", code,
           words ? words : "");
  return text;
}
