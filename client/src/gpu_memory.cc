#include "client/src/gpu_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "client/src/cuda_driver.cuh"

namespace mkernel::client {
namespace {

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
  std::uint64_t granularity() const { return granularity_; }
  const std::string& name() const { return name_; }
  /// What an allocation here must be, and what a mapping for this device may do.
  CUmemAllocationProp properties() const;
  CUmemAccessDesc access() const;
  /// "3.2 of 139.8 GiB are free" in bytes, after a failed allocation.
  std::string free_text() const;
  /// OK when this device can reach memory that lies on `owner`.
  Status check_peer(int owner) const;

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

/// An allocation, own or imported, mapped for one device. Released in the reverse order of how it was made:
/// unmapped, addresses given back, handle released. The memory itself goes when nobody holds a handle, a
/// mapping or an fd of it any more.
class DeviceMapping {
 public:
  DeviceMapping(std::shared_ptr<const Device> device, std::uint64_t bytes)
      : device_(std::move(device)), bytes_(bytes) {}
  ~DeviceMapping();
  DeviceMapping(const DeviceMapping&) = delete;
  DeviceMapping& operator=(const DeviceMapping&) = delete;

  // In this order, under Current.
  Status create();
  Status import(int fd);
  Status map();
  Status zero();

  Result<ipc::UniqueFd> share() const;
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

 private:
  const CudaDriver& driver() const { return device_->driver(); }
  std::string text() const { return std::to_string(bytes_) + " bytes on " + device_->name(); }

  const std::shared_ptr<const Device> device_;
  const std::uint64_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool allocated_ = false, mapped_ = false;
};

class GpuMemory final : public MemorySource {
 public:
  explicit GpuMemory(std::shared_ptr<const Device> device) : device_(std::move(device)) {}
  abi::RegionKind kind() const override { return abi::RegionKind::kVmm; }
  std::uint64_t whole(std::uint64_t bytes) const override;
  Result<NewMemory> make(const std::string& label, std::uint64_t bytes) override;
  Result<MappedMemory> map(const ipc::UniqueFd& fd, std::uint64_t offset, std::uint64_t bytes) override;

 private:
  const std::shared_ptr<const Device> device_;
};

// ---- the device

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

// ---- one mapping

DeviceMapping::~DeviceMapping() {
  const Current current(*device_);
  // At the end of the process the driver may be gone before us, and the memory with it.
  if (mapped_) (void)driver().cuMemUnmap(address_, bytes_);
  if (address_ != 0) (void)driver().cuMemAddressFree(address_, bytes_);
  if (allocated_) (void)driver().cuMemRelease(handle_);
}

Status DeviceMapping::create() {
  const CUmemAllocationProp properties = device_->properties();
  Status created =
      driver().status(driver().cuMemCreate(&handle_, bytes_, &properties, 0), "cuMemCreate of " + text());
  if (created.code() == StatusCode::kResourceExhausted) {
    return {created.code(), created.text() + "; " + device_->free_text()};
  }
  allocated_ = created.ok();
  return created;
}

Status DeviceMapping::import(int fd) {
  void* shared = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  MK_RETURN_IF_ERROR(driver().status(
      driver().cuMemImportFromShareableHandle(&handle_, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle of " + text() +
          " (the GPU that owns it must be visible to this process: CUDA_VISIBLE_DEVICES)"));
  allocated_ = true;
  CUmemAllocationProp theirs{};
  MK_RETURN_IF_ERROR(driver().status(driver().cuMemGetAllocationPropertiesFromHandle(&theirs, handle_),
                                     "cuMemGetAllocationPropertiesFromHandle"));
  return device_->check_peer(theirs.location.id);
}

Status DeviceMapping::map() {
  MK_RETURN_IF_ERROR(
      driver().status(driver().cuMemAddressReserve(&address_, bytes_, device_->granularity(), 0, 0),
                      "cuMemAddressReserve of " + text()));
  MK_RETURN_IF_ERROR(
      driver().status(driver().cuMemMap(address_, bytes_, 0, handle_, 0), "cuMemMap of " + text()));
  mapped_ = true;
  const CUmemAccessDesc access = device_->access();
  return driver().status(driver().cuMemSetAccess(address_, bytes_, &access, 1),
                         "cuMemSetAccess of " + text());
}

Status DeviceMapping::zero() {
  // A stream of its own: the caller's kernels, which may run for as long as they like, are not waited for.
  CUstream stream = nullptr;
  MK_RETURN_IF_ERROR(
      driver().status(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  Status zeroed = driver().status(driver().cuMemsetD8Async(address_, 0, bytes_, stream), "cuMemsetD8Async");
  if (zeroed.ok()) zeroed = driver().status(driver().cuStreamSynchronize(stream), "zeroing " + text());
  (void)driver().cuStreamDestroy(stream);
  return zeroed;
}

Result<ipc::UniqueFd> DeviceMapping::share() const {
  int fd = -1;
  MK_RETURN_IF_ERROR(driver().status(
      driver().cuMemExportToShareableHandle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle of " + text()));
  ipc::UniqueFd owned(fd);
  // A child of this process would keep the memory allocated.
  (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return owned;
}

// ---- the source

std::uint64_t GpuMemory::whole(std::uint64_t bytes) const {
  const std::uint64_t unit = device_->granularity();
  if (bytes > std::numeric_limits<std::uint64_t>::max() - (unit - 1)) return bytes;  // cuMemCreate refuses it
  return (bytes + unit - 1) / unit * unit;
}

Result<NewMemory> GpuMemory::make(const std::string&, std::uint64_t bytes) {
  const Current current(*device_);
  auto mine = std::make_shared<DeviceMapping>(device_, whole(bytes));
  MK_RETURN_IF_ERROR(mine->create());
  MK_RETURN_IF_ERROR(mine->map());
  MK_RETURN_IF_ERROR(mine->zero());
  auto fd = mine->share();
  if (!fd.ok()) return fd.status();
  std::byte* const data = mine->data();
  return NewMemory{{data, std::move(mine)}, std::move(*fd)};
}

Result<MappedMemory> GpuMemory::map(const ipc::UniqueFd& fd, std::uint64_t offset, std::uint64_t bytes) {
  if (offset != 0) {
    return Status(StatusCode::kInternal, "a VMM region at offset " + std::to_string(offset) + ", not 0");
  }
  const Current current(*device_);
  auto theirs = std::make_shared<DeviceMapping>(device_, bytes);
  MK_RETURN_IF_ERROR(theirs->import(fd.get()));
  MK_RETURN_IF_ERROR(theirs->map());
  std::byte* const data = theirs->data();
  return MappedMemory{data, std::move(theirs)};
}

}  // namespace

Result<std::shared_ptr<MemorySource>> open_gpu_memory(int device) {
  const auto driver = cuda_driver();
  const std::string what = "memory of GPU " + std::to_string(device);
  if (!driver.ok()) return driver.status().with_context(what);
  auto opened = Device::open(*driver.value(), device);
  if (!opened.ok()) return opened.status().with_context(what);
  return std::shared_ptr<MemorySource>(std::make_shared<GpuMemory>(std::move(*opened)));
}

}  // namespace mkernel::client
