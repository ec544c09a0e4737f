#include "tests/support/counted_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mkernel::test {
namespace {

CudaCalls calls;
constexpr int kDevices = 2;
char contexts[kDevices];               // each device's primary one; only its address counts
thread_local char* context = nullptr;  // current on this thread
std::map<const void*, int> placed;     // by address: memory that does not lie on device 0
bool native_atomics = false;

int device() {
  return context == nullptr ? 0 : static_cast<int>(context - contexts);
}

/// As the runtime's functions that need a context: a thread without one gets that of device 0.
void need_context() {
  if (context == nullptr) context = &contexts[0];
}

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
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *map = {};
  return CUDA_SUCCESS;
}

CUresult get_current(CUcontext* current) {
  counted("cuCtxGetCurrent");
  *current = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

CUresult set_current(CUcontext wanted) {
  counted("cuCtxSetCurrent");
  context = reinterpret_cast<char*>(wanted);
  return CUDA_SUCCESS;
}

/// Null for what an older driver would not have, as far as loading kernels is concerned.
void* driver_function(const std::string& name) {
  if (name == "cuTensorMapEncodeTiled") return reinterpret_cast<void*>(&encode);
  if (name == "cuCtxGetCurrent") return reinterpret_cast<void*>(&get_current);
  if (name == "cuCtxSetCurrent") return reinterpret_cast<void*>(&set_current);
  return nullptr;
}

}  // namespace

CudaCalls cuda_calls() {
  return calls;
}
void reset_cuda_calls() {
  calls.clear();
}
void place_on_device(const void* memory, int device) {
  placed[memory] = device;
}
void set_native_atomics(bool has) {
  native_atomics = has;
}
int current_cuda_device() {
  return context == nullptr ? kNoCudaDevice : device();
}

}  // namespace mkernel::test

using namespace mkernel::test;

// NOLINTBEGIN: names and signatures are CUDA's
extern "C" {

// ---- what a launch may call

cudaError_t cudaGetDevice(int* current) {
  *current = device();
  return counted(__func__);
}
cudaError_t cudaSetDevice(int wanted) {
  context = &contexts[wanted];
  return counted(__func__);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  need_context();
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
  need_context();
  counted(__func__);
  return allocate(memory, bytes);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  need_context();
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
  *value = 132;  // of multiprocessors; the clock of a device whose name is known does not matter
  return counted(__func__);
}
cudaError_t cudaDeviceGetPCIBusId(char* address, int size, int device) {
  std::snprintf(address, static_cast<std::size_t>(size), "0000:%02x:00.0", 0x3b + device);
  return counted(__func__);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  const auto found = placed.find(memory);
  *attributes = {};
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = found == placed.end() ? 0 : found->second;
  return counted(__func__);
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int, int) {
  *value = attribute != cudaDevP2PAttrNativeAtomicSupported || native_atomics ? 1 : 0;
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
  *stream = reinterpret_cast<cudaStream_t>(&contexts);  // any address
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
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = driver_function(name);
  *found = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
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
