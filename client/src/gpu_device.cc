#include "client/src/gpu_device.cuh"

#include <utility>

namespace mkernel::client {

Result<std::shared_ptr<const Device>> Device::open(const CudaDriver& driver, int ordinal) {
  auto device = std::make_shared<Device>(driver, ordinal);
  MK_RETURN_IF_ERROR(device->query());
  return std::shared_ptr<const Device>(std::move(device));
}

Status Device::query() {
  int count = 0;
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (ordinal_ < 0 || ordinal_ >= count) {
    return {StatusCode::kFailedPrecondition,
            "there is no GPU " + std::to_string(ordinal_) + ": this process sees " + std::to_string(count)};
  }
  name_ = "GPU " + std::to_string(ordinal_);
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGet(&device_, ordinal_), "cuDeviceGet"));
  char model[128] = {};
  if (driver_.cuDeviceGetName(model, sizeof(model) - 1, device_) == CUDA_SUCCESS) {
    name_.append(" (").append(model).append(")");
  }
  MK_RETURN_IF_ERROR(need(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                          "virtual memory management (cuMemCreate)"));
  MK_RETURN_IF_ERROR(need(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                          "allocations shared by file descriptor"));
  int rdma = 0;
  rdma_ = driver_.cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                       device_) == CUDA_SUCCESS &&
          rdma != 0;
  const CUmemAllocationProp wanted = properties();
  std::size_t granularity = 0;
  MK_RETURN_IF_ERROR(driver_.status(
      driver_.cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity of " + name_));
  granularity_ = granularity;
  return driver_.status(driver_.cuDevicePrimaryCtxRetain(&context_, device_),
                        "cuDevicePrimaryCtxRetain of " + name_);
}

Result<CUuuid> Device::uuid() const {
  CUuuid uuid{};
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGetUuid(&uuid, device_), "cuDeviceGetUuid of " + name_));
  return uuid;
}

Status Device::need(CUdevice_attribute attribute, const std::string& what) const {
  int supported = 0;
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGetAttribute(&supported, attribute, device_),
                                    "cuDeviceGetAttribute of " + name_));
  if (supported != 0) return {};
  return {StatusCode::kFailedPrecondition, name_ + " does not support " + what};
}

CUmemAllocationProp Device::properties() const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal_;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.allocFlags.gpuDirectRDMACapable = rdma_ ? 1 : 0;
  return properties;
}

CUmemAccessDesc Device::access() const {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = ordinal_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

std::string Device::free_text() const {
  std::size_t free = 0, total = 0;
  if (driver_.cuMemGetInfo(&free, &total) != CUDA_SUCCESS) return "how much is free is not known";
  return std::to_string(free) + " of " + std::to_string(total) + " bytes are free";
}

Status Device::check_peer(int owner) const {
  if (owner == ordinal_) return {};
  CUdevice theirs = 0;
  MK_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGet(&theirs, owner), "cuDeviceGet"));
  int can = 0;
  MK_RETURN_IF_ERROR(
      driver_.status(driver_.cuDeviceCanAccessPeer(&can, device_, theirs),
                     "cuDeviceCanAccessPeer from " + name_ + " to GPU " + std::to_string(owner)));
  if (can != 0) return {};
  return {StatusCode::kFailedPrecondition, name_ + " cannot access the memory of GPU " +
                                               std::to_string(owner) +
                                               ": no peer access (NVLink, or PCIe with P2P) between them"};
}

}  // namespace mkernel::client
