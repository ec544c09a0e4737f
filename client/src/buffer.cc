#include "client/src/buffer.h"

#include <string>

namespace mkernel::client {
namespace {

/// This rank's part: memory, mapping, registration.
Status fill(BufferState& buffer, int memfd, std::uint64_t offset, std::uint64_t bytes) {
  auto mapping = ipc::Mapping::map(memfd, offset, bytes);
  if (!mapping.ok()) return mapping.status();
  buffer.mine = std::move(*mapping);
  MK_RETURN_IF_ERROR(buffer.group->register_region(buffer.region, memfd, offset, bytes, buffer.collective));
  buffer.registered = true;
  return {};
}

Result<std::unique_ptr<BufferState>> prepare(const std::shared_ptr<GroupCore>& group, std::uint64_t bytes) {
  const auto index = group->take_region(true);
  if (!index.ok()) return index.status();
  auto buffer = std::make_unique<BufferState>(group, index.value(), true);
  auto memory = ipc::create_shared_memory("mkernel:" + group->name(), bytes);
  if (!memory.ok()) return memory.status();
  MK_RETURN_IF_ERROR(fill(*buffer, memory->get(), 0, bytes));
  return buffer;
}

Status map_node(BufferState& buffer, std::uint64_t bytes) {
  const kernels::GroupView& group = buffer.group->view();
  const std::uint32_t node = group.member(group.rank()).node;
  buffer.view.region = buffer.region;
  buffer.view.bytes = bytes;
  buffer.view.mine = buffer.mine.data();
  for (std::uint32_t rank = 0; rank < group.world_size(); ++rank) {
    if (group.member(rank).node != node) continue;
    ipc::Mapping peer;
    if (rank != group.rank()) {
      auto mapped = buffer.group->map_region(rank, buffer.region, bytes);
      if (!mapped.ok()) {
        return mapped.status().with_context("mapping region " + std::to_string(buffer.region) + " of rank " +
                                            std::to_string(rank));
      }
      peer = std::move(*mapped);
    }
    buffer.view.node.push_back(rank == group.rank() ? buffer.mine.data() : peer.data());
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
                                                    std::uint64_t bytes, const Complete& complete) {
  auto buffer = prepare(group, bytes);
  const std::string text = "region " + std::to_string(buffer.ok() ? (*buffer)->region : 0) + " of " +
                           std::to_string(bytes) + " bytes";
  // Also the barrier after which every rank's region is there to be mapped. A rank that failed takes part
  // too.
  MK_RETURN_IF_ERROR(group->agree(text, buffer.status()));
  Status mine = group->await_regions((*buffer)->region, bytes);
  if (mine.ok()) mine = map_node(**buffer, bytes);
  const auto completed = mine.ok() ? complete(**buffer) : Result<std::string>(mine);
  MK_RETURN_IF_ERROR(group->agree(completed.ok() ? completed.value() : text, completed.status()));
  return buffer;
}

Result<std::unique_ptr<BufferState>> open_host(const std::shared_ptr<GroupCore>& group, int memfd,
                                               std::uint64_t offset, std::uint64_t bytes) {
  MK_RETURN_IF_ERROR(ipc::check_shared_memory(memfd, offset, bytes));
  const auto index = group->take_region(false);
  if (!index.ok()) return index.status();
  auto buffer = std::make_unique<BufferState>(group, index.value(), false);
  MK_RETURN_IF_ERROR(fill(*buffer, memfd, offset, bytes));
  return buffer;
}

}  // namespace mkernel::client
