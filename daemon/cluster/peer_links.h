// The links to all other daemons: finds them, keeps them, says when one has died. See peer.proto for what a
// stream looks like.
//
// Two streams make a link: the one we dialled carries what we say, the one the peer dialled what it says. The
// peer is up when both have begun. A broken stream is dialled again and nothing is lost; the peer goes down
// only when
//   - it is silent for the "dead" time, or
//   - both streams are closed and nobody listens at its address for the "warn" time, or
//   - it said goodbye, or another boot id answers in its place, or it gave us up, or drop() was called.
//
// Who is a peer. Only what answers at an address that we dial is taken for who it says it is; a hello that
// comes in by itself changes nothing before the daemon at that address has vouched for it (the tokens of
// peer.proto). Addresses are those of the configuration; only with TLS, or when options say `open`, a daemon
// that is not configured is dialled back at the address that it names. A second daemon of a name that lives
// is refused, after the first has been asked at its address whether it does.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/aside.h"
#include "daemon/base/line_limit.h"
#include "daemon/cluster/peer.h"
#include "daemon/cluster/peer_bus.h"
#include "daemon/cluster/peer_clock.h"
#include "daemon/cluster/peer_options.h"
#include "daemon/cluster/peer_snapshot.h"
#include "daemon/cluster/peer_wire.h"

namespace mkernel::cluster {

/// Control thread only.
class PeerLinks final : public PeerBus {
 public:
  /// Begins to dial, and listens if there is anybody who may come in. `events` are called from `io`, never
  /// from inside a call. Errors: kAlreadyExists naming who holds the port.
  static Result<std::unique_ptr<PeerLinks>> start(boost::asio::io_context& io, PeerLinksOptions options,
                                                  PeerEvents& events, std::unique_ptr<PeerWire> wire);
  /// Says goodbye to all peers. No event comes any more. Takes half a second at most.
  ~PeerLinks() override;

  void send(transport::PeerId peer, v1::PeerMessage message) override;
  void drop(transport::PeerId peer, const Status& why) override;
  std::vector<std::string> unreachable() const override;
  bool congested() const override { return congested_peers_ != 0; }

  /// Where peers reach this node, with the real port; empty while it does not listen.
  const std::string& address() const { return address_; }
  /// Every peer that is configured or has come by itself, dead ones with the reason.
  std::vector<PeerSnapshot> peers() const;
  /// What peers are told of this node's ports, from the next keepalive on.
  void set_ports(std::vector<v1::NicPort> ports) { ports_ = std::move(ports); }
  /// Takes the place of PeerLinksOptions::peers. The first ones make this node listen, and without any it
  /// stops; errors are those of start(), and the peers are dialled all the same. A peer that is no longer
  /// configured is let go, and its groups fail by that name, unless PeerLinksOptions::admits_all(): then it
  /// could come back at once, and stays.
  Status set_static_peers(const std::vector<std::string>& peers);
  /// PeerLinksOptions::admits_all().
  bool admits_all() const { return options_.admits_all(); }
  /// Peers that are up and not configured, "node b at 10.0.0.2:7600".
  std::set<std::string> unlisted() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// An address that we dial.
  struct Target {
    std::string address, token;
    bool configured = false;
    bool self = false;  ///< our own boot id answers there
    std::shared_ptr<PeerStream> stream;
    std::optional<v1::Hello> answer;    ///< on this stream, until the link begins on it
    std::shared_ptr<PeerStream> probe;  ///< a second stream, beside one that has begun: who answers there now
    Clock::time_point dialled{}, next_dial{}, probed{};
    std::chrono::milliseconds patience{0};           ///< with the stream; doubled whenever it was not enough
    std::optional<Clock::time_point> refused_since;  ///< nobody has answered since then
    std::uint64_t boot_id = 0;                       ///< who answered last; 0: nobody yet
    std::string reason;                              ///< of the last failure
    PeerSnapshot last;                               ///< how the last peer here ended
  };
  using TargetPtr = std::shared_ptr<Target>;

  /// A stream that was dialled by somebody.
  struct Inbound {
    std::shared_ptr<PeerStream> stream;
    std::string host, address;  ///< where it comes from; where it says it is dialled
    v1::Hello hello;
    std::uint64_t boot_id = 0;  ///< who it says it is; 0: no hello yet
    bool answered = false;
    std::optional<v1::Start> start;  ///< waits until the daemon at the address is known
    bool started = false;            ///< the daemon at the address has vouched for it
    bool gone = false;               ///< closed, by either side
    Clock::time_point since{};
  };
  using InboundPtr = std::shared_ptr<Inbound>;

