// All sessions of this daemon: accepts clients, ends and reaps sessions, carries news from coordinator and
// proxies to the session they concern, answers mkctl.
//
// Thread rule: control thread only. Destructible at any time after the proxies have stopped; proxies that
// still run keep the memory they use alive by themselves.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/session/inspect.h"
#include "daemon/session/listener.h"
#include "daemon/session/services.h"
#include "daemon/session/session.h"

namespace mkernel::session {

struct ServerOptions {
  std::string node_name;
  std::uint64_t boot_id = 0;
  std::uint32_t ring_slots = 4096;  ///< power of two
  ListenerOptions listener;
  config::Limits limits;
  config::Users users;
  std::optional<NodeBudget> budget;           ///< none: of this process, as of start()
  unsigned gpu_major = memory::kNvidiaMajor;  ///< memory::RegionRules
  /// Services::rails_near.
  std::function<std::uint32_t(std::uint64_t)> rails_near = [](std::uint64_t) { return 0U; };
};

class SessionServer final : public GroupEvents, public Inspector {
 public:
  /// `proxies` by rail; they outlive the server.
  SessionServer(boost::asio::io_context& io, const ServerOptions& options,
                std::vector<dataplane::Proxy*> proxies);
  ~SessionServer() override;

  /// Opens the socket; clients may come from now on. `coordinator` outlives the server. Errors: those of
  /// open_listener().
  Status start(GroupCoordinator& coordinator);

  /// Accepts no more, waits until no session has an operation in flight or `limit` has passed, ends them all
  /// with `why`, and calls `done` when the last one has let go of everything.
  void stop(std::chrono::milliseconds limit, const Status& why, std::function<void()> done);
  /// Ends every session now: reasons written, clients told. What the proxies still hold follows later.
  void end_all(const Status& why);

  /// For what is asked from now on.
  void set_limits(const config::Limits& limits, const config::Users& users);
  std::size_t session_count() const { return sessions_.size(); }
  /// The session socket's file, and how a lost one is made again.
  const base::SocketFile& socket_file() const { return listener_.file(); }
  const ListenerOptions& listener_options() const { return listener_options_; }
  /// Takes clients from this socket instead, after the file has been lost. Sessions go on.
  void listen_again(Listener listener);
  /// Says whose lines of the log were left out since the last call, and how many. To be called now and then.
  void log_left_out();
  std::uint64_t left_out_lines_total() const { return services_.lines->left_out_total(); }

  /// True while some session's group still has channels to the peer: the transports must keep it until then.
  bool uses_peer(transport::PeerId peer) const;
  /// `closed` is called whenever uses_peer() may have become false.
  void on_group_closed(std::function<void()> closed) { services_.group_closed = std::move(closed); }

  /// From a proxy: a slot of this session was bad.
  void session_failed(dataplane::SessionId session, const Status& why);
  /// From a proxy: a channel of this group cannot go on.
  void channel_failed(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why);

  // GroupEvents
  void region_changed(const std::vector<dataplane::GroupKey>& ranks, std::uint32_t rank, std::uint32_t index,
                      const abi::RegionEntry& entry) override;
  void group_failed(const dataplane::GroupKey& group, std::int32_t culprit, const std::string& node,
                    const Status& why) override;
  void rank_gone(const dataplane::GroupKey& group, std::uint32_t rank, const std::string& node,
                 const Status& why) override;
  Status launch_rejected(const dataplane::GroupKey& group, std::uint32_t rank, std::uint64_t launch,
                         const Status& why) override;
  abi::RankState state_of(const dataplane::GroupKey& group) const override;
  void states_known(const dataplane::GroupKey& group, const std::vector<RankReport>& states) override;

  // Inspector
  using Inspector::groups;
  using Inspector::regions;
  using Inspector::sessions;
  Counts counts() const override;
  std::vector<SessionSnapshot> sessions(ListCursor& at) const override;
  std::vector<UserSnapshot> users() const override;
  NodeUse node_use() const override;
  std::vector<GroupSnapshot> groups(ListCursor& at) const override;
  std::vector<RegionSnapshot> regions(ListCursor& at) const override;
  std::vector<ChannelSnapshot> channels(bool all, ListCursor& at) const override;

 private:
  void wait_for_clients();
  /// Accepts who waits; tries again later when this process has no fd left.
  void take_clients();
  void accept(ipc::UniqueFd client);
  /// The charge for a connection, or why this user may not have one.
  Result<Charge> admit(const Account& account);
  /// OK when there is room for this user's connection, whose charge is taken. In a full room the oldest
  /// connection without a hello, of the user who has most of all connections, makes room for users who have
  /// fewer.
  Status make_room(const Account& account);
  /// That connection; nothing when no user with more than `held` connections has one without a hello.
  std::shared_ptr<Session> oldest_silent(std::uint64_t held) const;
  void turn_away(int client, std::uint64_t user, const Status& why);
  void drain();
  void reap(dataplane::SessionId session);
  std::size_t introduced_count() const;
  template <typename ListGroup>
  void list_groups(ListCursor& at, const ListGroup& list) const;
  Session* find(dataplane::SessionId session) const;
  std::shared_ptr<SessionGroup> find(const dataplane::GroupKey& key) const;

  struct Stop {
    std::chrono::steady_clock::time_point deadline;
    Status why;
    std::function<void()> done;
  };

  const ListenerOptions listener_options_;
  Services services_;
  const bool measure_budget_;
  Listener listener_;
  boost::asio::posix::stream_descriptor acceptor_;  ///< a second fd of the listener's socket
  bool waits_for_clients_ = false;
  boost::asio::steady_timer timer_;
  dataplane::SessionId last_session_id_ = 0;
  std::map<dataplane::SessionId, std::shared_ptr<Session>> sessions_;
  std::unique_ptr<Stop> stop_;
  /// Posted work holds a weak copy: it does nothing once the server is gone.
  std::shared_ptr<SessionServer*> self_ = std::make_shared<SessionServer*>(this);
};

}  // namespace mkernel::session
