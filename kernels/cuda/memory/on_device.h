// Which GPU the calls of a thread mean. Needs CUDA's headers.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/memory/driver_entry.h"
#include "kernels/cuda/memory/error.h"

namespace mkernel::kernels {

/// While it lives `device` is current on this thread, for the runtime's functions and for the driver's; then
/// what was current before is so again. The runtime, PyTorch and we share a device's primary context, so this
/// is seen by all of them. Where the device's context is current already nothing is set, because every launch
/// of a stream pays for it.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    int current = 0;
    before_ = current_context();
    // A thread that has not used CUDA yet is on device 0, the runtime says, but has no context: the driver's
    // functions, unlike the runtime's, do not make one.
    if (before_ != nullptr && cudaGetDevice(&current) == cudaSuccess && current == device) return;
    changes_ = true;
    status_ = cuda_status(cudaSetDevice(device), "GPU " + std::to_string(device));
  }
  ~OnDevice() {
    if (changes_) set_current_context(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  const Status& status() const { return status_; }

 private:
  static constexpr unsigned kSince = 4000;  // first driver API version that has these

  /// Null where the thread has none.
  static CUcontext current_context() {
    static const auto get = driver_entry<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent", kSince);
    CUcontext context = nullptr;
    if (get == nullptr || get(&context) != CUDA_SUCCESS) return nullptr;
    return context;
  }
  /// Sets the context and not the device: setting device 0 on a thread that had no context would make one on
  /// GPU 0 that nobody needs.
  static void set_current_context(CUcontext context) {
    static const auto set = driver_entry<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent", kSince);
    if (set != nullptr) (void)set(context);
  }

  CUcontext before_ = nullptr;
  bool changes_ = false;
  Status status_;
};

}  // namespace mkernel::kernels
