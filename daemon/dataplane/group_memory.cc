#include "daemon/dataplane/group_memory.h"

#include <algorithm>
#include <bit>

#include "daemon/dataplane/channel_table.h"
#include "daemon/transport/window/send_window.h"
#include "proto/abi/region_map.h"

namespace mkernel::dataplane {
namespace {

// What transports keep for a channel end beside its window: the ends themselves, their entries in tables by
// key and by id, each with the allocator's share.
constexpr std::uint64_t kTransportEndBytes = 512;

}  // namespace

std::uint64_t group_memory_bytes(const GroupFootprint& group) {
  const std::uint64_t world = group.world_size;
  const std::uint64_t channels = world * group.lanes;
  abi::GroupSegment layout{};
  const std::uint64_t segment =
      abi::layout_group(layout, group.world_size, 0, group.lanes, group.region_capacity);
  const std::uint64_t counters = channels * sizeof(Counters) + world * sizeof(PeerRank);
  // NOLINTBEGIN(bugprone-sizeof-expression): tables of pointers
  const std::uint64_t tables =
      sizeof(Group) + channels * (sizeof(Outbound) + sizeof(Outbound*)) +
      world * (sizeof(Group*) + sizeof(std::pair<transport::PeerId, std::uint32_t>)) +
      group.region_capacity * (world * sizeof(std::uint64_t) + sizeof(std::shared_ptr<const memory::Region>));
  // NOLINTEND(bugprone-sizeof-expression)
  // Each remote channel end is on one rail only.
  const std::uint64_t remote = std::uint64_t{std::min(group.remote_ranks, group.world_size)} * group.lanes;
  const std::uint64_t window =
      std::bit_ceil(std::uint64_t{group.window}) *
      (sizeof(transport::Put) + sizeof(transport::SendWindow::Time) + sizeof(std::uint64_t));
  const std::uint64_t receive_window = transport::kMaxWindow / 8;
  const std::uint64_t ends = 2 * (sizeof(ChannelEnd) + sizeof(transport::ChannelId) + kTransportEndBytes);
  return segment + counters + group.rails * tables + remote * (ends + window + receive_window);
}

}  // namespace mkernel::dataplane
