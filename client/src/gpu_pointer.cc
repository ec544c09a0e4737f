// Plain GPU memory, allocated by whoever links this library: found by its address, named for others by CUDA
// IPC, and by a dma-buf where the driver gives one.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "client/src/gpu_device.cuh"
#include "client/src/gpu_memory.h"
#include "proto/base/mutex.h"

namespace mkernel::client {
namespace {

/// What CUDA knows of an address.
struct Pointer {
  CUmemorytype type{};
  int device = -1;
  int managed = 0;
  int ipc_capable = 0;
  CUdeviceptr base = 0;   ///< of the allocation
  std::size_t bytes = 0;  ///< of the allocation
};

/// The allocations that this process has named for others, by handle: CUDA opens none of them in the process
/// that owns it.
class OwnAllocations {
 public:
  struct Entry {
    CUdeviceptr base;
    std::shared_ptr<const Device> device;
  };
  using Held = std::shared_ptr<const Entry>;

  /// Known for as long as the result lives.
  Held add(const abi::IpcMemory& memory, const Entry& entry) {
    const MutexLock lock(mutex_);
    std::erase_if(entries_, [](const auto& item) { return item.second.expired(); });
    auto held = std::make_shared<const Entry>(entry);
    entries_.insert_or_assign(key(memory), held);
    return held;
  }
  /// Null when it belongs to another process.
  Held find(const abi::IpcMemory& memory) {
    const MutexLock lock(mutex_);
    const auto at = entries_.find(key(memory));
    return at == entries_.end() ? nullptr : at->second.lock();
  }

 private:
  using Key = std::array<std::uint8_t, sizeof(abi::IpcMemory::handle)>;
  static Key key(const abi::IpcMemory& memory) { return std::to_array(memory.handle); }

  Mutex mutex_;
  std::map<Key, std::weak_ptr<const Entry>> entries_ MK_GUARDED_BY(mutex_);
};

OwnAllocations& own_allocations() {
  static OwnAllocations allocations;
  return allocations;
}

/// A neighbour's allocation, opened for one device.
class OpenedMemory {
 public:
  OpenedMemory(std::shared_ptr<const Device> device, CUdeviceptr base)
      : device_(std::move(device)), base_(base) {}
  ~OpenedMemory() {
    const Current current(*device_);
    (void)device_->driver().cuIpcCloseMemHandle(base_);
  }
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;
  CUdeviceptr base() const { return base_; }

 private:
  const std::shared_ptr<const Device> device_;
  const CUdeviceptr base_;
};

class PlainMemory final : public MemorySource {
 public:
  PlainMemory(std::shared_ptr<const Device> device, void* data)
      : device_(std::move(device)), address_(reinterpret_cast<CUdeviceptr>(data)) {}
  abi::RegionKind kind() const override { return abi::RegionKind::kIpc; }
  std::uint64_t whole(std::uint64_t bytes) const override { return bytes; }
  Result<NewMemory> make(const std::string& label, std::uint64_t bytes) override;
  Result<MappedMemory> map(const SharedMemory& theirs, std::uint64_t bytes) override;

 private:
  const CudaDriver& driver() const { return device_->driver(); }
  std::string text(std::uint64_t bytes) const;
  Result<Pointer> look(std::uint64_t bytes) const;
  Status check(const Pointer& pointer, std::uint64_t bytes) const;
  Result<abi::IpcMemory> name(const Pointer& pointer) const;
  Result<int> ordinal_of(const abi::IpcMemory& memory) const;
  Result<MappedMemory> reach_own(OwnAllocations::Held own, std::uint64_t offset) const;

