// A joined group as all its handles share it: membership, collective calls, region numbers, lanes, puts, the
// worker.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/src/ballot.h"
#include "client/src/lent_workspaces.h"
#include "client/src/memory.h"
#include "client/src/session.h"
#include "client/src/slot_pool.h"
#include "client/src/whereabouts.h"
#include "client/src/worker.h"
#include "kernels/base/views.h"
#include "kernels/cpu/comm/endpoint.h"
#include "mkernel/client.h"
#include "proto/base/mutex.h"
#include "proto/ipc/fd.h"

namespace mkernel::client {

/// What a destroyed collective object leaves to be given back: a region, lanes, or both.
struct Retired {
  static constexpr std::uint32_t kNone = ~0U;
  std::uint32_t region = kNone;
  bool registered = false;  ///< the daemon holds the region
  std::uint32_t first_lane = 0;
  std::uint32_t lanes = 0;
};

class GroupCore {
 public:
  static Result<std::shared_ptr<GroupCore>> join(std::shared_ptr<SessionCore> session,
                                                 const GroupOptions& options);
  /// Leaves the group.
  ~GroupCore();

  const Home& home() const { return session_->home(); }
  const kernels::GroupView& view() const { return view_; }
  const std::string& name() const { return options_.name; }
  SessionCore& session() { return *session_; }
  const std::shared_ptr<SessionCore>& shared_session() { return session_; }
  Worker& worker() { return worker_; }
  LentWorkspaces& lent() { return lent_; }
  std::string node_of(std::uint32_t rank) const;
  /// Why the group takes no new work.
  Status status() const;
  /// Why launches under way end too. A group that has ended because a rank was lost is not failed yet:
  /// launches that need nothing more of that rank finish.
  Status failure() const;
  Status fail(const Status& why);
  Whereabouts& whereabouts() { return whereabouts_; }
  /// The number of an operation that is about to be made, counted from 1: the same on every rank.
  std::uint32_t next_operation() { return ++operations_; }
  /// This rank does not make its next launch, because of `why`: the launch of a rank that makes it ends.
  Status reject_launch(const Status& why);
  /// Leaves the group at once, while others may hold it. kFailedPrecondition when something is under way.
  Status leave();
  /// `why`, with which the group has failed, and what every rank was doing.
  Status with_whereabouts(const Status& why) const;

  // Collective calls. Each is one round of the daemon's exchange; a round that fails fails the group, because
  // ranks can no longer know which round the others are in. A completed round gives back what was retired
  // before it.
  Result<std::vector<Ballot>> vote(const Ballot& mine);
  /// OK when every rank said the same `text` and had no error of its own.
  Status agree(const std::string& text, const Status& mine);
  /// Waits until the region map shows `bytes` at `index` for every rank.
  Status await_regions(std::uint32_t index, std::uint64_t bytes) const;

  // Regions. An index taken is given back by release_region() (own memory) or retire() (collective memory).
  Result<std::uint32_t> take_region(bool collective);
  struct RegionPart {
    abi::RegionKind kind = abi::RegionKind::kHostMemory;
    std::uint64_t bytes = 0;
    bool shared = false;  ///< ranks of this node may map it
    bool keep = false;    ///< its memfd may be registered again until the session ends
  };
  Status register_region(std::uint32_t index, const RegionPart& part, const SharedMemory& memory);
  /// Shared host memory of this rank, which every neighbour has mapped: puts may use it from now on.
  Status seal_region(std::uint32_t index);
  void release_region(std::uint32_t index, bool registered);
  /// Region `index` of `rank` on this node, which has `bytes` of `memory`'s kind.
  Result<MappedMemory> map_region(std::uint32_t rank, std::uint32_t index, MemorySource& memory,
                                  std::uint64_t bytes);

  /// Makes the segments of group and session readable for kernels of the session's GPU.
  Status pin_segments();

  Result<std::uint32_t> take_lanes(std::uint32_t count, const std::string& who);
  /// **Collective**.
  Result<std::uint32_t> reserve_lanes(std::uint32_t count);
  void retire(const Retired& retired);

  // Own puts, on reserved lanes. Counts are those of the reservation: they start at 0.
  struct Source {
    std::uint32_t region = 0;
    std::uint64_t bytes = 0;
  };
  struct Destination {
    std::uint32_t rank = 0;
    std::uint32_t region = 0;
    std::uint64_t offset = 0;
  };
  Result<std::uint64_t> put(const Destination& destination, std::uint32_t lane, const Source& source,
                            std::uint64_t offset, std::uint64_t bytes, std::chrono::milliseconds limit = {});
  std::uint64_t puts(std::uint32_t target, std::uint32_t lane) const;
  Status wait_arrival(std::uint32_t source, std::uint32_t lane, std::uint64_t count,
                      std::chrono::milliseconds deadline);
  Status wait_completed(std::uint32_t target, std::uint32_t lane, std::uint64_t count,
                        std::chrono::milliseconds deadline);
  std::uint64_t arrivals(std::uint32_t source, std::uint32_t lane) const;

 private:
  GroupCore(std::shared_ptr<SessionCore> session, const GroupOptions& options);
  Status enter();
  Status leave_now();
  Status adopt_segment(const abi::JoinGroupReply& reply, std::vector<ipc::UniqueFd> fds);
  void reclaim(const std::vector<Retired>& retired);
  /// The reservation that `lane` belongs to, or why there is none for a channel with `peer`.
  struct Reservation {
    std::shared_ptr<kernels::Endpoint> endpoint;
    std::uint32_t first_lane = 0;
  };
  Result<Reservation> reservation(std::uint32_t peer, std::uint32_t lane) const;
  Status check_bounds(const Destination& destination, const Source& source, std::uint64_t offset,
                      std::uint64_t bytes) const;
  kernels::WaitScope scope(std::chrono::milliseconds deadline) const;
  std::string no_lanes(std::uint32_t count, const std::string& who) const MK_REQUIRES(pools_mutex_);
  Deadline collective_deadline() const;

  const std::shared_ptr<SessionCore> session_;
  const GroupOptions options_;
  std::uint32_t handle_ = 0;
  std::atomic<bool> joined_{false};
  ipc::Mapping segment_;
  kernels::GroupView view_;
  abi::RingShare ring_share_;       ///< which rings the lanes of view_ use
  std::vector<std::string> nodes_;  ///< by rank
  Whereabouts whereabouts_;
  std::atomic<std::uint32_t> operations_{0};

  Mutex collective_mutex_;  ///< one collective call at a time
  std::uint64_t round_ MK_GUARDED_BY(collective_mutex_) = 0;

  mutable Mutex pools_mutex_;
  SlotPool regions_ MK_GUARDED_BY(pools_mutex_);
  SlotPool lanes_ MK_GUARDED_BY(pools_mutex_);
  std::shared_ptr<const void> pinned_ MK_GUARDED_BY(pools_mutex_);  ///< segment_, for the GPU
  /// By lane; without endpoint where it is not reserved.
  std::vector<Reservation> reserved_ MK_GUARDED_BY(pools_mutex_);
  std::vector<Retired> retired_ MK_GUARDED_BY(pools_mutex_);

  LentWorkspaces lent_;

  Worker worker_;  ///< last: no launch runs on a group that is half gone
};

}  // namespace mkernel::client
