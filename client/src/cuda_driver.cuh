// The CUDA driver's functions in use, found at run time. Plain C++; .cuh because it needs CUDA's headers.
#pragma once

#include <cuda.h>

#include <string>

#include "proto/abi/status.h"

namespace mkernel::client {

// clang-format off
#define MK_CUDA_FUNCTIONS(X)                                                                             \
  X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute)                \
  X(cuDeviceGetUuid) X(cuCtxEnablePeerAccess) X(cuPointerGetAttributes) X(cuMemGetAddressRange)          \
  X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuMemGetHandleForAddressRange)     \
  X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)                      \
  X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuGetErrorName) X(cuGetErrorString)                           \
  X(cuMemGetInfo) X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease)                        \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)                                      \
  X(cuMemGetAllocationPropertiesFromHandle) X(cuMemAddressReserve) X(cuMemAddressFree)                   \
  X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)                                                            \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuMemsetD8Async)
// clang-format on

/// One member per function, named as in cuda.h.
struct CudaDriver {
#define MK_MEMBER(name) decltype(&::name) name = nullptr;
  MK_CUDA_FUNCTIONS(MK_MEMBER)
#undef MK_MEMBER

  /// OK for CUDA_SUCCESS, else `what` with the error's name and text. Out of memory is kResourceExhausted;
  /// what the machine lacks or cannot do kFailedPrecondition; anything else kInternal.
  Status status(CUresult error, const std::string& what) const;
};

/// The driver, initialised once per process. Errors: kFailedPrecondition (no driver; one that is too old).
Result<const CudaDriver*> cuda_driver();

}  // namespace mkernel::client
