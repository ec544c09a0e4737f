// Memory as the copy engines of one CopyEngines reach it: of three kinds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/memory/copy_engines.h"
#include "daemon/memory/gpu/device.cuh"

namespace mkernel::memory::gpu {

/// Any kind. One thread.
class Memory : public EngineMemory {
 public:
  /// The GPU it lies on; null for host memory.
  virtual const std::shared_ptr<const Device>& owner() const = 0;
  /// Makes it reachable for that GPU's engines too; cheap when it is already.
  virtual Status reach(const std::shared_ptr<const Device>& device) = 0;
  /// Where the engines of a GPU that reaches it find it.
  virtual CUdeviceptr address(const Device& engines) const = 0;
};

/// A VMM allocation of another process: imported, and mapped for the GPUs that copy from or to it. Released
/// in the reverse order. The allocation itself goes when nobody holds a handle, a mapping or an fd of it.
class VmmMemory final : public Memory {
 public:
  static Result<std::shared_ptr<EngineMemory>> import(Devices& devices, int fd, std::uint64_t bytes);
  VmmMemory(const Driver& driver, std::uint64_t bytes) : driver_(driver), bytes_(bytes) {}
  ~VmmMemory() override;

  const std::shared_ptr<const Device>& owner() const override { return owner_; }
  Status reach(const std::shared_ptr<const Device>& device) override;
  CUdeviceptr address(const Device&) const override { return address_; }

 private:
  Status take(Devices& devices, int fd);
  Status map(const CUmemAllocationProp& properties);
  std::string text() const;

  const Driver& driver_;
  const std::uint64_t bytes_;
  std::shared_ptr<const Device> owner_;
  std::vector<std::shared_ptr<const Device>> reached_by_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool imported_ = false, mapped_ = false;
};

/// Plain GPU memory of another process, opened by CUDA IPC for each GPU that copies from or to it: an address
/// that was opened for one GPU is staged through host memory by the engines of another. The driver keeps the
/// memory while it is open anywhere, also when its owner frees it or dies.
class IpcMemory final : public Memory {
 public:
  static Result<std::shared_ptr<EngineMemory>> open(Devices& devices, const abi::IpcMemory& memory,
                                                    std::uint64_t offset, std::uint64_t bytes);
  explicit IpcMemory(const abi::IpcMemory& memory, std::uint64_t offset, std::uint64_t bytes)
      : memory_(memory), offset_(offset), bytes_(bytes) {}
  ~IpcMemory() override;

  const std::shared_ptr<const Device>& owner() const override { return owner_; }
  Status reach(const std::shared_ptr<const Device>& device) override;
  CUdeviceptr address(const Device& engines) const override;

 private:
  struct Opened {
    std::shared_ptr<const Device> device;
    CUdeviceptr base;  ///< of the allocation
  };
  const Opened* find(const Device& device) const;
  Status check_range() const;
  std::string text() const;

  const abi::IpcMemory memory_;
  const std::uint64_t offset_, bytes_;
  std::shared_ptr<const Device> owner_;
  std::vector<Opened> opened_;
};

/// Host memory of this process, pinned from the first copy on.
class PinnedMemory final : public Memory {
 public:
  PinnedMemory(std::byte* data, std::uint64_t bytes, Access access)
      : data_(data), bytes_(bytes), access_(access) {}
  ~PinnedMemory() override;

  const std::shared_ptr<const Device>& owner() const override { return none_; }
  Status reach(const std::shared_ptr<const Device>& device) override;
  CUdeviceptr address(const Device&) const override { return reinterpret_cast<CUdeviceptr>(data_); }

 private:
  std::byte* const data_;
  const std::uint64_t bytes_;
  const Access access_;
  const std::shared_ptr<const Device> none_;
  std::shared_ptr<const Device> pinned_by_;
};

}  // namespace mkernel::memory::gpu
