// The CUDA driver's functions in use, found at run time. Plain C++; .cuh because it needs CUDA's headers.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

#include "proto/abi/status.h"

namespace mkernel::memory::gpu {

// clang-format off
#define MK_CUDA_FUNCTIONS(X)                                                                             \
  X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName)                  \
  X(cuDeviceGetUuid) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuMemGetAddressRange)                \
  X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent)   \
  X(cuGetErrorName) X(cuGetErrorString)                                                                  \
  X(cuMemImportFromShareableHandle) X(cuMemGetAllocationPropertiesFromHandle) X(cuMemRelease)            \
  X(cuMemGetAllocationGranularity) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap)  \
  X(cuMemSetAccess) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemcpyAsync)                         \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize)                                            \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery)
// clang-format on

/// Many copies handed over at once, as CUDA 13 declares it.
using BatchCopy = CUresult(CUdeviceptr* targets, CUdeviceptr* sources, std::size_t* sizes, std::size_t count,
                           CUmemcpyAttributes* attributes, std::size_t* first_with,
                           std::size_t attribute_count, CUstream stream);

/// One member per function, named as in cuda.h.
struct Driver {
#define MK_MEMBER(name) decltype(&::name) name = nullptr;
  MK_CUDA_FUNCTIONS(MK_MEMBER)
#undef MK_MEMBER
  BatchCopy* cuMemcpyBatchAsync_13 = nullptr;  ///< null before CUDA 13

  /// OK for CUDA_SUCCESS, else `what` with the error's name and text. Out of memory is kResourceExhausted; a
  /// value that the driver refuses kInvalidArgument; what the machine lacks or cannot do kFailedPrecondition;
  /// anything else kInternal.
  Status status(CUresult error, const std::string& what) const;
};

/// The driver, initialised once per process. Errors: kFailedPrecondition (none; one that is too old; no GPU).
Result<const Driver*> driver();

}  // namespace mkernel::memory::gpu
