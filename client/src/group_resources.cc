// GroupCore: region numbers and lanes.
#include <algorithm>
#include <optional>
#include <utility>

#include "client/src/gpu_memory.h"
#include "client/src/group.h"
#include "client/src/guard.h"

namespace mkernel::client {

Result<std::uint32_t> GroupCore::take_region(bool collective) {
  const MutexLock lock(pools_mutex_);
  const auto index = collective ? regions_.take_low(1) : regions_.take_high(1);
  if (index) return *index;
  return Status(StatusCode::kResourceExhausted,
                "all " + std::to_string(regions_.size()) + " regions of group '" + options_.name +
                    "' are in use on rank " + std::to_string(options_.rank) +
                    ": destroy buffers or operations, or join with a larger GroupOptions::region_capacity");
}

Status GroupCore::pin_segments() {
  MK_RETURN_IF_ERROR(session_->pin_segment());
  const MutexLock lock(pools_mutex_);
  if (pinned_ != nullptr) return {};
  const auto device = session_->gpu();
  MK_RETURN_IF_ERROR(device.status());
  auto pinned = pin_for_gpu(device.value(), segment_.data(), segment_.bytes());
  if (pinned.ok()) pinned_ = std::move(*pinned);
  return pinned.status();
}

Status GroupCore::register_region(std::uint32_t index, const RegionPart& part, const SharedMemory& memory) {
  abi::RegisterRegion message{};
  message.group = handle_;
  message.index = index;
  message.kind = static_cast<std::uint32_t>(part.kind);
  message.shared = part.shared ? 1 : 0;
  message.keep = part.keep ? 1 : 0;
  message.offset = memory.offset;
  message.bytes = part.bytes;
  message.ipc = memory.cuda_ipc;
  message.dma_buf_offset = memory.dma_buf_offset;
  ipc::copy_text(message.no_dma_buf, memory.no_dma_buf);
  std::vector<int> fds;
  for (const ipc::UniqueFd* fd : {&memory.fd, &memory.dma_buf}) {
    if (fd->valid()) fds.push_back(fd->get());
  }
  abi::PlainReply reply;
  return session_->connection()
      .request(abi::MessageType::kRegisterRegion, message, reply, session_->request_deadline(), fds)
      .with_context("region " + std::to_string(index) + " of group '" + options_.name + "'");
}

Status GroupCore::seal_region(std::uint32_t index) {
  abi::SealRegion message{};
  message.group = handle_;
  message.index = index;
  abi::PlainReply reply;
  return session_->connection()
      .request(abi::MessageType::kSealRegion, message, reply, session_->request_deadline())
      .with_context("region " + std::to_string(index) + " of group '" + options_.name + "'");
}

void GroupCore::release_region(std::uint32_t index, bool registered) {
  if (registered && session_->status().ok()) {
    abi::UnregisterRegion message{};
    message.group = handle_;
    message.index = index;
    abi::PlainReply reply;
    const Status gone = without_exceptions([&] {
      return session_->connection().request(abi::MessageType::kUnregisterRegion, message, reply,
                                            session_->request_deadline());
    });
    // A number that the daemon may still hold is not handed out again.
    if (!gone.ok()) return;
  }
  const MutexLock lock(pools_mutex_);
  regions_.give(index, 1);
}

Result<MappedMemory> GroupCore::map_region(std::uint32_t rank, std::uint32_t index, MemorySource& memory,
                                           std::uint64_t bytes) {
  abi::MapRegion message{};
  message.group = handle_;
  message.rank = rank;
  message.index = index;
  abi::MapRegionReply reply;
  std::vector<ipc::UniqueFd> fds;
  MK_RETURN_IF_ERROR(session_->connection().request(abi::MessageType::kMapRegion, message, reply,
                                                    session_->request_deadline(), {}, &fds));
  const std::size_t wanted = memory.kind() == abi::RegionKind::kIpc ? 0 : 1;
  if (fds.size() != wanted || reply.bytes != bytes ||
      reply.kind != static_cast<std::uint32_t>(memory.kind())) {
    return Status(StatusCode::kInternal, "the daemon answered with " + std::to_string(fds.size()) + " fds, " +
                                             std::to_string(reply.bytes) + " bytes, kind " +
                                             std::to_string(reply.kind));
  }
  SharedMemory theirs;
  if (wanted == 1) theirs.fd = std::move(fds[0]);
  theirs.offset = reply.offset;
  theirs.cuda_ipc = reply.ipc;
  return memory.map(theirs, bytes);
}

std::string GroupCore::no_lanes(std::uint32_t count, const std::string& who) const {
  return who + " needs " + std::to_string(count) + " consecutive lanes, " +
         std::to_string(lanes_.free_count()) + " of " + std::to_string(lanes_.size()) +
         " are left in group '" + options_.name +
         "': destroy operations, or join with GroupOptions::lanes >= " +
         std::to_string(lanes_.size() - lanes_.free_count() + count) + " (at most " +
         std::to_string(session_->max_lanes()) + ")";
}

Result<std::uint32_t> GroupCore::take_lanes(std::uint32_t count, const std::string& who) {
  const MutexLock lock(pools_mutex_);
  const auto first = lanes_.take_low(count);
  if (first) return *first;
  return Status(StatusCode::kResourceExhausted, no_lanes(count, who));
}

Result<std::uint32_t> GroupCore::reserve_lanes(std::uint32_t count) {
  const std::string text = "reserve_lanes(" + std::to_string(count) + ")";
  const Status mine =
      count > 0 ? Status() : Status(StatusCode::kInvalidArgument, "reserve_lanes(0): at least one lane");
  MK_RETURN_IF_ERROR(agree(text, mine));
  std::optional<std::uint32_t> first;
  Status taken;
  {
    const MutexLock lock(pools_mutex_);
    first = lanes_.take_high(count);
    if (!first) taken = Status(StatusCode::kResourceExhausted, no_lanes(count, text));
  }
  std::shared_ptr<kernels::Endpoint> endpoint;
  if (first) endpoint = std::make_shared<kernels::Endpoint>(view_, *first, count);
  // Every rank has made its endpoint, so its counts begin where they stood: from here on puts may flow.
  const Status agreed = agree(text + " from " + std::to_string(first.value_or(0)), taken);
  if (!agreed.ok()) {
    if (first) retire({.first_lane = *first, .lanes = count});
    return agreed;
  }
  const MutexLock lock(pools_mutex_);
  std::fill_n(reserved_.begin() + *first, count, Reservation{endpoint, *first});
  return *first;
}

void GroupCore::retire(const Retired& retired) {
  // From destructors. What cannot be noted for want of memory stays taken until the group is left.
  (void)without_exceptions([&]() -> Status {
    const MutexLock lock(pools_mutex_);
    retired_.push_back(retired);
    return {};
  });
}

void GroupCore::reclaim(const std::vector<Retired>& retired) {
  for (const Retired& item : retired) {
    if (item.region != Retired::kNone) release_region(item.region, item.registered);
    const MutexLock lock(pools_mutex_);
    lanes_.give(item.first_lane, item.lanes);
  }
}

}  // namespace mkernel::client
