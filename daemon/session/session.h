// One client: its socket, its identity, its rings, its groups. The socket's life is the session's life.
//
// It ends in one of three ways, always through end(): the client goes (end of stream, or its process ends),
// it breaks the protocol or writes a bad slot, or the daemon stops. The order is then: the reason into the
// shared segments, the abort words, the coordinator (so that peers learn it), SessionEnded, the socket, and
// last the proxies, which drain and let go; only then are fds and memory given back.
// Thread rule: control thread only.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/memory/open_region.h"
#include "daemon/session/channel_space.h"
#include "daemon/session/inspect.h"
#include "daemon/session/listener.h"
#include "daemon/session/message_decoder.h"
#include "daemon/session/services.h"
#include "daemon/session/session_group.h"
#include "proto/ipc/packet.h"

namespace mkernel::session {

class Session : public std::enable_shared_from_this<Session> {
 public:
  /// `charge`: what the account has been charged for the connection.
  Session(Services& services, dataplane::SessionId id, ipc::UniqueFd socket, PeerIdentity identity,
          Account account, Charge charge);
  ~Session();

  void start();
  /// Once; later calls do nothing. `services.session_done` follows when everything is given back.
  void end(const Status& why);

  /// The last packet to a client. Nothing goes through the socket afterwards.
  static void say_farewell(int socket, const Status& why);

  dataplane::SessionId id() const { return id_; }
  std::uint32_t uid() const { return identity_.uid; }
  /// Operations in flight, by the client's own word.
  std::uint32_t active() const;
  /// "client \"job\" (pid 77)".
  std::string describe() const;
  std::shared_ptr<SessionGroup> find_group(std::uint32_t handle) const;

  SessionSnapshot snapshot() const;
  bool introduced() const { return port_ != nullptr; }
  bool ending() const { return ending_; }
  const User& user() const { return account_.user(); }
  /// It is not read for the time being, see pause_needed().
  bool waiting() const { return waiting_; }
  /// What the client has read by now counts no more.
  void settle_in_flight();
  /// The limits have changed.
  void refresh_rights() { services_.accounts.refresh(account_, identity_.gids); }
  const std::map<std::uint32_t, std::shared_ptr<SessionGroup>>& groups() const { return groups_; }

 private:
  void wait_for_packets();
  /// Reads no further until the messages that this session and its user cause are few enough again, until
  /// it reads its replies, and until its user's fds are closed.
  void pause(std::chrono::nanoseconds time);
  /// How long that takes; zero: read on.
  std::chrono::nanoseconds pause_needed();
  /// The session makes the daemon say so much to other daemons; one message, or one to each peer, is 1.
  void spend(double messages);
  /// The same for what concerns a formed group: a message to other nodes, if there are any in it, and the
  /// calls that tell each of its ranks on this node.
  void spend(const SessionGroup& group, double messages);
  void wait_for_exit();
  void wait_for_hello();
  /// Handles what is in the socket; at most a batch, so that no client holds up the others. `paced`: no more
  /// than pause_needed() allows.
  void read_packets(bool paced);
  /// OK when one more packet may be received, which may bring as many fds as the kernel allows.
  Status check_room() const;
  /// The client reads no more, because its process has ended or its socket is closed: what it sent before is
  /// still handled, then the session ends.
  void hang_up();
  void gone();
  void let_go();

  // Requests: one handler each, in session_requests.cc and session_region_requests.cc.
  void handle(ipc::Packet& packet);
  void on(const abi::Hello& hello, ipc::Packet& packet);
  void on(const abi::JoinGroup& join, ipc::Packet& packet);
  void on(const abi::LeaveGroup& leave, ipc::Packet& packet);
  void on(const abi::RegisterRegion& region, ipc::Packet& packet);
  void on(const abi::UnregisterRegion& unregister, ipc::Packet& packet);
  void on(const abi::SealRegion& seal, ipc::Packet& packet);
  void on(const abi::MapRegion& map, ipc::Packet& packet);
  void on(const abi::Exchange& exchange, ipc::Packet& packet);
  void on(const abi::FailGroup& fail, ipc::Packet& packet);
  void on(const abi::RejectLaunch& reject, ipc::Packet& packet);
  /// False when the packet asks for nothing that needs fds: then it is judged as any other.
  bool refuse_lost_fds(const PacketView& view);
  Status check_hello(const abi::Hello& hello) const;
  Status check_join(const abi::JoinGroup& join) const;
  static Result<std::string> hash_of_secret(const abi::JoinGroup& join);
  Status create_port(const abi::Hello& hello, ipc::UniqueFd& segment_fd);
  Result<Charge> charge_for_group(const abi::JoinGroup& join);
  void joined(std::uint32_t handle, std::uint32_t sequence, const Status& status);
  void forget_group(std::uint32_t handle);
  /// The group, if it is joined; else replies with kNotFound.
  std::shared_ptr<SessionGroup> require_group(std::uint32_t handle, const abi::Header& request);
  Result<std::shared_ptr<const memory::Region>> find_shared_region(const SessionGroup& group,
                                                                   const abi::MapRegion& map) const;
  struct RegionCharges {
    Charge held;  ///< given back when the session gives the region up
    Charge open;  ///< given back when its fds are closed and its memory is unmapped
    Charge keep;  ///< for what stays of its memfd until the session ends
  };
  memory::RegionRequest region_request(const abi::RegisterRegion& ask, std::vector<ipc::UniqueFd>& fds) const;
  Result<RegionCharges> charge_for_region(const abi::RegisterRegion& ask, std::size_t fds);
  void opened_region(const abi::RegisterRegion& ask,
                     const Result<std::shared_ptr<const memory::Region>>& region, Charge held, Charge keep);
  std::uint64_t pinned_bytes() const;

  template <typename Reply>
  void send(const Reply& reply);
  /// The same with fds, which count as this session's until the client has read them. An error is the answer
  /// instead: nothing was sent.
  template <typename Reply>
  Status send_with_fds(const Reply& reply, std::span<const int> fds);
  /// A packet could not be sent.
  void unsent(const Status& why);
  void watch_in_flight();
  void reply(abi::MessageType type, std::uint32_t sequence, const Status& status);
  /// A continuation that sends the plain reply of a request.
  SessionGroup::Done replier(abi::MessageType type, std::uint32_t sequence);

  Services& services_;
  const dataplane::SessionId id_;
  PeerIdentity identity_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer hello_timer_, pace_timer_, in_flight_timer_;
  Account account_;
  Charge connection_charge_, session_charge_;
  std::vector<Charge> in_flight_;  ///< one for each packet with fds that the client may not have read yet
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();

  bool ending_ = false;
  bool hanging_up_ = false;  ///< see hang_up()
  bool waiting_ = false;
  bool waits_for_peers_ = false;  ///< see pause_needed()
  /// Since when check_room() refuses to read on.
  std::optional<std::chrono::steady_clock::time_point> no_room_since_;
  std::string client_name_;
  std::int32_t device_ = -1;
  std::uint32_t rails_ = 0;                       ///< near that GPU
  std::shared_ptr<dataplane::SessionPort> port_;  ///< from hello on
  ChannelSpace channels_;
  std::uint32_t last_handle_ = 0;
  std::map<std::uint32_t, std::shared_ptr<SessionGroup>> groups_;
  /// Of memfds that may be registered again (abi::RegisterRegion::keep), each with its charge.
  std::map<std::shared_ptr<const ipc::WriteHold>, Charge> kept_;
};

}  // namespace mkernel::session