  struct Peer {
    explicit Peer(PeerRecord fresh) : record(std::move(fresh)) {}
    PeerRecord record;
    TargetPtr out;           ///< begun, i.e. Start has been sent
    std::uint64_t said = 0;  ///< the last message that has been given to `out`
    bool owes_alive = false;
    InboundPtr in;  ///< begun, i.e. Start has come
    bool up = false;
    bool reading = false;  ///< a message has been asked for
    bool congested = false;
    Silence told = Silence::kAlive;
    PeerClock clock;
    std::vector<v1::NicPort> ports;
  };

  PeerLinks(boost::asio::io_context& io, PeerLinksOptions options, PeerEvents& events);

  // peer_links.cc: start and end, the bus, time, death, what others see
  Status listen_as_needed();
  void tick();
  void watch(Clock::time_point now);
  void watch_inbounds(Clock::time_point now);
  const Target* refused_for_long(const Peer& peer, Clock::time_point now) const;
  void judge_congestion(Peer& peer, std::size_t unacknowledged);
  PeerSnapshot snapshot(const Peer& peer, Clock::time_point now) const;
  void die(std::uint64_t boot_id, const Status& why);
  Peer* find(std::uint64_t boot_id);
  const Peer* find(std::uint64_t boot_id) const;
  Peer* find_id(transport::PeerId id);
  Peer* find_namesake(const v1::Hello& hello);

  // peer_links_dial.cc: addresses, and who answers there
  void resolve();
  void on_resolved(const Result<std::vector<std::string>>& found);
  void update_targets();
  bool is_configured(const Peer& peer) const;
  TargetPtr add_target(const std::string& address, bool configured);
  void dial_targets(Clock::time_point now);
  void dial(const TargetPtr& target);
  std::shared_ptr<PeerStream> open(const TargetPtr& target);
  bool ask_who_lives(const Peer& peer);
  void on_probed(const TargetPtr& target, const v1::PeerMessage& message);
  void on_dialled(const TargetPtr& target, const v1::PeerMessage& message);
  Status on_answer(const TargetPtr& target, const v1::Hello& hello);
  void on_dial_closed(const TargetPtr& target, const Status& why);
  void begin_outbound(const TargetPtr& target);
  bool drop_second_address(const TargetPtr& target, Peer& peer);
  std::vector<std::string> tokens_of(std::uint64_t boot_id) const;

  // peer_links_accept.cc: who dials us, and what peers say
  void accept(std::shared_ptr<PeerStream> stream);
  void make_room(const std::string& host);
  void on_accepted(const InboundPtr& inbound, const v1::PeerMessage& message);
  Status on_inbound_hello(const InboundPtr& inbound, const v1::PeerMessage& message);
  Status settle(const InboundPtr& inbound);
  void settle_all();
  Status permit(const Inbound& inbound);
  void answer(const InboundPtr& inbound);
  Status on_inbound_start(const InboundPtr& inbound);
  Status on_inbound_message(const InboundPtr& inbound, const v1::PeerMessage& message);
  void refuse(const InboundPtr& inbound, const Status& why);
  void note_refused(const v1::Hello& hello, const std::string& address);
  void read_more(Peer& peer);
  bool settle_epoch(Peer& peer, std::uint64_t epoch);
  void check_up(Peer& peer);
  void say_alive(Peer& peer);
  void say_more(Peer& peer);

  boost::asio::io_context& io_;
  const PeerLinksOptions options_;
  const PeerTimes times_;
  PeerEvents& events_;
  std::string address_;
  boost::asio::steady_timer timer_, dns_timer_;
  base::Aside resolver_;
  std::unique_ptr<PeerWire> wire_;

  std::map<std::string, TargetPtr> targets_;
  std::set<std::string> static_, resolved_;
  std::list<InboundPtr> inbounds_;                        ///< in the order in which they came
  std::map<std::uint64_t, std::unique_ptr<Peer>> peers_;  ///< by boot id
  std::map<std::uint64_t, std::uint64_t> epochs_;         ///< of peers that were given up: the next one
  transport::PeerId last_id_ = 0;
  std::size_t congested_peers_ = 0;
  Clock::time_point last_tick_;
  bool settling_ = false;          ///< settle_all() is on its way
  base::LineLimit refusal_lines_;  ///< by host
  std::string last_refusal_;
  std::vector<v1::NicPort> ports_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();  ///< dies with this
};

}  // namespace mkernel::cluster
