// What the session layer asks of the cluster: groups formed over daemons, regions made known, small
// exchanges. The implementation (daemon/cluster/group_directory) talks to the peers; the session layer only
// sees this.
//
// Thread rule: everything here, callbacks included, happens on the control thread (the io_context of main).
// Callbacks are never called from inside the call that registers them. After session_gone() or leave() no
// callback of that session or group is called.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/dataplane/ports.h"
#include "proto/abi/region_map.h"
#include "proto/abi/status.h"
#include "proto/abi/version.h"

namespace mkernel::session {

using Blob = std::array<std::byte, abi::kExchangeBytes>;
/// What all ranks contributed to a round, by rank: one copy for all ranks of this node.
using Round = std::shared_ptr<const std::vector<Blob>>;

struct JoinRequest {
  dataplane::GroupKey key;  ///< session and the handle that the session layer chose
  std::string name;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  std::uint32_t lanes = 0;
  std::uint32_t region_capacity = 0;
  std::uint32_t rails = 0;  ///< near the rank's GPU, bit r: rail r; 0: none, or it has no GPU
  std::chrono::milliseconds timeout{0};
  std::uint32_t uid = 0;  ///< the user that the session belongs to
  /// base::sha256() over the group's name and its join secret; empty: it has none. It is the owner of the
  /// group, or the uid where there is none: ranks with the same name and another owner belong to another
  /// group. On one node the uid is the same in any case.
  std::string secret_hash;
  bool has_gpu = false;  ///< its session names one
  std::int64_t pid = 0;  ///< of the client, for errors: "rank 1 is held by pid 77 on node a"
  std::string client_name;
};

/// Where one rank of a formed group lives, as the data plane and the group segment need it.
struct FormedMember {
  std::string node_name;
  dataplane::PeerRank port;
};

/// A whole group: every rank is known. `members` by rank.
struct FormedGroup {
  std::uint64_t instance = 0;
  std::vector<FormedMember> members;
};

/// What a rank does, as its own node says it.
struct RankReport {
  std::uint32_t rank = 0;
  abi::RankState state{};
};

/// Told to the session layer about a group that one of its sessions has joined.
class GroupEvents {
 public:
  virtual ~GroupEvents() = default;
  /// `rank` (this node's own included) registered (bytes > 0) or gave up (0) a region. `ranks` are those of
  /// this node in the same group that are to know: one call for all of them.
  virtual void region_changed(const std::vector<dataplane::GroupKey>& ranks, std::uint32_t rank,
                              std::uint32_t index, const abi::RegionEntry& entry) = 0;
  /// The group is over, and with it what is under way. `culprit` is a rank or -1; `node` where it happened.
  /// Called once per group.
  virtual void group_failed(const dataplane::GroupKey& group, std::int32_t culprit, const std::string& node,
                            const Status& why) = 0;
  /// `rank` is gone from the group, and all that it had put before has arrived. `why` is OK when it has left
  /// in peace. Else the group takes no new work, but a launch that needs nothing more of the rank finishes.
  virtual void rank_gone(const dataplane::GroupKey& group, std::uint32_t rank, const std::string& node,
                         const Status& why) = 0;
  /// `rank` has rejected launch `launch` of the group. OK, or why the group has to fail: the session's rank
  /// has made that launch.
  virtual Status launch_rejected(const dataplane::GroupKey& group, std::uint32_t rank, std::uint64_t launch,
                                 const Status& why) = 0;
  /// What the session's rank does in the group.
  virtual abi::RankState state_of(const dataplane::GroupKey& group) const = 0;
  /// What other ranks did when the group failed: before group_failed(), of other nodes also after it.
  virtual void states_known(const dataplane::GroupKey& group, const std::vector<RankReport>& states) = 0;
};

class GroupCoordinator {
 public:
  virtual ~GroupCoordinator() = default;

  /// Called with the whole group, or with the reason there is none: duplicate rank (who holds it), world
  /// size, lanes or region capacity that differ (both named), time-out (the ranks that are missing, and that
  /// ranks of another owner waited under the name), unequal ranks per node, two users on one node.
  using Formed = std::function<void(Result<FormedGroup>)>;
  virtual void join(const JoinRequest& request, Formed formed) = 0;

  /// This rank's channels are open; `all_ready` once those of every rank are (or with the failure).
  virtual void ready(const dataplane::GroupKey& group, std::function<void(Status)> all_ready) = 0;

  virtual void announce_region(const dataplane::GroupKey& group, std::uint32_t index,
                               const abi::RegionEntry& entry) = 0;

  /// Every rank contributes once per round; `done` with the blobs of all ranks, by rank.
  using Exchanged = std::function<void(Result<Round>)>;
  virtual void exchange(const dataplane::GroupKey& group, std::uint64_t round, const Blob& blob,
                        std::chrono::milliseconds timeout, Exchanged done) = 0;

  /// A local rank's operation failed, or the data plane found the group broken: all ranks are told.
  virtual void fail(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why) = 0;

  /// A local rank has rejected launch `launch` of its group: the other ranks hear of it.
  virtual void reject(const dataplane::GroupKey& group, std::uint64_t launch, const Status& why) = 0;

  /// Some peer is far behind in what it has been told: no more should be said than must be.
  virtual bool congested() const { return false; }

  /// The rank leaves in peace (others may go on until they need it).
  virtual void leave(const dataplane::GroupKey& group) = 0;
  /// The session has ended, and what it has put is still on its way: other ranks may join under the names of
  /// its groups, session_gone() follows.
  virtual void session_ending(dataplane::SessionId session, const Status& why) = 0;
  /// The session is gone, and its groups end.
  virtual void session_gone(dataplane::SessionId session, const Status& why) = 0;
};

}  // namespace mkernel::session
