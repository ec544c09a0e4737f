#include "daemon/memory/gpu/device.cuh"

#include <algorithm>
#include <cstring>

namespace mkernel::memory::gpu {

Result<std::shared_ptr<const Device>> Device::open(const Driver& driver, int ordinal) {
  auto device = std::make_shared<Device>(driver, ordinal);
  MK_RETURN_IF_ERROR(device->query());
  return std::shared_ptr<const Device>(std::move(device));
}

Device::~Device() {
  if (context_ != nullptr) (void)driver_.cuDevicePrimaryCtxRelease(device_);
}

Status Device::query() {
  name_ = "GPU " + std::to_string(ordinal_);
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGet(&device_, ordinal_), "cuDeviceGet of " + name_));
  char model[128] = {};
  if (driver_.cuDeviceGetName(model, sizeof(model) - 1, device_) == CUDA_SUCCESS) {
    name_.append(" (").append(model).append(")");
  }
  return driver_.status(driver_.cuDevicePrimaryCtxRetain(&context_, device_),
                        "cuDevicePrimaryCtxRetain of " + name_);
}

Status Device::make_current() const {
  return driver_.status(driver_.cuCtxSetCurrent(context_), "cuCtxSetCurrent of " + name_);
}

// The daemon only copies with the copy engines, for which any peer access will do: native atomics of the link
// are asked for where a kernel adds (kernels/cuda/memory/peer_atomics.h).
Status Device::check_reach(const Device& owner) const {
  if (owner.ordinal_ == ordinal_) return {};
  int can = 0;
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceCanAccessPeer(&can, device_, owner.device_),
                                    "cuDeviceCanAccessPeer from " + name_ + " to " + owner.name_));
  if (can != 0) return {};
  return {StatusCode::kFailedPrecondition, name_ + " cannot access the memory of " + owner.name_ +
                                               ": no peer access (NVLink, or PCIe with P2P) between them"};
}

Result<std::shared_ptr<const Device>> Devices::get(int ordinal) {
  const auto at =
      std::find_if(open_.begin(), open_.end(), [&](const auto& d) { return d->ordinal() == ordinal; });
  if (at != open_.end()) return *at;
  auto opened = Device::open(driver_, ordinal);
  if (opened.ok()) open_.push_back(opened.value());
  return opened;
}

Result<std::shared_ptr<const Device>> Devices::find(const std::uint8_t (&uuid)[16]) {
  int count = 0;
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    CUuuid theirs{};
    MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGet(&device, ordinal), "cuDeviceGet"));
    MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGetUuid(&theirs, device), "cuDeviceGetUuid"));
    if (std::memcmp(theirs.bytes, uuid, sizeof(uuid)) == 0) return get(ordinal);
  }
  return Status(StatusCode::kFailedPrecondition, "it lies on a GPU that is none of the " +
                                                     std::to_string(count) +
                                                     " which the daemon sees (CUDA_VISIBLE_DEVICES)");
}

}  // namespace mkernel::memory::gpu
