// The GPUs as one CopyEngines uses them: a context on each that something lies on, made when it is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/memory/gpu/driver.cuh"

namespace mkernel::memory::gpu {

/// A GPU; holds its primary context. One thread.
class Device {
 public:
  /// Takes some hundred milliseconds and some hundred megabytes of the GPU for the first holder in a process.
  static Result<std::shared_ptr<const Device>> open(const Driver& driver, int ordinal);
  Device(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  ///< "GPU 0 (NVIDIA H200)"
  /// What follows on this thread is said to this GPU.
  Status make_current() const;
  /// OK when this GPU reaches the memory of `owner`.
  Status check_reach(const Device& owner) const;

 private:
  Status query();

  const Driver& driver_;
  const int ordinal_;
  std::string name_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

/// Every GPU that was used so far. One thread.
class Devices {
 public:
  explicit Devices(const Driver& driver) : driver_(driver) {}
  const Driver& driver() const { return driver_; }
  Result<std::shared_ptr<const Device>> get(int ordinal);
  /// The GPU of this UUID. Errors: kFailedPrecondition when this process does not see it.
  Result<std::shared_ptr<const Device>> find(const std::uint8_t (&uuid)[16]);

 private:
  const Driver& driver_;
  std::vector<std::shared_ptr<const Device>> open_;
};

}  // namespace mkernel::memory::gpu
