/* The functions of NVIDIA's driver that we call, found in libcuda.so.1 at run time: this library loads
   on machines without one. Types and numbers are those of cuda.h, which is not needed to build. */
#ifndef SOFTMETAL_LIBCUDA_H
#define SOFTMETAL_LIBCUDA_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;

typedef struct CUDA_KERNEL_NODE_PARAMS { /* the first version of it, which all drivers have */
  CUfunction function;
  unsigned grid[3], block[3], shared;
  void **arguments, **extra;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUlaunchAttribute {
  int id, padding;
  union {
    int allowed;
    char bytes[64];
  } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
  unsigned grid[3], block[3], shared;
  CUstream stream;
  CUlaunchAttribute *attributes;
  unsigned count;
} CUlaunchConfig;

typedef struct CUgraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

enum { CU_PROGRAMMATIC_STREAM_SERIALIZATION = 6 }; /* CUlaunchAttributeID */
enum { CU_PORT_PROGRAMMATIC = 1, CU_DEPENDENCY_PROGRAMMATIC = 1 };
enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_NOT_READY = 600,
       CUDA_ERROR_CONTEXT_IS_DESTROYED = 709 };
enum { CU_FUNCTION_MAX_THREADS = 0, CU_FUNCTION_SHARED_BYTES = 1,
       CU_FUNCTION_MOST_DYNAMIC_BYTES = 8 }; /* CUfunction_attribute */
enum { CU_DEVICE_MOST_SHARED_BYTES = 97 }; /* CUdevice_attribute */
enum { CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_BYTES = 6 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_MAPPED = 2 };
enum { CU_EVENT_NO_TIMING = 2 };
enum { CU_STREAM_WAIT_GREATER_EQUAL = 0, CU_STREAM_WRITE_DEFAULT = 0 };

/* Name in this library, name in libcuda, arguments. */
#define LIBCUDA(F)                                                                              \
  F(cuInit, cuInit, (unsigned))                                                                 \
  F(cuGetErrorName, cuGetErrorName, (CUresult, const char **))                                  \
  F(cuGetErrorString, cuGetErrorString, (CUresult, const char **))                              \
  F(cuDeviceGet, cuDeviceGet, (CUdevice *, int))                                                \
  F(cuDeviceGetName, cuDeviceGetName, (char *, int, CUdevice))                                  \
  F(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, CUdevice))                                \
  F(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *, int, CUdevice))                         \
  F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                \
  F(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice))                            \
  F(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                              \
  F(cuModuleLoadDataEx, cuModuleLoadDataEx, (CUmodule *, const void *, unsigned, int *, void **)) \
  F(cuModuleUnload, cuModuleUnload, (CUmodule))                                                 \
  F(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))           \
  F(cuFuncGetAttribute, cuFuncGetAttribute, (int *, int, CUfunction))                           \
  F(cuFuncSetAttribute, cuFuncSetAttribute, (CUfunction, int, int))                             \
  F(cuLaunchKernel, cuLaunchKernel,                                                             \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
     void **, void **))                                                                         \
  F(cuModuleGetGlobal, cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *)) \
  F(cuGraphCreate, cuGraphCreate, (CUgraph *, unsigned))                                        \
  F(cuGraphDestroy, cuGraphDestroy, (CUgraph))                                                  \
  F(cuGraphAddKernelNode, cuGraphAddKernelNode,                                                 \
    (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *))     \
  F(cuGraphInstantiate, cuGraphInstantiateWithFlags,                                            \
    (CUgraphExec *, CUgraph, unsigned long long))                                               \
  F(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams,                             \
    (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))                                \
  F(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))                                      \
  F(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))                                      \
  F(cuStreamCreate, cuStreamCreate, (CUstream *, unsigned))                                     \
  F(cuStreamDestroy, cuStreamDestroy_v2, (CUstream))                                            \
  F(cuStreamSynchronize, cuStreamSynchronize, (CUstream))                                       \
  F(cuStreamWaitValue64, cuStreamWaitValue64_v2, (CUstream, CUdeviceptr, unsigned long long, unsigned)) \
  F(cuStreamWriteValue64, cuStreamWriteValue64_v2,                                              \
    (CUstream, CUdeviceptr, unsigned long long, unsigned))                                      \
  F(cuEventCreate, cuEventCreate, (CUevent *, unsigned))                                        \
  F(cuEventDestroy, cuEventDestroy_v2, (CUevent))                                               \
  F(cuEventRecord, cuEventRecord, (CUevent, CUstream))                                          \
  F(cuEventQuery, cuEventQuery, (CUevent))                                                      \
  F(cuEventElapsedTime, cuEventElapsedTime, (float *, CUevent, CUevent))                        \
  F(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                         \
  F(cuMemFree, cuMemFree_v2, (CUdeviceptr))                                                     \
  F(cuMemHostRegister, cuMemHostRegister_v2, (void *, size_t, unsigned))                        \
  F(cuMemHostUnregister, cuMemHostUnregister, (void *))                                         \
  F(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                 \
  F(cuMemsetD8Async, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))

/* The same for those of newer drivers; null if they are missing. */
#define LIBCUDA_NEWER(F)                                                                        \
  F(cuLaunchKernelEx, cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **)) \
  F(cuGraphAddDependencies, cuGraphAddDependencies_v2,                                          \
    (CUgraph, const CUgraphNode *, const CUgraphNode *, const CUgraphEdgeData *, size_t))

/* cuBLAS, from the library that the caller names. */
typedef struct cublasContext *cublasHandle_t;
enum { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14, CUBLAS_COMPUTE_32F = 68 };
#define LIBCUBLAS(F)                                                                            \
  F(cublasCreate, cublasCreate_v2, (cublasHandle_t *))                                          \
  F(cublasDestroy, cublasDestroy_v2, (cublasHandle_t))                                          \
  F(cublasSetStream, cublasSetStream_v2, (cublasHandle_t, CUstream))                            \
  F(cublasGemmStridedBatchedEx, cublasGemmStridedBatchedEx,                                     \
    (cublasHandle_t, int, int, int, int, int, const void *, const void *, int, int, long long,  \
     const void *, int, int, long long, const void *, void *, int, int, long long, int, int, int))

#define LIBCUDA_DECLARE(name, symbol, arguments) extern CUresult(*name) arguments;
LIBCUDA(LIBCUDA_DECLARE)
LIBCUDA_NEWER(LIBCUDA_DECLARE)
LIBCUBLAS(LIBCUDA_DECLARE)

#endif
