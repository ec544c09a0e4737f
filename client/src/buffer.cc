#include "client/src/buffer.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>

namespace mkernel::client {
namespace {

Status enroll(BufferState& buffer, const GroupCore::RegionPart& part, const SharedMemory& memory) {
  MK_RETURN_IF_ERROR(buffer.group->register_region(buffer.region, part, memory));
  buffer.registered = true;
  return {};
}

/// Ranks that map each other's host memory do so before it is sealed, because nobody can afterwards.
bool neighbours_map(const GroupCore& group, const MemorySource& memory) {
  if (memory.kind() != abi::RegionKind::kHostMemory) return false;
  const kernels::GroupView& view = group.view();
  std::set<std::uint32_t> nodes;
  for (std::uint32_t rank = 0; rank < view.world_size(); ++rank) {
    if (!nodes.insert(view.member(rank).node).second) return true;
  }
  return false;
}

/// This rank's part: memory, mapping, registration.
Result<std::unique_ptr<BufferState>> prepare(const std::shared_ptr<GroupCore>& group, MemorySource& memory,
                                             std::uint64_t bytes) {
  const auto index = group->take_region(true);
  if (!index.ok()) return index.status();
  auto buffer = std::make_unique<BufferState>(group, index.value(), true);
  auto mine = memory.make("mkernel:" + group->name(), bytes);
  if (!mine.ok()) return mine.status();
  buffer->bytes = bytes;
  buffer->mine = std::move(mine->mapped);
  const bool shared = memory.kind() != abi::RegionKind::kHostMemory || neighbours_map(*group, memory);
  MK_RETURN_IF_ERROR(
      enroll(*buffer, {.kind = memory.kind(), .bytes = memory.whole(bytes), .shared = shared}, mine->shared));
  return buffer;
}

Status map_node(BufferState& buffer, MemorySource& memory) {
  const kernels::GroupView& group = buffer.group->view();
  const std::uint32_t node = group.member(group.rank()).node;
  buffer.view.region = buffer.region;
  buffer.view.bytes = buffer.bytes;
  buffer.view.mine = buffer.mine.data;
  for (std::uint32_t rank = 0; rank < group.world_size(); ++rank) {
    if (group.member(rank).node != node) continue;
    MappedMemory peer;
    if (rank != group.rank()) {
      auto mapped = buffer.group->map_region(rank, buffer.region, memory, memory.whole(buffer.bytes));
      if (!mapped.ok()) {
        return mapped.status().with_context("mapping region " + std::to_string(buffer.region) + " of rank " +
                                            std::to_string(rank));
      }
      peer = std::move(*mapped);
    }
    buffer.view.node.push_back(rank == group.rank() ? buffer.mine.data : peer.data);
    buffer.peers.push_back(std::move(peer));
  }
  return {};
}

}  // namespace

BufferState::~BufferState() {
  if (collective) {
    // Peers may still read it or put into it; once all of them made the next collective call they do not.
    group->retire({.region = region, .registered = registered});
  } else {
    group->release_region(region, registered);
  }
}

Result<std::unique_ptr<BufferState>> open_symmetric(const std::shared_ptr<GroupCore>& group,
                                                    MemorySource& memory, std::uint64_t bytes,
                                                    const Complete& complete) {
  auto buffer = prepare(group, memory, bytes);
  const std::uint64_t whole = memory.whole(bytes);
  const std::string text = "region " + std::to_string(buffer.ok() ? (*buffer)->region : 0) + " of " +
                           std::to_string(whole) + " bytes";
  // Also the barrier after which every rank's region is there to be mapped. A rank that failed takes part
  // too.
  MK_RETURN_IF_ERROR(group->agree(text, buffer.status()));
  Status mine = group->await_regions((*buffer)->region, whole);
  if (mine.ok()) mine = map_node(**buffer, memory);
  if (neighbours_map(*group, memory)) {
    MK_RETURN_IF_ERROR(group->agree(text + " is mapped", mine));
    mine = group->seal_region((*buffer)->region);
  }
  const auto completed = mine.ok() ? complete(**buffer) : Result<std::string>(mine);
  MK_RETURN_IF_ERROR(group->agree(completed.ok() ? completed.value() : text, completed.status()));
  return buffer;
}

Result<std::unique_ptr<BufferState>> open_host(const std::shared_ptr<GroupCore>& group, Memfd whose,
                                               int memfd, std::uint64_t offset, std::uint64_t bytes) {
  MK_RETURN_IF_ERROR(ipc::check_shared_memory(memfd, offset, bytes));
  const auto index = group->take_region(false);
  if (!index.ok()) return index.status();
  auto buffer = std::make_unique<BufferState>(group, index.value(), false);
  // By a hold: a memfd that was registered before is sealed and gives no new mapping by itself.
  auto hold = write_holds().of(0, memfd);
  if (!hold.ok()) return hold.status();
  auto mapped = map_own(**hold, offset, bytes);
  if (!mapped.ok()) return mapped.status();
  buffer->bytes = bytes;
  buffer->mine = std::move(*mapped);
  SharedMemory memory;
  memory.fd = ipc::above_standard(ipc::UniqueFd(::fcntl(memfd, F_DUPFD_CLOEXEC, 0)));
  if (!memory.fd.valid()) {
    return Status(StatusCode::kResourceExhausted, std::string("copy of the memfd: ") + std::strerror(errno));
  }
  memory.offset = offset;
  const bool keep = whose == Memfd::kUsers;
  MK_RETURN_IF_ERROR(
      enroll(*buffer, {.kind = abi::RegionKind::kHostMemory, .bytes = bytes, .shared = false, .keep = keep},
             memory));
  if (keep) group->session().keep(std::move(*hold));
  return buffer;
}

}  // namespace mkernel::client