  const std::shared_ptr<const Device> device_;
  const CUdeviceptr address_;
};

std::string PlainMemory::text(std::uint64_t bytes) const {
  char address[32];
  std::snprintf(address, sizeof(address), "0x%llx", static_cast<unsigned long long>(address_));
  return std::to_string(bytes) + " bytes at " + address;
}

// ---- this rank's own

Result<Pointer> PlainMemory::look(std::uint64_t bytes) const {
  Pointer found;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void* values[] = {&found.type, &found.device, &found.managed, &found.ipc_capable};
  MK_RETURN_IF_ERROR(driver().status(
      driver().cuPointerGetAttributes(std::size(which), which, values, address_), "cuPointerGetAttributes"));
  MK_RETURN_IF_ERROR(check(found, bytes));
  MK_RETURN_IF_ERROR(driver().status(driver().cuMemGetAddressRange(&found.base, &found.bytes, address_),
                                     "cuMemGetAddressRange of " + text(bytes)));
  const std::uint64_t left = found.bytes - (address_ - found.base);
  if (bytes <= left) return found;
  return Status(StatusCode::kOutOfRange,
                text(bytes) + ": the allocation there ends after " + std::to_string(left));
}

Status PlainMemory::check(const Pointer& pointer, std::uint64_t bytes) const {
  if (pointer.managed != 0) {
    return {StatusCode::kInvalidArgument, text(bytes) + " are managed memory, which cannot be registered"};
  }
  if (pointer.type != CU_MEMORYTYPE_DEVICE) {
    return {StatusCode::kInvalidArgument,
            text(bytes) + " are not memory of a GPU; host memory: register_memory() takes a memfd"};
  }
  if (pointer.device != device_->ordinal()) {
    return {StatusCode::kInvalidArgument, text(bytes) + " lie on GPU " + std::to_string(pointer.device) +
                                              ", the session's is " + device_->name()};
  }
  if (pointer.ipc_capable != 0) return {};
  return {StatusCode::kFailedPrecondition,
          text(bytes) +
              " cannot be shared by CUDA IPC: not from cudaMalloc, but from PyTorch's expandable segments, a "
              "memory pool (cudaMallocAsync), cuMemCreate or another process. Set PYTORCH_CUDA_ALLOC_CONF="
              "expandable_segments:False, or take memory of symmetric_gpu()"};
}

Result<abi::IpcMemory> PlainMemory::name(const Pointer& pointer) const {
  abi::IpcMemory memory{};
  CUipcMemHandle handle{};
  static_assert(sizeof(handle.reserved) == sizeof(memory.handle));
  MK_RETURN_IF_ERROR(driver().status(driver().cuIpcGetMemHandle(&handle, pointer.base), "cuIpcGetMemHandle"));
  const auto uuid = device_->uuid();
  if (!uuid.ok()) return uuid.status();
  std::memcpy(memory.handle, handle.reserved, sizeof(memory.handle));
  std::memcpy(memory.gpu, uuid.value().bytes, sizeof(memory.gpu));
  return memory;
}

Result<NewMemory> PlainMemory::make(const std::string&, std::uint64_t bytes) {
  const Current current(*device_);
  const auto pointer = look(bytes);
  if (!pointer.ok()) return pointer.status();
  const auto memory = name(pointer.value());
  if (!memory.ok()) return memory.status().with_context(text(bytes));
  NewMemory made;
  made.shared.cuda_ipc = memory.value();
  made.shared.offset = address_ - pointer.value().base;
  export_dma_buf(*device_, address_, bytes, made.shared);
  made.mapped = {reinterpret_cast<std::byte*>(address_),
                 own_allocations().add(memory.value(), {pointer.value().base, device_})};
  return made;
}

// ---- a neighbour's

Result<int> PlainMemory::ordinal_of(const abi::IpcMemory& memory) const {
  int count = 0;
  MK_RETURN_IF_ERROR(driver().status(driver().cuDeviceGetCount(&count), "cuDeviceGetCount"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    CUuuid uuid{};
    MK_RETURN_IF_ERROR(driver().status(driver().cuDeviceGet(&device, ordinal), "cuDeviceGet"));
    MK_RETURN_IF_ERROR(driver().status(driver().cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid"));
    if (std::memcmp(uuid.bytes, memory.gpu, sizeof(memory.gpu)) == 0) return ordinal;
  }
  return Status(StatusCode::kFailedPrecondition,
                "it lies on a GPU that is none of the " + std::to_string(count) +
                    " which this process sees: CUDA IPC needs it visible (CUDA_VISIBLE_DEVICES)");
}

/// Other threads of this process have a rank of their own: what is theirs is here at the same address.
Result<MappedMemory> PlainMemory::reach_own(OwnAllocations::Held own, std::uint64_t offset) const {
  if (own->device->ordinal() != device_->ordinal()) {
    const CUresult error = driver().cuCtxEnablePeerAccess(own->device->context(), 0);
    if (error != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
      MK_RETURN_IF_ERROR(driver().status(
          error, "cuCtxEnablePeerAccess from " + device_->name() + " to " + own->device->name()));
    }
  }
  std::byte* const data = reinterpret_cast<std::byte*>(own->base + offset);
  return MappedMemory{data, std::move(own)};
}

Result<MappedMemory> PlainMemory::map(const SharedMemory& theirs, std::uint64_t bytes) {
  const Current current(*device_);
  const auto owner = ordinal_of(theirs.cuda_ipc);
  if (!owner.ok()) return owner.status();
  MK_RETURN_IF_ERROR(device_->check_peer(owner.value()));
  if (auto own = own_allocations().find(theirs.cuda_ipc)) return reach_own(std::move(own), theirs.offset);
  CUipcMemHandle handle{};
  std::memcpy(handle.reserved, theirs.cuda_ipc.handle, sizeof(theirs.cuda_ipc.handle));
  CUdeviceptr base = 0;
  MK_RETURN_IF_ERROR(
      driver().status(driver().cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                      "cuIpcOpenMemHandle of " + std::to_string(bytes) + " bytes of GPU " +
                          std::to_string(owner.value()) + " for " + device_->name()));
  auto opened = std::make_shared<const OpenedMemory>(device_, base);
  std::byte* const data = reinterpret_cast<std::byte*>(base + theirs.offset);
  return MappedMemory{data, std::move(opened)};
}

}  // namespace

Result<std::shared_ptr<MemorySource>> open_gpu_pointer(int device, void* data) {
  const auto driver = cuda_driver();
  const std::string what = "memory of GPU " + std::to_string(device);
  if (!driver.ok()) return driver.status().with_context(what);
  auto opened = Device::open(*driver.value(), device);
  if (!opened.ok()) return opened.status().with_context(what);
  return std::shared_ptr<MemorySource>(std::make_shared<PlainMemory>(std::move(*opened), data));
}

}  // namespace mkernel::client
