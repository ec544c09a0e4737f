// Plain GPU memory of other processes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/memory/gpu/memory.cuh"
#include "daemon/memory/region.h"

namespace mkernel::memory::gpu {

Result<std::shared_ptr<EngineMemory>> IpcMemory::open(Devices& devices, const abi::IpcMemory& memory,
                                                      std::uint64_t offset, std::uint64_t bytes) {
  auto opened = std::make_shared<IpcMemory>(memory, offset, bytes);
  auto owner = devices.find(memory.gpu);
  if (!owner.ok()) return owner.status().with_context(opened->text());
  opened->owner_ = std::move(owner).value();
  MK_RETURN_IF_ERROR(opened->reach(opened->owner_));
  MK_RETURN_IF_ERROR(opened->check_range());
  return std::shared_ptr<EngineMemory>(std::move(opened));
}

IpcMemory::~IpcMemory() {
  for (const Opened& opened : opened_) {
    if (opened.device->make_current().ok()) (void)opened.device->driver().cuIpcCloseMemHandle(opened.base);
  }
}

std::string IpcMemory::text() const {
  return "CUDA IPC memory [" + std::to_string(offset_) + ", +" + std::to_string(bytes_) + ")" +
         (owner_ == nullptr ? "" : " on " + owner_->name());
}

const IpcMemory::Opened* IpcMemory::find(const Device& device) const {
  const auto at = std::find_if(opened_.begin(), opened_.end(),
                               [&](const Opened& opened) { return opened.device.get() == &device; });
  return at == opened_.end() ? nullptr : &*at;
}

Status IpcMemory::reach(const std::shared_ptr<const Device>& device) {
  if (find(*device) != nullptr) return {};
  MK_RETURN_IF_ERROR(device->check_reach(*owner_));
  MK_RETURN_IF_ERROR(device->make_current());
  CUipcMemHandle handle{};
  static_assert(sizeof(handle.reserved) == sizeof(memory_.handle));
  std::memcpy(handle.reserved, memory_.handle, sizeof(handle.reserved));
  CUdeviceptr base = 0;
  MK_RETURN_IF_ERROR(device->driver().status(
      device->driver().cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
      "cuIpcOpenMemHandle of " + text() + " for " + device->name()));
  opened_.push_back({device, base});
  return {};
}

/// The one check of what the client said that there is. The driver knows the allocation under the address on
/// its own GPU alone, so this tells a wrong GPU too.
Status IpcMemory::check_range() const {
  const Driver& driver = owner_->driver();
  CUdeviceptr begin = 0;
  std::size_t size = 0;
  MK_RETURN_IF_ERROR(driver.status(driver.cuMemGetAddressRange(&begin, &size, find(*owner_)->base),
                                   "cuMemGetAddressRange of " + text() + ", where it may not lie"));
  if (in_bounds(offset_, bytes_, size)) return {};
  return {StatusCode::kOutOfRange, text() + ": its allocation has " + std::to_string(size) + " bytes"};
}

CUdeviceptr IpcMemory::address(const Device& engines) const {
  return find(engines)->base + offset_;
}

}  // namespace mkernel::memory::gpu
