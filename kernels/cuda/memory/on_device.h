// Which GPU the calls of a thread mean. Needs CUDA's runtime header.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/memory/error.h"

namespace mkernel::kernels {

/// While it lives `device` is current on this thread; then the one before it is again. The runtime, PyTorch
/// and we share a device's primary context, so this is seen by all of them. Where `device` is current already
/// nothing is set, because every launch of a stream pays for it.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(device) {
    changes_ = cudaGetDevice(&before_) != cudaSuccess || before_ != device;
    if (changes_) status_ = cuda_status(cudaSetDevice(device), "GPU " + std::to_string(device));
  }
  ~OnDevice() {
    if (changes_) (void)cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  const Status& status() const { return status_; }

 private:
  int before_;
  bool changes_ = false;  ///< another device was current
  Status status_;
};

}  // namespace mkernel::kernels
