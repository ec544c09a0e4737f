// The module itself: CopyEngines over the CUDA driver.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/memory/gpu/queue.cuh"
#include "daemon/memory/gpu_module.h"

namespace mkernel::memory::gpu {
namespace {

class Engines final : public CopyEngines {
 public:
  explicit Engines(const Driver& driver) : devices_(driver) {}

  Result<std::shared_ptr<EngineMemory>> map(int fd, std::uint64_t bytes) override {
    return VmmMemory::import(devices_, fd, bytes);
  }
  Result<std::shared_ptr<EngineMemory>> open(const abi::IpcMemory& memory, std::uint64_t offset,
                                             std::uint64_t bytes) override {
    return IpcMemory::open(devices_, memory, offset, bytes);
  }
  Result<std::shared_ptr<EngineMemory>> pin(std::byte* data, std::uint64_t bytes, Access access) override {
    return std::shared_ptr<EngineMemory>(std::make_shared<PinnedMemory>(data, bytes, access));
  }
  Result<CopyTicket> start(const std::shared_ptr<EngineMemory>& source, std::uint64_t source_offset,
                           const std::shared_ptr<EngineMemory>& target, std::uint64_t target_offset,
                           std::uint64_t bytes) override;
  Status poll() override;
  bool done(const CopyTicket& ticket) const override {
    return ticket.number == 0 || queues_[ticket.queue]->completed() >= ticket.number;
  }

 private:
  Result<std::uint32_t> queue_between(const std::shared_ptr<const Device>& from,
                                      const std::shared_ptr<const Device>& to);

  Devices devices_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::map<std::pair<int, int>, std::uint32_t> by_pair_;  ///< (GPU of the source, of the target); -1 = host
  Status failure_;
};

// Where source and target are GPU memory the source's engines push: they reach 395 GB/s over NVLink.
Result<std::uint32_t> Engines::queue_between(const std::shared_ptr<const Device>& from,
                                             const std::shared_ptr<const Device>& to) {
  const auto ordinal = [](const auto& device) { return device == nullptr ? -1 : device->ordinal(); };
  const std::pair pair(ordinal(from), ordinal(to));
  if (const auto at = by_pair_.find(pair); at != by_pair_.end()) return at->second;
  auto queue = Queue::open(from != nullptr ? from : to);
  if (!queue.ok()) return queue.status();
  queues_.push_back(std::move(queue).value());
  const auto index = static_cast<std::uint32_t>(queues_.size() - 1);
  by_pair_[pair] = index;
  return index;
}

Result<CopyTicket> Engines::start(const std::shared_ptr<EngineMemory>& source, std::uint64_t source_offset,
                                  const std::shared_ptr<EngineMemory>& target, std::uint64_t target_offset,
                                  std::uint64_t bytes) {
  MK_RETURN_IF_ERROR(failure_);
  auto from = std::static_pointer_cast<Memory>(source);
  auto to = std::static_pointer_cast<Memory>(target);
  if (from->owner() == nullptr && to->owner() == nullptr) {
    return Status(StatusCode::kInternal, "a copy between two pieces of host memory for the copy engines");
  }
  // Mapped for both: mapped for one of them alone, the driver stages the copy through host memory.
  for (const auto& device : {from->owner(), to->owner()}) {
    if (device == nullptr) continue;
    MK_RETURN_IF_ERROR(from->reach(device));
    MK_RETURN_IF_ERROR(to->reach(device));
  }
  const auto queue = queue_between(from->owner(), to->owner());
  if (!queue.ok()) return queue.status();
  return CopyTicket{queue.value(), queues_[queue.value()]->start(std::move(from), source_offset,
                                                                 std::move(to), target_offset, bytes)};
}

Status Engines::poll() {
  for (const auto& queue : queues_) {
    if (!failure_.ok()) break;
    failure_ = queue->poll();
  }
  return failure_;
}

}  // namespace
}  // namespace mkernel::memory::gpu

extern "C" {

__attribute__((visibility("default"))) const char* mkernel_gpu_module_version() {
  return MKERNEL_VERSION;
}

__attribute__((visibility("default"))) mkernel::memory::CopyEngines* mkernel_gpu_module_open(
    mkernel::Status* why) {
  const auto driver = mkernel::memory::gpu::driver();
  if (driver.ok()) return new mkernel::memory::gpu::Engines(*driver.value());
  *why = driver.status();
  return nullptr;
}
}
