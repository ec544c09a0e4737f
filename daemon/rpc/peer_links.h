// The links to all other daemons: finds them, keeps them, says when one has died. See peer.proto for what a
// stream looks like.
//
// Two streams make a link: the one we dialled carries what we say, the one the peer dialled what it says. The
// peer is up when both have begun. A broken stream is dialled again and nothing is lost; the peer goes down
// only when
//   - it is silent for the "dead" time, or
//   - both streams are closed and nobody listens at its address for the "warn" time, or
//   - it said goodbye, or another boot id answers in its place, or it gave us up, or drop() was called.
// A daemon that is not configured here but dials us is dialled back at the address that it names.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/rpc/grpc_wire.h"
#include "daemon/rpc/peer.h"
#include "daemon/rpc/peer_bus.h"
#include "daemon/rpc/peer_clock.h"
#include "daemon/rpc/peer_snapshot.h"
#include "daemon/rpc/peer_wire.h"

namespace mkernel::rpc {

/// Nanoseconds since 1970, as this machine's clock says.
std::int64_t wall_time();

struct PeerLinksOptions {
  std::string node;
  std::uint64_t boot_id = 0;
  std::string software_version;
  std::string listen = "127.0.0.1:0";
  std::string advertise;           ///< host:port that peers dial; `listen` with its real port when empty
  std::vector<std::string> peers;  ///< host:port of each; this node itself may be among them
  std::string dns;                 ///< name:port, every address of it is a peer; empty: none
  std::chrono::seconds dns_refresh{10};
  double time_scale = 1;  ///< of the keepalive (1 s) and of warn (5 s), error (20 s), dead (60 s)
  TlsFiles tls;
  std::string transport;                                 ///< kind of the data plane; all nodes have the same
  std::vector<std::string> endpoints;                    ///< of the data plane, by rail
  std::function<std::int64_t()> wall_clock = wall_time;  ///< what peers are told
};

/// Control thread only.
class PeerLinks final : public PeerBus {
 public:
  /// Listens and begins to dial. `events` are called from `io`, never from inside a call. Errors:
  /// kAlreadyExists naming who holds the port, kNotFound naming a TLS file.
  static Result<std::unique_ptr<PeerLinks>> start(boost::asio::io_context& io, PeerLinksOptions options,
                                                  PeerEvents& events);
  /// Says goodbye to all peers. No event comes any more. Takes half a second at most.
  ~PeerLinks() override;

  void send(transport::PeerId peer, v1::PeerMessage message) override;
  void drop(transport::PeerId peer, const Status& why) override;
  std::vector<std::string> unreachable() const override;
  bool congested() const override { return congested_peers_ != 0; }

  /// Where peers reach this node, with the real port.
  const std::string& address() const { return address_; }
  /// Every peer that is configured or has come by itself, dead ones with the reason.
  std::vector<PeerSnapshot> peers() const;
  /// What peers are told of this node's ports, from the next keepalive on.
  void set_ports(std::vector<v1::NicPort> ports) { ports_ = std::move(ports); }
  /// Takes the place of PeerLinksOptions::peers; peers that are up stay up.
  void set_static_peers(const std::vector<std::string>& peers);

 private:
  using Clock = std::chrono::steady_clock;

  /// An address that we dial.
  struct Target {
    std::string address;
    bool configured = false;
    bool self = false;  ///< our own boot id answers there
    std::shared_ptr<PeerStream> stream;
    Clock::time_point dialled{}, next_dial{};
    std::optional<Clock::time_point> refused_since;  ///< nobody has answered since then
    std::uint64_t boot_id = 0;                       ///< who answered last; 0: nobody yet
    std::string reason;                              ///< of the last failure
    PeerSnapshot last;                               ///< how the last peer here ended
  };
  using TargetPtr = std::shared_ptr<Target>;

  /// A stream that was dialled by a peer.
  struct Inbound {
    std::shared_ptr<PeerStream> stream;
    std::uint64_t boot_id = 0;  ///< 0: no hello yet
    bool started = false;
    Clock::time_point since{};
  };
  using InboundPtr = std::shared_ptr<Inbound>;

  struct Peer {
    explicit Peer(PeerRecord fresh) : record(std::move(fresh)) {}
    PeerRecord record;
    TargetPtr out;  ///< begun, i.e. Start has been sent
    InboundPtr in;  ///< begun, i.e. Start has come
    bool up = false;
    bool reading = false;  ///< a message has been asked for
    bool congested = false;
    Silence told = Silence::kAlive;
    PeerClock clock;
    std::vector<v1::NicPort> ports;
  };

  PeerLinks(boost::asio::io_context& io, PeerLinksOptions options, PeerEvents& events);

  // peer_links.cc: addresses, time, death
  void tick();
  void watch(Clock::time_point now);
  const Target* refused_for_long(const Peer& peer, Clock::time_point now) const;
  void dial_targets(Clock::time_point now);
  void dial(const TargetPtr& target);
  void resolve();
  void update_targets();
  TargetPtr add_target(const std::string& address, bool configured);
  void judge_congestion(Peer& peer, std::size_t unacknowledged);
  PeerSnapshot snapshot(const Peer& peer, Clock::time_point now) const;
  void die(std::uint64_t boot_id, const Status& why);

  // peer_links_streams.cc: what comes on the streams
  v1::PeerMessage hello() const;
  Status check(const v1::Hello& hello) const;
  Result<Peer*> admit(const v1::Hello& hello, const std::string& address);
  void on_dialled(const TargetPtr& target, const v1::PeerMessage& message);
  void on_dial_closed(const TargetPtr& target, const Status& why);
  void begin_outbound(const TargetPtr& target, Peer& peer, const v1::Hello& hello);
  void accept(std::shared_ptr<PeerStream> stream);
  void on_accepted(const InboundPtr& inbound, const v1::PeerMessage& message);
  Status on_inbound_hello(Inbound& inbound, const v1::PeerMessage& message);
  Status on_inbound_start(const InboundPtr& inbound, const v1::PeerMessage& message);
  Status on_inbound_message(const InboundPtr& inbound, const v1::PeerMessage& message);
  void refuse(const InboundPtr& inbound, const Status& why);
  void note_refused(const v1::Hello& hello, const std::string& address);
  void read_more(Peer& peer);
  void say_alive(Peer& peer);
  bool settle_epoch(Peer& peer, std::uint64_t epoch);
  void check_up(Peer& peer);

  Peer* find(std::uint64_t boot_id);
  const Peer* find(std::uint64_t boot_id) const;
  Peer* find_id(transport::PeerId id);

  boost::asio::io_context& io_;
  const PeerLinksOptions options_;
  const PeerTimes times_;
  PeerEvents& events_;
  std::string address_;
  boost::asio::steady_timer timer_, dns_timer_;
  boost::asio::ip::tcp::resolver resolver_;
  std::unique_ptr<PeerWire> wire_;

  std::map<std::string, TargetPtr> targets_;
  std::set<std::string> static_, resolved_;
  std::set<InboundPtr> inbounds_;
  std::map<std::uint64_t, std::unique_ptr<Peer>> peers_;  ///< by boot id
  std::map<std::uint64_t, std::uint64_t> epochs_;         ///< of peers that were given up: the next one
  transport::PeerId last_id_ = 0;
  std::size_t congested_peers_ = 0;
  Clock::time_point last_tick_;
  std::string last_refusal_;
  std::vector<v1::NicPort> ports_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();  ///< dies with this
};

}  // namespace mkernel::rpc
