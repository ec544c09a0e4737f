// What the control path hands to the proxies: a session's rings, a group's counts and regions, counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/growing_array.h"
#include "daemon/memory/region.h"
#include "daemon/transport/transport.h"
#include "proto/abi/region_map.h"
#include "proto/abi/ring_share.h"
#include "proto/ipc/fd.h"

namespace mkernel::dataplane {

using SessionId = std::uint64_t;  ///< unique in this daemon's life

/// A group as one session joined it. `handle` is unique within the session.
struct GroupKey {
  SessionId session = 0;
  std::uint32_t handle = 0;
  friend bool operator==(const GroupKey&, const GroupKey&) = default;
  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};

/// Counters written by one proxy thread (relaxed), read by the control path. Names follow the metrics they
/// become.
struct Counters {
  std::atomic<std::uint64_t> requests_total{0};  ///< slots consumed
  std::atomic<std::uint64_t> bytes_total{0};     ///< payload bytes submitted
  std::atomic<std::uint64_t> completed_total{0};
  std::atomic<std::uint64_t> arrivals_total{0};
  std::atomic<std::uint64_t> arrived_bytes_total{0};
  std::atomic<std::uint64_t> errors_total{0};
  std::atomic<std::uint64_t> stalls_total{0};  ///< times the transport refused a put of this session
  std::atomic<std::uint64_t> stall_nanoseconds_total{0};
  std::atomic<std::uint64_t> ring_depth{0};  ///< slots written and not consumed, at the last look
};

/// A session's side of the rings. Created by the session layer; every proxy holds a reference while attached.
struct SessionPort {
  SessionId id = 0;
  std::string name;                    ///< client name, for errors
  std::uint32_t weight = 1;            ///< share among the sessions of its user
  std::uint32_t uid = 0;               ///< the user it belongs to: what is shared is shared among users first
  std::uint32_t user_weight = 1;       ///< share of that user among the users
  std::uint64_t bytes_per_second = 0;  ///< of that user on one rail, all its sessions together; 0 = no limit
  std::uint64_t requests_per_second = 0;  ///< likewise
  ipc::Mapping segment;                   ///< abi::SessionSegment
  std::vector<ipc::UniqueFd> doorbell;    ///< eventfd of each rail: both rings of it
  std::vector<Counters> counters;         ///< one per proxy

  abi::SessionSegment* header() const { return segment.at<abi::SessionSegment>(0); }
};

/// One member of a group as the data plane needs it.
struct PeerRank {
  bool local = false;            ///< on this node: puts are copied by the proxy itself
  transport::PeerId peer = 0;    ///< valid when not local
  GroupKey local_key{};          ///< valid when local
  std::uint32_t local_rank = 0;  ///< among the ranks of its node, of which there are
  std::uint32_t local_ranks = 1;
  std::uint32_t rails = 0;  ///< near its GPU, bit r: rail r; 0: none, or it has no GPU

  /// Which of `count` proxies the channels that begin at this rank go over, at both ends.
  abi::RingShare ring_share(std::uint32_t count) const {
    return abi::RingShare::of(rails, local_rank, local_ranks, count);
  }
};

/// A group as one local rank sees it, complete when handed over and immutable.
struct GroupPort {
  GroupKey key;
  std::string name;
  std::uint64_t instance = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint32_t lanes = 0;
  std::uint32_t region_capacity = 0;
  std::uint32_t first_channel = 0;
  std::vector<PeerRank> ranks;  ///< by rank
  ipc::Mapping segment;         ///< abi::GroupSegment
  /// Counters of channel (me -> target, lane) at [target * lanes + lane]; arrivals of (source -> me, lane)
  /// likewise.
  base::GrowingArray<Counters> channels;

  abi::GroupSegment* header() const { return segment.at<abi::GroupSegment>(0); }
};

/// The key both daemons derive for one channel.
transport::ChannelKey channel_key(std::uint64_t instance, std::uint32_t source, std::uint32_t target,
                                  std::uint32_t lane);

}  // namespace mkernel::dataplane
