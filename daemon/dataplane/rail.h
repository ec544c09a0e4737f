// Everything of a proxy that lives on its thread: the tables, the loop and what each command of the control
// path does to them. proxy.cc is the door: it posts these calls.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>

#include "daemon/base/clock.h"
#include "daemon/base/mailbox.h"
#include "daemon/base/slice_meter.h"
#include "daemon/base/work_budget.h"
#include "daemon/dataplane/group_work.h"
#include "daemon/dataplane/groups.h"
#include "daemon/dataplane/inbound.h"
#include "daemon/dataplane/local_delivery.h"
#include "daemon/dataplane/proxy.h"
#include "daemon/dataplane/session_turn.h"
#include "daemon/dataplane/sleeper.h"

namespace mkernel::dataplane {

/// Thread rule: made by the control thread, then everything on the proxy thread. Commands have proxy.h's
/// contracts; each ends with its `done`, also when the thing it names is unknown or gone.
///
/// NOTES: no command and no round may hold up the others for long. What takes long (opening and closing a
/// group) or has to wait (for puts in flight, for a transport to let go of memory) is a chore: a function
/// that does a little whenever it is its turn, between two rounds. A chore names what it works on by key,
/// because that may go away meanwhile.
class Rail {
 public:
  using Done = std::function<void()>;
  using Limit = std::chrono::milliseconds;

  Rail(const ProxyOptions& options, transport::Transport& transport, ControlSink& sink,
       base::Mailbox& mailbox);
  ~Rail();

  /// The proxy thread: returns after stop() has drained.
  void run();
  void stop(Limit limit);

  void attach_session(std::shared_ptr<SessionPort> port);
  void detach_session(SessionId id, Limit limit, Done drained, Done done);
  void open_group(std::shared_ptr<GroupPort> port, std::function<void(Status)> done);
  void close_group(const GroupKey& key, Limit limit, Done done);
  void set_region(const GroupKey& key, std::uint32_t index, std::shared_ptr<const memory::Region> region);
  void clear_region(const GroupKey& key, std::uint32_t index, Limit limit, std::function<void(Status)> done);
  void set_remote_region(const GroupKey& key, std::uint32_t rank, std::uint32_t index, std::uint64_t bytes);
  void rank_left(const GroupKey& key, std::uint32_t rank);
  void connect_peer(transport::PeerId peer, const transport::PeerAddress& address);
  void disconnect_peer(transport::PeerId peer);
  void receive_from_peer(transport::PeerId peer, const std::vector<std::byte>& message);
  Status set_link(transport::PeerId peer, const transport::LinkShape& shape);

  /// Any thread.
  base::SliceTimes slices() const { return meter_.times(); }

 private:
  enum class Progress : std::uint8_t { kWaiting, kWorked, kDone };
  /// `now` is the end of all time when the thread ends: whoever waits gives up.
  using Chore = std::function<Progress(base::WorkBudget& budget, base::TimePoint now)>;

  /// An unregistered region on its way out (rail_regions.cc).
  struct Release;

  // The loop (rail.cc)
  std::size_t step();
  void rest();
  bool any_in_flight() const;
  std::size_t serve_control();
  std::size_t advance_chores(base::WorkBudget& budget, base::TimePoint now);
  std::size_t handle_failures();
  std::size_t handle_peer_events();
  std::size_t hand_on_messages();
  void finish_everything();

  // Commands and their parts (rail_control.cc)
  Session* find_session(SessionId id);
  void close_now(Group& group, Done finish);
  bool close_groups_of(SessionId id, base::WorkBudget& budget);
  void erase_session(SessionId id);
  void drop_pending(Group& group);
  void end_copies_to(const Group& group);

  // Regions (rail_regions.cc)
  bool retire_region(Group& group, std::uint32_t index);
  void add_release(std::shared_ptr<Release> release);
  Progress advance_release(Release& release, base::WorkBudget& budget, base::TimePoint now);
  Progress cut_release(Release& release, Group& group, base::WorkBudget& budget);
  bool in_use(const memory::Region& region) const;
  void end_copies_of(const memory::Region& region);
  void let_go(Group& group, const memory::Region& region);

  const ProxyOptions options_;
  transport::Transport& transport_;
  ControlSink& sink_;
  base::Mailbox& mailbox_;
  const RailTraits traits_;

  GroupTable groups_;
  ChannelEnds ends_;
  const GroupTools tools_;
  FailureLog failures_;
  EventSink events_;
  LocalDelivery local_;
  RingServer server_;
  Scheduler<Session> scheduler_;
  Sleeper sleeper_;
  std::unordered_map<SessionId, std::unique_ptr<Session>> sessions_;
  std::list<Chore> chores_;
  std::uint32_t releases_ = 0;  ///< chores that wait for a region to be let go of
  base::SliceMeter meter_;
  bool running_ = true;
  bool idle_ = false;
  base::TimePoint idle_since_{};
};

}  // namespace mkernel::dataplane
