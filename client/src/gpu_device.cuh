// A GPU as this process uses it, for what makes, takes and maps memory of it. Plain C++; .cuh because it
// needs CUDA's headers.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>

#include "client/src/cuda_driver.cuh"
#include "client/src/memory.h"
#include "proto/abi/status.h"

namespace mkernel::client {

/// A device as this process uses it; holds its primary context.
class Device {
 public:
  /// Errors: those of open_gpu_memory().
  static Result<std::shared_ptr<const Device>> open(const CudaDriver& driver, int ordinal);
  Device(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  ~Device() {
    if (context_ != nullptr) (void)driver_.cuDevicePrimaryCtxRelease(device_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const CudaDriver& driver() const { return driver_; }
  CUcontext context() const { return context_; }
  int ordinal() const { return ordinal_; }
  std::uint64_t granularity() const { return granularity_; }
  const std::string& name() const { return name_; }
  /// What an allocation here must be, and what a mapping for this device may do.
  CUmemAllocationProp properties() const;
  CUmemAccessDesc access() const;
  /// "3.2 of 139.8 GiB are free" in bytes, after a failed allocation.
  std::string free_text() const;
  /// OK when this device can reach memory that lies on `owner`.
  Status check_peer(int owner) const;
  Result<CUuuid> uuid() const;

 private:
  Status query();
  Status need(CUdevice_attribute attribute, const std::string& what) const;

  const CudaDriver& driver_;
  const int ordinal_;
  std::string name_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  bool rdma_ = false;  ///< NICs may be given its VMM memory
  std::uint64_t granularity_ = 0;
};

/// While it lives the device's context is current on this thread.
class Current {
 public:
  explicit Current(const Device& device) : driver_(device.driver()) {
    pushed_ = driver_.cuCtxPushCurrent(device.context()) == CUDA_SUCCESS;
  }
  ~Current() {
    CUcontext popped = nullptr;
    if (pushed_) (void)driver_.cuCtxPopCurrent(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const CudaDriver& driver_;
  bool pushed_ = false;
};

/// The dma-buf of [address, +bytes) on the device, into `shared`, or why the driver gives none. It holds the
/// memory like any other handle. Under Current.
void export_dma_buf(const Device& device, CUdeviceptr address, std::uint64_t bytes, SharedMemory& shared);

}  // namespace mkernel::client
