// The listening end of the peer port: accepts connections, keeps those that say nothing away from gRPC, and
// bounds how many gRPC holds. A connection inside gRPC costs some 15 KiB of heap before its first call, and a
// part of that stays with the process for good (see NOTES in peer_acceptor.cc); one that waits here costs a
// few hundred bytes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::cluster {

/// How many connections there may be, in all and from one host.
struct AcceptorLimits {
  /// Have said nothing, or wait to be handed on. One more, and the oldest goes, silent ones first.
  std::size_t waiting = 512, waiting_of_host = 128;
  /// Handed on and not closed since. One more waits.
  std::size_t admitted = 4096, admitted_of_host = 256;
  /// Of a connection that waits.
  std::chrono::milliseconds patience{5000};
};

/// Control thread only.
class PeerAcceptor {
 public:
  /// Takes a connection over whose first byte is there. It closes the descriptor.
  using Admit = std::function<void(ipc::UniqueFd connection)>;

  using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;

  /// What `address` (host:port, port 0 for any) stands for. Any thread; may take as long as the name service
  /// wants. Errors: kInvalidArgument, kUnavailable.
  static Result<Endpoints> look_up(const std::string& address);
  /// Binds all of them, with the port of the first one if it is 0. Errors: kUnavailable when none could be
  /// bound.
  static Result<std::unique_ptr<PeerAcceptor>> bind(boost::asio::io_context& io, const Endpoints& endpoints,
                                                    bool tls, AcceptorLimits limits = {});

  std::uint16_t port() const { return port_; }
  /// Begins to accept. `admit` is called from `io`.
  void start(Admit admit);

  std::size_t waiting() const { return waiting_.size(); }
  /// As of the last time when somebody wanted room.
  std::size_t admitted() const { return admitted_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Tcp = boost::asio::ip::tcp;

  struct Waiting {
    explicit Waiting(Tcp::socket accepted) : socket(std::move(accepted)) {}
    Tcp::socket socket;
    std::string host;
    Clock::time_point since{};
    bool spoke = false;  ///< waits for room behind this door
  };
  using WaitingPtr = std::shared_ptr<Waiting>;

  struct Host {
    std::size_t waiting = 0;
    std::map<int, std::uint64_t> admitted;  ///< descriptors of others, with the inodes of the sockets
    Clock::time_point searched{};           ///< for closed ones
  };

  PeerAcceptor(boost::asio::io_context& io, bool tls, AcceptorLimits limits);

  Status listen_at(const Tcp::endpoint& endpoint);
  void wait_to_accept(std::size_t listener);
  void accept_some(std::size_t listener);
  void take_in(Tcp::socket socket, const Tcp::endpoint& from);
  void make_room(const std::string& host);
  void hear(const WaitingPtr& waiting);
  bool look_at(const WaitingPtr& waiting);
  bool admit(const WaitingPtr& waiting);
  bool has_room(const std::string& host, Clock::time_point now);
  void forget_closed(Host& host);
  void forget_all_closed();
  void drop(const WaitingPtr& waiting);
  void leave(const WaitingPtr& waiting);
  void watch();
  void on_time();

  boost::asio::io_context& io_;
  const bool tls_;
  const AcceptorLimits limits_;
  Admit admit_;
  std::uint16_t port_ = 0;
  std::vector<Tcp::acceptor> listeners_;
  std::list<WaitingPtr> waiting_;  ///< in the order in which they came
  std::map<std::string, Host> hosts_;
  std::size_t admitted_ = 0;
  Clock::time_point searched_{};  ///< when all hosts were searched for closed connections
  boost::asio::steady_timer timer_;
  bool timed_ = false;
  const std::shared_ptr<int> life_ = std::make_shared<int>();  ///< dies with this
};

}  // namespace mkernel::cluster
