// What an executor sees of a session and a group: plain pointers into the shared segments, owned by the
// caller (the client library, a test) for as long as an operation runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/abi/region_map.h"
#include "proto/abi/ring_share.h"
#include "proto/abi/work_request.h"

namespace mkernel::kernels {

/// The producer's side of one work ring of the client's threads. `head`, the first position that nobody has
/// claimed, lives in the client's process; every writer claims from it.
struct RingView {
  abi::WorkSlot* slots = nullptr;
  std::uint32_t log2_slots = 0;
  const std::uint64_t* tail = nullptr;  ///< abi::RingHead::tail; read with acquire
  std::atomic<std::uint64_t>* head = nullptr;
};

/// A joined group. Thread-safe to read; counts and abort words are read atomically.
struct GroupView {
  abi::SessionSegment* session = nullptr;
  abi::GroupSegment* segment = nullptr;
  std::vector<RingView> rings;  ///< of the session's threads; ring_share() says which lane uses which

  std::uint32_t rank() const { return segment->rank; }
  std::uint32_t world_size() const { return segment->world_size; }
  template <typename T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(segment) + offset);
  }
  const abi::Member& member(std::uint32_t rank) const {
    return at<const abi::Member>(segment->members_offset)[rank];
  }
  /// The rings of this rank's lanes. Looks at every member.
  abi::RingShare ring_share() const {
    const abi::Member& me = member(rank());
    std::uint32_t local_ranks = 0;
    for (std::uint32_t other = 0; other < world_size(); ++other) local_ranks += member(other).node == me.node;
    return abi::RingShare::of(segment->rails, me.local_rank, local_ranks,
                              static_cast<std::uint32_t>(rings.size()));
  }
  /// Arrival count of channel (source -> me, lane); read with acquire, compared with >=.
  const std::uint64_t& arrivals(std::uint32_t source, std::uint32_t lane) const {
    return at<const std::uint64_t>(segment->arrivals_offset)[source * segment->lanes + lane];
  }
  /// Completed count of channel (me -> target, lane).
  const std::uint64_t& completed(std::uint32_t target, std::uint32_t lane) const {
    return at<const std::uint64_t>(segment->completed_offset)[target * segment->lanes + lane];
  }
  abi::RankState& state(std::uint32_t rank) const { return at<abi::RankState>(segment->states_offset)[rank]; }
  std::uint32_t channel(std::uint32_t target, std::uint32_t lane) const {
    return segment->first_channel + target * segment->lanes + lane;
  }
};

/// A symmetric buffer: the same bytes registered at the same region index on every rank, mapped by the ranks
/// of a node.
struct SymmetricView {
  std::uint32_t region = 0;  ///< index in the group's region map
  std::uint64_t bytes = 0;
  std::vector<std::byte*> node;  ///< by local rank on this node, this rank's own among them
  std::byte* mine = nullptr;
};

}  // namespace mkernel::kernels
