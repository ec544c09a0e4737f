// GroupCore: puts of the user's own, over the endpoint of the lanes that were reserved for them.
#include "client/src/group.h"

namespace mkernel::client {

kernels::WaitScope GroupCore::scope(std::chrono::milliseconds deadline) const {
  return {.session = view_.session, .group = view_.segment, .rank = view_.rank(), .deadline = deadline};
}

Result<GroupCore::Reservation> GroupCore::reservation(std::uint32_t peer, std::uint32_t lane) const {
  if (peer >= options_.world_size) {
    return Status(StatusCode::kInvalidArgument, "rank " + std::to_string(peer) + " is not in group '" +
                                                    options_.name + "' of " +
                                                    std::to_string(options_.world_size));
  }
  const MutexLock lock(pools_mutex_);
  if (lane < reserved_.size() && reserved_[lane].endpoint != nullptr) return reserved_[lane];
  return Status(StatusCode::kInvalidArgument, "lane " + std::to_string(lane) + " of group '" + options_.name +
                                                  "' is not reserved: reserve_lanes() says which are");
}

Status GroupCore::check_bounds(const Destination& destination, const Source& source, std::uint64_t offset,
                               std::uint64_t bytes) const {
  if (bytes == 0) return {};
  if (offset > source.bytes || bytes > source.bytes - offset) {
    return {StatusCode::kOutOfRange, "put of " + std::to_string(bytes) + " bytes at offset " +
                                         std::to_string(offset) + " of a source of " +
                                         std::to_string(source.bytes) + " bytes"};
  }
  // All of a put is claimed in the ring at once, so that it is made as a whole or not at all.
  const std::uint64_t most = std::uint64_t{abi::kMaxPutBytes} << view_.rings.front().log2_slots;
  if (bytes > most) {
    return {StatusCode::kOutOfRange, "put of " + std::to_string(bytes) + " bytes, at most " +
                                         std::to_string(most) + " fit into the work ring: make several puts"};
  }
  if (destination.region >= options_.region_capacity) {
    return {StatusCode::kOutOfRange, "region " + std::to_string(destination.region) + " of rank " +
                                         std::to_string(destination.rank) + ": the region capacity is " +
                                         std::to_string(options_.region_capacity)};
  }
  const auto* map = view_.at<abi::RegionEntry>(view_.segment->regions_offset);
  const std::uint64_t remote =
      kernels::load_acquire(map[destination.rank * options_.region_capacity + destination.region].bytes);
  if (destination.offset > remote || bytes > remote - destination.offset) {
    return {StatusCode::kOutOfRange,
            "put of " + std::to_string(bytes) + " bytes at offset " + std::to_string(destination.offset) +
                " of region " + std::to_string(destination.region) + " of rank " +
                std::to_string(destination.rank) + ", which has " + std::to_string(remote) + " bytes" +
                (remote == 0 ? " (not registered)" : "")};
  }
  return {};
}

Result<std::uint64_t> GroupCore::put(const Destination& destination, std::uint32_t lane, const Source& source,
                                     std::uint64_t offset, std::uint64_t bytes,
                                     std::chrono::milliseconds limit) {
  if (limit.count() < 0) {
    return Status(StatusCode::kInvalidArgument,
                  "put: limit = " + std::to_string(limit.count()) + " ms, must be at least 0");
  }
  const auto owner = reservation(destination.rank, lane);
  MK_RETURN_IF_ERROR(owner.status());
  MK_RETURN_IF_ERROR(check_bounds(destination, source, offset, bytes));
  MK_RETURN_IF_ERROR(failure());
  const auto& [endpoint, first_lane] = owner.value();
  MK_RETURN_IF_ERROR(endpoint->put(destination.rank, lane - first_lane, {source.region, offset},
                                   {destination.region, destination.offset}, bytes, "put",
                                   scope(limit.count() == 0 ? options_.timeout : limit)));
  session_->published(ring_share_.ring(lane));
  return endpoint->issued(destination.rank, lane - first_lane);
}

std::uint64_t GroupCore::puts(std::uint32_t target, std::uint32_t lane) const {
  const auto owner = reservation(target, lane);
  return owner.ok() ? owner->endpoint->issued(target, lane - owner->first_lane) : 0;
}

Status GroupCore::wait_arrival(std::uint32_t source, std::uint32_t lane, std::uint64_t count,
                               std::chrono::milliseconds deadline) {
  const auto owner = reservation(source, lane);
  MK_RETURN_IF_ERROR(owner.status());
  return owner->endpoint->wait_arrival(source, lane - owner->first_lane, count, "wait_arrival",
                                       scope(deadline));
}

Status GroupCore::wait_completed(std::uint32_t target, std::uint32_t lane, std::uint64_t count,
                                 std::chrono::milliseconds deadline) {
  const auto owner = reservation(target, lane);
  MK_RETURN_IF_ERROR(owner.status());
  return owner->endpoint->wait_completed(target, lane - owner->first_lane, count, "wait_completed",
                                         scope(deadline));
}

std::uint64_t GroupCore::arrivals(std::uint32_t source, std::uint32_t lane) const {
  const auto owner = reservation(source, lane);
  return owner.ok() ? owner->endpoint->arrived(source, lane - owner->first_lane) : 0;
}

}  // namespace mkernel::client
