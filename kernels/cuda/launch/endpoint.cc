#include "kernels/cuda/launch/endpoint.h"

#include <utility>

#include "kernels/cuda/launch/failure.h"
#include "kernels/cuda/memory/on_device.h"
#include "kernels/cuda/sync/launch_control.h"

namespace mkernel::kernels {

namespace {

DeviceRings rings_of_gpu(abi::SessionSegment& segment, void* claims) {
  constexpr auto kWriter = abi::RingWriter::kGpu;
  std::byte* begin = reinterpret_cast<std::byte*>(&segment);
  return {.slots = reinterpret_cast<abi::WorkSlot*>(
              begin + abi::ring_offset(segment.ring_count, segment.log2_slots, kWriter, 0)),
          .heads = &segment.head(kWriter, 0),
          .claims = static_cast<RingClaims*>(claims),
          .count = segment.ring_count,
          .log2_slots = segment.log2_slots};
}

/// Arrivals, then completions, as PolledCounts lays them out.
std::vector<std::uint64_t> standing_counts(const GroupView& group, std::uint32_t first_lane,
                                           std::uint32_t lanes) {
  std::vector<std::uint64_t> counts;
  for (const bool arrivals : {true, false}) {
    for (std::uint32_t peer = 0; peer < group.world_size(); ++peer) {
      for (std::uint32_t lane = first_lane; lane < first_lane + lanes; ++lane) {
        counts.push_back(load_acquire(arrivals ? group.arrivals(peer, lane) : group.completed(peer, lane)));
      }
    }
  }
  return counts;
}

}  // namespace

RingsOnDevice::RingsOnDevice(abi::SessionSegment& segment, DeviceBuffer claims)
    : claims_(std::move(claims)), device_rings_(rings_of_gpu(segment, claims_.get())) {}

Result<std::shared_ptr<RingsOnDevice>> RingsOnDevice::make(abi::SessionSegment& segment) {
  auto claims = DeviceBuffer::zeroed(segment.ring_count * sizeof(RingClaims), "claims of the work rings");
  if (!claims.ok()) return claims.status();
  return std::shared_ptr<RingsOnDevice>(new RingsOnDevice(segment, std::move(*claims)));
}

EndpointOnDevice::EndpointOnDevice(const GroupView& group, std::shared_ptr<RingsOnDevice> rings, int device)
    : group_(group), rings_(std::move(rings)), device_(device) {}

Result<std::unique_ptr<EndpointOnDevice>> EndpointOnDevice::make(const GroupView& group,
                                                                 std::shared_ptr<RingsOnDevice> rings,
                                                                 const SymmetricView& workspace,
                                                                 const EndpointOnDeviceOptions& options) {
  int device = 0;
  MK_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "device endpoint"));
  std::unique_ptr<EndpointOnDevice> made(new EndpointOnDevice(group, std::move(rings), device));
  MK_RETURN_IF_ERROR(made->fill(workspace, options));
  return made;
}

Status EndpointOnDevice::fill(const SymmetricView& workspace, const EndpointOnDeviceOptions& options) {
  const std::uint32_t world = group_.world_size(), me = group_.rank();
  const std::vector<std::uint64_t> base = standing_counts(group_, options.first_lane, options.lanes);
  std::vector<std::int32_t> local_of_rank(world, -1), rank_of_local;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    if (group_.member(rank).node != group_.member(me).node) continue;
    local_of_rank[rank] = static_cast<std::int32_t>(group_.member(rank).local_rank);
    rank_of_local.push_back(static_cast<std::int32_t>(rank));  // local ranks are in rank order
  }
  auto state = LaunchStateReader::make();
  if (!state.ok()) return state.status();
  state_ = std::move(*state);
  const auto keep = [this](Result<DeviceBuffer> buffer, auto*& place) -> Status {
    MK_RETURN_IF_ERROR(buffer.status());
    place = static_cast<std::remove_reference_t<decltype(place)>>(buffer->get());
    buffers_.push_back(std::move(*buffer));
    return {};
  };
  device::Endpoint& e = endpoint_;
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::holding(base, "counts"), e.counts.base));
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::zeroed(8 * base.size(), "counts"), e.counts.seen));
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::zeroed(4 * base.size(), "counts of puts"), e.issued));
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::holding(local_of_rank, "places of the ranks"), e.local_of_rank));
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::holding(rank_of_local, "ranks of the node"), e.node.rank_of_local));
  MK_RETURN_IF_ERROR(keep(DeviceBuffer::zeroed(sizeof(LaunchControl), "control block"), e.control));
  const auto words = peers(workspace);
  MK_RETURN_IF_ERROR(words.status());
  e.node.words = words.value().of_local_rank;
  e.node.local_rank = group_.member(me).local_rank;
  e.node.local_size = static_cast<std::uint32_t>(rank_of_local.size());
  e.counts.arrivals = &group_.arrivals(0, options.first_lane);
  e.counts.completed = &group_.completed(0, options.first_lane);
  e.counts.peers = world;
  e.counts.lanes = e.lanes = options.lanes;
  e.counts.stride = group_.segment->lanes;
  e.rank = me;
  e.world_size = world;
  e.deadline_ns = options.deadline_ns;
  e.first_channel = group_.segment->first_channel;
  e.first_lane = options.first_lane;
  e.rings = rings_->rings();
  e.ring_share = group_.ring_share();
  e.host = {&group_.session->abort, &group_.segment->abort};
  return {};
}

Result<device::Peers> EndpointOnDevice::peers(const SymmetricView& buffer) {
  const OnDevice here(device_);
  MK_RETURN_IF_ERROR(here.status());
  auto table = DeviceBuffer::holding(buffer.node, "addresses of the node's ranks");
  if (!table.ok()) return table.status();
  const device::Peers peers{static_cast<std::byte* const*>(table->get())};
  buffers_.push_back(std::move(*table));
  return peers;
}

Status EndpointOnDevice::status() const {
  const OnDevice here(device_);
  LaunchControl control{};
  MK_RETURN_IF_ERROR(state_.read(endpoint_.control, control));
  return failure_of_launch(control, group_.segment, group_.session, group_.rank());
}

}  // namespace mkernel::kernels
