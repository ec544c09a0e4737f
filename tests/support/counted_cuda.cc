#include "tests/support/counted_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

namespace mkernel::test {
namespace {

CudaCalls calls;
thread_local int device = 0;

cudaError_t counted(const char* name) {
  ++calls[name];
  return cudaSuccess;
}

cudaError_t allocate(void** memory, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;  // that of cudaMalloc
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return cudaSuccess;
}

CUresult encode(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  counted("cuTensorMapEncodeTiled");
  *map = {};
  return CUDA_SUCCESS;
}

}  // namespace

CudaCalls cuda_calls() {
  return calls;
}
void reset_cuda_calls() {
  calls.clear();
}
int current_cuda_device() {
  return device;
}

}  // namespace mkernel::test

using namespace mkernel::test;

// NOLINTBEGIN: names and signatures are CUDA's
extern "C" {

// ---- what a launch may call

cudaError_t cudaGetDevice(int* current) {
  *current = device;
  return counted(__func__);
}
cudaError_t cudaSetDevice(int wanted) {
  device = wanted;
  return counted(__func__);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return counted(__func__);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return counted("<<<>>>");
}
/// As __cudaLaunchKernel, which CUDA 12 does not have.
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return counted("<<<>>>");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return counted(__func__);
}
cudaError_t cudaMemsetAsync(void* memory, int byte, std::size_t bytes, cudaStream_t) {
  std::memset(memory, byte, bytes);
  return counted(__func__);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return counted(__func__);
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return counted(__func__);
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  counted(__func__);
  return allocate(memory, bytes);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  counted(__func__);
  return allocate(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return counted(__func__);
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return counted(__func__);
}

// ---- what making an operation asks, of a Hopper GPU

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return counted(__func__);
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return counted(__func__);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "NVIDIA H200");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 132;  // multiprocessors are all that is asked
  return counted(__func__);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return counted(__func__);
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return counted(__func__);
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void*) {
  *function = nullptr;
  return counted(__func__);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(&device);  // any address
  return counted(__func__);
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return counted(__func__);
}
cudaError_t cudaMemcpy2DAsync(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t,
                              cudaMemcpyKind, cudaStream_t) {
  return counted(__func__);
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) {
  return "none";
}
const char* cudaGetErrorString(cudaError_t) {
  return "none";
}
/// An older driver, as far as loading kernels is concerned, which only the driver's own functions would do.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&encode) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// ---- what nvcc's code calls before main(), and around <<<>>>

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) {
  *kernel = nullptr;
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, void*) {
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND
