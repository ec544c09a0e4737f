// A group as one session has joined it: the road from the request to the open channels, its regions, its
// exchanges, and the road out.
//
//   forming  the coordinator looks for the other ranks
//   opening  whole; the proxies open channels, then every rank says so
//   ready    usable
//   closing  left, failed to form, or its session ends; the proxies drain and let go
//
// A group that failed stays in its state with failure() set until the client leaves it or the session ends.
// Thread rule: control thread only. Every answer from coordinator and proxies comes later, through a weak
// reference.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "daemon/session/inspect.h"
#include "daemon/session/segments.h"
#include "daemon/session/services.h"

namespace mkernel::session {

class SessionGroup : public std::enable_shared_from_this<SessionGroup> {
 public:
  enum class State { kForming, kOpening, kReady, kClosing };
  using Done = std::function<void(Status)>;

  /// `charge`: what has been taken from its session's account for it.
  SessionGroup(Services& services, JoinRequest request, std::uint32_t first_channel, Charge charge);

  /// `done` once: OK when the group is ready, else why it never will be.
  void join(Done done);
  /// OK when a region may be registered at `index`.
  Status check_new_region(std::uint32_t index) const;
  /// A region for `index`, which has passed check_new_region(), is being opened until end_region(). That says
  /// whether it is still wanted.
  void begin_region(std::uint32_t index) { opening_.insert(index); }
  Status end_region(std::uint32_t index);
  /// Hands a region to the proxies, then announces it. `index` has passed check_new_region(). One that needs
  /// a seal is only announced, so that its neighbours can map it: puts to it and from it are refused.
  void add_region(std::uint32_t index, std::shared_ptr<const memory::Region> region, Charge charge,
                  Done done);
  /// The region at `index`, which its owner wants to be sealed, if it still has to be.
  Result<std::shared_ptr<const memory::Region>> begin_seal(std::uint32_t index);
  /// How sealing went. Sealed: hands the region to the proxies, unless it is going away.
  void end_seal(std::uint32_t index, const std::shared_ptr<const memory::Region>& region,
                const Status& status, Done done);
  void remove_region(std::uint32_t index, Done done);
  void exchange(std::uint64_t round, const Blob& blob, std::chrono::milliseconds timeout, Done done);
  /// Drains, lets go of every channel and region, then tells the coordinator. Also the way out for a group
  /// that failed or never formed.
  void leave(Done done);

  /// Once per group, later calls do nothing: the client finds the record in its segment, its launches end,
  /// and requests that wait for an answer get `why`. When a lost rank has ended the group before, the record
  /// says that.
  void fail(std::int32_t culprit, const std::string& node, const Status& why);
  /// As GroupEvents::rank_gone(): puts to the rank count as completed from now on, then waits for it end.
  void rank_gone(std::uint32_t rank, const std::string& node, const Status& why);
  /// This rank makes no launch `launch`.
  void reject(std::uint64_t launch);
  /// As GroupEvents::launch_rejected().
  Status launch_rejected(std::uint32_t rank, std::uint64_t launch, const Status& why);
  abi::RankState state_of_rank() const;
  void states_known(const std::vector<RankReport>& states);
  /// The session ends and with it this rank's part: as fail(), but nobody waits for an answer any more, and
  /// the session itself tells coordinator and proxies.
  void abandon(const Status& why);

  /// Proxies are told of a region that a rank has announced. False when this group does not need to know;
  /// else region_changed() follows when every proxy knows it: then it is in the map of the client.
  bool region_changes(std::uint32_t rank, std::uint32_t index, const abi::RegionEntry& entry);
  void region_changed(std::uint32_t rank, std::uint32_t index, const abi::RegionEntry& entry);

  const dataplane::GroupKey& key() const { return request_.key; }
  const JoinRequest& request() const { return request_; }
  State state() const { return state_; }
  /// Why it takes no new work.
  const std::optional<Status>& failure() const { return failure_; }
  /// What is under way ends too.
  bool aborted() const { return aborted_; }
  /// How long puts under way are waited for when the group is left: those of a failed one not at all, as they
  /// may be to a peer that is no more.
  std::chrono::milliseconds drain_limit() const;
  std::uint32_t first_channel() const { return shape_.first_channel; }
  /// The segment for the client's reply; the daemon keeps only its mapping.
  const ipc::UniqueFd& segment_fd() const { return segment_fd_; }
  std::uint64_t segment_bytes() const { return port_ == nullptr ? 0 : port_->segment.bytes(); }
  void drop_segment_fd() { segment_fd_.reset(); }
  std::uint64_t pinned_bytes() const;
  std::uint64_t gpu_bytes() const;  ///< of pinned_bytes(), what is GPU memory
  std::size_t region_count() const { return regions_.size(); }
  /// The region at an index, nullptr when there is none or it is going away.
  std::shared_ptr<const memory::Region> region(std::uint32_t index) const;
  /// Where a rank lives; nullptr before the group is whole or for a rank it does not have.
  const FormedMember* member(std::uint32_t rank) const;

  /// Formed, with ranks on other nodes.
  bool spans_nodes() const;
  /// How many ranks of the formed group are on this node.
  std::uint32_t ranks_here() const;
  bool uses_peer(transport::PeerId peer) const;

  GroupSnapshot snapshot() const;
  /// Both list rows from number `row` on, which they advance, at most `left`, which they take off; true when
  /// none is left in this group.
  bool list_regions(std::uint64_t& row, std::size_t& left, std::vector<RegionSnapshot>& out) const;
  bool list_channels(bool all, std::uint64_t& row, std::size_t& left,
                     std::vector<ChannelSnapshot>& out) const;

 private:
  struct Held {
    std::shared_ptr<const memory::Region> region;
    Charge charge;
    bool leaving = false;
    bool sealing = false;  ///< or sealed
  };

  void formed(Result<FormedGroup> group);
  void closed(const Done& done);
  Status build(FormedGroup group);
  void part_from(std::uint32_t rank, const Status& why);
  Status check_rails() const;
  Status check_users() const;
  void opened(const Status& status);
  void finish_join(Status status);
  void hand_to_proxies(std::uint32_t index, const std::shared_ptr<const memory::Region>& region, Done done);
  void announce(std::uint32_t index, const abi::RegionEntry& entry);
  void exchanged(Result<Round> blobs);
  void finish_exchange(Status status);
  Status check_usable() const;
  std::string describe() const;

  Services& services_;
  const JoinRequest request_;
  const Charge charge_;
  GroupShape shape_;
  State state_ = State::kForming;
  std::optional<Status> failure_;
  std::deque<std::uint64_t> rejected_;                ///< the last launches that this rank has not made
  bool aborted_ = false;                              ///< fail(): also what is under way ends
  std::unique_ptr<boost::asio::steady_timer> grace_;  ///< see kGpuGrace
  FormedGroup formed_;
  ipc::UniqueFd segment_fd_;
  std::shared_ptr<dataplane::GroupPort> port_;
  std::map<std::uint32_t, Held> regions_;
  std::set<std::uint32_t> opening_;  ///< see begin_region()
  std::size_t changes_ =
      0;  ///< of regions, that the proxies have been told of, and the map of the client not yet
  Done join_done_, exchange_done_;
  std::uint64_t round_ = 0;
  bool exchanged_ = false;  ///< round_ is on the board, and its answer waits for the changes
  bool abandoned_ = false;
};

}  // namespace mkernel::session
