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
#include "daemon/dataplane/groups.h"
#include "daemon/dataplane/inbound.h"
#include "daemon/dataplane/local_delivery.h"
#include "daemon/dataplane/proxy.h"
#include "daemon/dataplane/session_turn.h"
#include "daemon/dataplane/sleeper.h"

namespace mkernel::dataplane {

/// Thread rule: made by the control thread, then everything on the proxy thread. Commands have proxy.h's
/// contracts; each ends with its `done`, also when the thing it names is unknown or gone.
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
  void detach_session(SessionId id, Limit limit, Done done);
  void open_group(std::shared_ptr<GroupPort> port, const std::function<void(Status)>& done);
  void close_group(const GroupKey& key, Limit limit, Done done);
  void set_region(const GroupKey& key, std::uint32_t index, std::shared_ptr<const memory::Region> region);
  void clear_region(const GroupKey& key, std::uint32_t index, Limit limit, Done done);
  void set_remote_region(const GroupKey& key, std::uint32_t rank, std::uint32_t index, std::uint64_t bytes);
  void connect_peer(transport::PeerId peer, const transport::PeerAddress& address);
  void disconnect_peer(transport::PeerId peer);
  void receive_from_peer(transport::PeerId peer, const std::vector<std::byte>& message);
  Status set_link(transport::PeerId peer, const transport::LinkShape& shape);

 private:
  /// Something that waits for in-flight puts. Names what it waits for by key: it may go away meanwhile.
  struct Drain {
    std::function<bool()> drained;
    base::TimePoint deadline;
    Done finish;
  };

  // The loop (rail.cc)
  std::size_t step();
  void rest();
  bool any_in_flight() const;
  std::size_t advance_drains();
  std::size_t handle_failures();
  std::size_t handle_peer_events();
  std::size_t hand_on_messages();
  void finish_everything();

  // Commands and their parts (rail_control.cc)
  void drain(std::function<bool()> drained, Limit limit, Done finish);
  Session* find_session(SessionId id);
  Status open_channels(Group& group);
  Status open_outbound(Group& group, std::uint32_t rank, std::uint32_t lane);
  Status open_inbound(Group& group, std::uint32_t rank, std::uint32_t lane);
  void erase_group(const GroupKey& key);
  void erase_session(SessionId id);
  void drop_pending(Group& group);
  void retire_region(const GroupKey& key, std::uint32_t index);
  void release_retired();

  const ProxyOptions options_;
  transport::Transport& transport_;
  ControlSink& sink_;
  base::Mailbox& mailbox_;
  const RailTraits traits_;

  GroupTable groups_;
  ChannelEnds ends_;
  FailureLog failures_;
  EventSink events_;
  LocalDelivery local_;
  RingServer server_;
  Scheduler<Session> scheduler_;
  Sleeper sleeper_;
  std::unordered_map<SessionId, std::unique_ptr<Session>> sessions_;
  std::list<Drain> drains_;
  bool has_retired_ = false;
  bool running_ = true;
  bool idle_ = false;
  base::TimePoint idle_since_{};
};

}  // namespace mkernel::dataplane
