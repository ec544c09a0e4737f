#include "daemon/memory/gpu/memory.cuh"

#include <algorithm>

namespace mkernel::memory::gpu {

// ---- GPU memory

Result<std::shared_ptr<EngineMemory>> VmmMemory::import(Devices& devices, int fd, std::uint64_t bytes) {
  auto memory = std::make_shared<VmmMemory>(devices.driver(), bytes);
  MK_RETURN_IF_ERROR(memory->take(devices, fd));
  return std::shared_ptr<EngineMemory>(std::move(memory));
}

VmmMemory::~VmmMemory() {
  if (mapped_) (void)driver_.cuMemUnmap(address_, bytes_);
  if (address_ != 0) (void)driver_.cuMemAddressFree(address_, bytes_);
  if (imported_) (void)driver_.cuMemRelease(handle_);
}

std::string VmmMemory::text() const {
  return std::to_string(bytes_) + " bytes" + (owner_ == nullptr ? "" : " on " + owner_->name());
}

Status VmmMemory::take(Devices& devices, int fd) {
  void* const shared = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  MK_RETURN_IF_ERROR(driver_.status(
      driver_.cuMemImportFromShareableHandle(&handle_, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle of " + text() +
          " (the GPU that owns it must be visible to the daemon: CUDA_VISIBLE_DEVICES)"));
  imported_ = true;
  // Which GPU it lies on the allocation itself knows; how its client counts them says nothing here.
  CUmemAllocationProp properties{};
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuMemGetAllocationPropertiesFromHandle(&properties, handle_),
                                    "cuMemGetAllocationPropertiesFromHandle"));
  auto owner = devices.get(properties.location.id);
  if (!owner.ok()) return owner.status();
  owner_ = std::move(owner).value();
  return map(properties);
}

Status VmmMemory::map(const CUmemAllocationProp& properties) {
  MK_RETURN_IF_ERROR(owner_->make_current());
  std::size_t granularity = 0;
  MK_RETURN_IF_ERROR(driver_.status(
      driver_.cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity of " + owner_->name()));
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuMemAddressReserve(&address_, bytes_, granularity, 0, 0),
                                    "cuMemAddressReserve of " + text()));
  // The one check of the allocation's true size that there is: the driver maps no more than there is memory.
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuMemMap(address_, bytes_, 0, handle_, 0),
                                    "cuMemMap of " + text() + ", which the allocation may not have"));
  mapped_ = true;
  return reach(owner_);
}

Status VmmMemory::reach(const std::shared_ptr<const Device>& device) {
  if (std::find(reached_by_.begin(), reached_by_.end(), device) != reached_by_.end()) return {};
  MK_RETURN_IF_ERROR(device->check_reach(*owner_));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device->ordinal();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuMemSetAccess(address_, bytes_, &access, 1),
                                    "cuMemSetAccess of " + text() + " for " + device->name()));
  reached_by_.push_back(device);
  return {};
}

// ---- host memory

PinnedMemory::~PinnedMemory() {
  if (pinned_by_ == nullptr || !pinned_by_->make_current().ok()) return;
  (void)pinned_by_->driver().cuMemHostUnregister(data_);
}

Status PinnedMemory::reach(const std::shared_ptr<const Device>& device) {
  if (pinned_by_ != nullptr) return {};  // for every context: portable
  MK_RETURN_IF_ERROR(device->make_current());
  // A mapping for reading alone is refused without the flag.
  const unsigned flags =
      CU_MEMHOSTREGISTER_PORTABLE | (access_ == Access::kRead ? CU_MEMHOSTREGISTER_READ_ONLY : 0U);
  MK_RETURN_IF_ERROR(device->driver().status(
      device->driver().cuMemHostRegister(data_, bytes_, flags),
      "cuMemHostRegister of " + std::to_string(bytes_) + " bytes of host memory (ulimit -l)"));
  pinned_by_ = device;
  return {};
}

}  // namespace mkernel::memory::gpu
