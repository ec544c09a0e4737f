#include "client/src/gpu_device.cuh"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "client/src/gpu_memory.h"
#include "proto/abi/messages.h"

namespace mkernel::client {
namespace {

/// CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE of CUDA 12.8: traffic to the dma-buf takes the PCIe path, on
/// machines that have another one too. Drivers refuse it where there is no choice.
constexpr unsigned long long kMapOverPcie = 1;

}  // namespace

std::uint64_t gpu_pci_address(int device) {
  if (device < 0) return 0;
  const auto driver = cuda_driver();
  CUdevice handle = 0;
  if (!driver.ok() || driver.value()->cuDeviceGet(&handle, device) != CUDA_SUCCESS) return 0;
  const auto number = [&](CUdevice_attribute attribute) {
    int value = 0;
    const bool told = driver.value()->cuDeviceGetAttribute(&value, attribute, handle) == CUDA_SUCCESS;
    return told ? static_cast<std::uint32_t>(value) : 0;
  };
  return abi::pci_address(number(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID), number(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                          number(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID), 0);
}

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

// Enough for loads and stores. An operation whose kernels add over the link asks for more when it is bound
// (kernels/cuda/memory/peer_atomics.h).
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

/// A dma-buf is of whole pages of the host; the NIC is given the piece within.
void export_dma_buf(const Device& device, CUdeviceptr address, std::uint64_t bytes, SharedMemory& shared) {
  const CudaDriver& driver = device.driver();
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const CUdeviceptr begin = address / page * page;
  const std::uint64_t whole = (address + bytes - begin + page - 1) / page * page;
  int fd = -1;
  CUresult error = CUDA_ERROR_NOT_SUPPORTED;
  for (const unsigned long long flags : {kMapOverPcie, 0ULL}) {
    error =
        driver.cuMemGetHandleForAddressRange(&fd, begin, whole, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags);
    if (error == CUDA_SUCCESS) break;
  }
  const Status given = driver.status(
      error, "cuMemGetHandleForAddressRange of " + std::to_string(whole) + " bytes on " + device.name());
  if (!given.ok()) {
    shared.no_dma_buf = given.text() + " (dma-bufs need the open kernel modules of the driver)";
    return;
  }
  shared.dma_buf = ipc::UniqueFd(fd);
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);  // a child of this process would keep the memory allocated
  shared.dma_buf_offset = address - begin;
}

}  // namespace mkernel::client
