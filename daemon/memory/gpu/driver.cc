#include "daemon/memory/gpu/driver.cuh"

#include <dlfcn.h>

namespace mkernel::memory::gpu {
namespace {

constexpr int kApiVersion = 12000;    ///< of the functions' signatures: those of every CUDA 12 and 13
constexpr int kBatchVersion = 13000;  ///< of BatchCopy

Status refusal(const std::string& what) {
  return {StatusCode::kFailedPrecondition, what};
}

std::string too_old(void* library) {
  const auto version_of =
      reinterpret_cast<decltype(&::cuDriverGetVersion)>(::dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (version_of != nullptr) version_of(&version);
  return "the CUDA driver supports CUDA " + std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10) +
         ", and has no cuGetProcAddress_v2: a driver of CUDA 12.0 (525) or newer is needed";
}

Result<Driver> load() {
  // Never closed: the driver does not survive it.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return refusal("no CUDA driver on this machine: " + std::string(::dlerror()));
  }
  const auto find = reinterpret_cast<decltype(&::cuGetProcAddress)>(::dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) return refusal(too_old(library));
  Driver driver;
  const auto resolve = [find](const char* name, void** function, int version = kApiVersion) -> Status {
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult error = find(name, function, version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    if (error == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS && *function != nullptr) return {};
    return refusal("the CUDA driver has no " + std::string(name));
  };
#define MK_FIND(name) MK_RETURN_IF_ERROR(resolve(#name, reinterpret_cast<void**>(&driver.name)));
  MK_CUDA_FUNCTIONS(MK_FIND)
#undef MK_FIND
  const Status batches =
      resolve("cuMemcpyBatchAsync", reinterpret_cast<void**>(&driver.cuMemcpyBatchAsync_13), kBatchVersion);
  if (!batches.ok()) driver.cuMemcpyBatchAsync_13 = nullptr;
  MK_RETURN_IF_ERROR(driver.status(driver.cuInit(0), "cuInit"));
  int count = 0;
  MK_RETURN_IF_ERROR(driver.status(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0) return refusal("the CUDA driver shows this process no GPU (CUDA_VISIBLE_DEVICES)");
  return driver;
}

}  // namespace

Status Driver::status(CUresult error, const std::string& what) const {
  if (error == CUDA_SUCCESS) return {};
  StatusCode code = StatusCode::kInternal;
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY: code = StatusCode::kResourceExhausted; break;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE: code = StatusCode::kInvalidArgument; break;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_SYSTEM_NOT_READY: code = StatusCode::kFailedPrecondition; break;
    default: break;
  }
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(error, &name) != CUDA_SUCCESS) name = "unknown CUresult";
  if (cuGetErrorString(error, &text) != CUDA_SUCCESS) text = "no description";
  return {code, what + ": " + name + " (" + std::to_string(static_cast<int>(error)) + "): " + text};
}

Result<const Driver*> driver() {
  static const Result<Driver> loaded = load();
  if (!loaded.ok()) return loaded.status();
  return &loaded.value();
}

}  // namespace mkernel::memory::gpu
