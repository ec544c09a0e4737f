#include "client/src/gpu_memory.h"

#include <fcntl.h>

#include <limits>
#include <utility>

#include "client/src/gpu_device.cuh"

namespace mkernel::client {
namespace {

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
  Result<MappedMemory> map(const SharedMemory& theirs, std::uint64_t bytes) override;

 private:
  const std::shared_ptr<const Device> device_;
};

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
  NewMemory made;
  auto fd = mine->share();
  if (!fd.ok()) return fd.status();
  made.shared.fd = std::move(*fd);
  export_dma_buf(*device_, reinterpret_cast<CUdeviceptr>(mine->data()), whole(bytes), made.shared);
  made.mapped = {mine->data(), std::move(mine)};
  return made;
}

Result<MappedMemory> GpuMemory::map(const SharedMemory& theirs, std::uint64_t bytes) {
  if (theirs.offset != 0) {
    return Status(StatusCode::kInternal,
                  "a VMM region at offset " + std::to_string(theirs.offset) + ", not 0");
  }
  const Current current(*device_);
  auto mapping = std::make_shared<DeviceMapping>(device_, bytes);
  MK_RETURN_IF_ERROR(mapping->import(theirs.fd.get()));
  MK_RETURN_IF_ERROR(mapping->map());
  std::byte* const data = mapping->data();
  return MappedMemory{data, std::move(mapping)};
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
