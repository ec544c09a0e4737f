// Who dials us, who of them is a peer, and what peers say. All of it came over a wire and is checked; before
// the daemon at a peer's address has vouched for a stream nothing that it says changes anything.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <functional>
#include <utility>

#include "daemon/base/printable.h"
#include "daemon/cluster/peer_hello.h"
#include "daemon/cluster/peer_links.h"
#include "daemon/config/rules.h"

namespace mkernel::cluster {
namespace {

/// Messages taken before they are acknowledged without waiting for the next keepalive.
constexpr std::uint64_t kAcknowledgeEvery = 256;
/// Messages that are taken off the wire while the control thread has others to serve.
constexpr std::size_t kReadAhead = 64;
/// Streams that have not yet begun, of all hosts and of one. The oldest makes room.
constexpr std::size_t kMaxInbounds = 4096, kMaxInboundsOfHost = 256;
/// Addresses that only a hello has named.
constexpr std::size_t kMaxGuests = 1024;
/// Ports that a peer may tell of: more are none of ours.
constexpr int kMaxPorts = 64;

}  // namespace

// ---- streams that others dialled

void PeerLinks::accept(std::shared_ptr<PeerStream> stream) {
  const RemoteEnd end = stream->remote();
  const auto inbound = std::make_shared<Inbound>();
  inbound->stream = std::move(stream);
  inbound->host = end.host;
  inbound->since = Clock::now();
  if (!end.trust.ok()) return refuse(inbound, end.trust);
  make_room(end.host);
  inbounds_.push_back(inbound);
  const std::weak_ptr<Inbound> weak = inbound;
  inbound->stream->start({[this, weak](const v1::PeerMessage& message) {
                            if (const InboundPtr alive = weak.lock()) on_accepted(alive, message);
                          },
                          [this, weak](const Status&) {
                            const InboundPtr alive = weak.lock();
                            if (alive == nullptr) return;
                            alive->gone = true;
                            Peer* peer = find(alive->boot_id);
                            if (peer != nullptr && peer->in == alive) peer->in.reset();
                            inbounds_.remove(alive);
                          }});
  inbound->stream->read();
}

/// A flood takes the places of its own host first, and then those of the oldest.
void PeerLinks::make_room(const std::string& host) {
  InboundPtr oldest, oldest_of_host;
  std::size_t all = 0, of_host = 0;
  for (const InboundPtr& inbound : inbounds_) {
    if (inbound->started) continue;
    if (all++ == 0) oldest = inbound;
    if (inbound->host == host && of_host++ == 0) oldest_of_host = inbound;
  }
  const Status full(StatusCode::kResourceExhausted,
                    "more than " +
                        std::to_string(of_host >= kMaxInboundsOfHost ? kMaxInboundsOfHost : kMaxInbounds) +
                        " streams that have not begun");
  if (of_host >= kMaxInboundsOfHost) {
    refuse(oldest_of_host, full);
  } else if (all >= kMaxInbounds) {
    refuse(oldest, full);
  }
}

void PeerLinks::on_accepted(const InboundPtr& inbound, const v1::PeerMessage& message) {
  if (inbound->started) {
    const Status status = on_inbound_message(inbound, message);
    if (!status.ok()) die(inbound->boot_id, status);
    return;
  }
  Status status;
  if (inbound->boot_id == 0) {
    status = on_inbound_hello(inbound, message);
  } else if (!message.has_start() || inbound->start) {
    status = violation("after the hellos comes a start");
  } else {
    inbound->start = message.start();
    status = on_inbound_start(inbound);
  }
  if (!status.ok()) refuse(inbound, status);
}

Status PeerLinks::on_inbound_hello(const InboundPtr& inbound, const v1::PeerMessage& message) {
  if (!message.has_hello()) return violation("a stream begins with a hello");
  const v1::Hello& theirs = message.hello();
  if (theirs.boot_id() == options_.boot_id) {
    v1::PeerMessage answer;
    *answer.mutable_hello() = answering_hello(options_, address_);
    inbound->stream->send(answer);
    return {StatusCode::kAlreadyExists, "this node has dialled itself"};
  }
  inbound->hello = theirs;
  inbound->address = dialable(theirs.address(), inbound->host);
  const Status fits = check_hello(theirs, options_, address_);
  if (fits.code() == StatusCode::kFailedPrecondition) note_refused(theirs, inbound->address);
  MK_RETURN_IF_ERROR(fits);
  MK_RETURN_IF_ERROR(check_identity(theirs, inbound->stream->remote()));
  inbound->boot_id = theirs.boot_id();
  return settle(inbound);
}

/// As far as it is known by now who is there: answers a hello, begins with a start, waits, or says why not.
Status PeerLinks::settle(const InboundPtr& inbound) {
  if (!inbound->answered) {
    if (const Peer* old = find_namesake(inbound->hello)) {
      if (ask_who_lives(*old)) return {};
      return {StatusCode::kAlreadyExists, "node " + old->record.node() + " at " + inbound->address +
                                              " has the name of the node at " + old->record.address() +
                                              ", which lives: names must differ"};
    }
    MK_RETURN_IF_ERROR(permit(*inbound));
    answer(inbound);
  }
  return inbound->start ? on_inbound_start(inbound) : Status();
}

/// All streams that wait, after something has become known. Not inside the call.
void PeerLinks::settle_all() {
  if (std::exchange(settling_, true)) return;
  boost::asio::post(io_, [this, alive = std::weak_ptr(life_)] {
    if (alive.expired()) return;
    settling_ = false;
    const std::list<InboundPtr> inbounds = inbounds_;
    for (const InboundPtr& inbound : inbounds) {
      if (inbound->started || inbound->gone || inbound->boot_id == 0) continue;
      const Status status = settle(inbound);
      if (!status.ok()) refuse(inbound, status);
    }
  });
}

/// Whether anybody can be this daemon: one that is configured and has not yet been found, or everybody where
/// others are let in. Sees to it that its address is dialled.
Status PeerLinks::permit(const Inbound& inbound) {
  const Peer* peer = find(inbound.boot_id);
  if (peer != nullptr && peer->out != nullptr) return {};
  const auto now = Clock::now();
  bool possible = peer != nullptr;
  const auto targets = targets_;
  for (const auto& [address, target] : targets) {
    if (!target->configured || target->self) continue;
    const Peer* there = find(target->boot_id);
    if (address != inbound.address && there != nullptr && there->out != nullptr) continue;
    possible = true;
    if (!target->stream && now >= target->next_dial) dial(target);
  }
  const std::string who = "node " + inbound.hello.node() + " at " + inbound.address;
  if (!options_.admits_all()) {
    if (possible) return {};
    return {StatusCode::kPermissionDenied, who + " is none of the peers that node " + options_.node +
                                               " is configured with: peers.list or peers.dns name it, "
                                               "[peers.tls] vouches for it, or peers.open lets "
                                               "everybody in"};
  }
  std::string host;
  std::uint16_t port = 0;
  if (!config::split_host_port(inbound.address, host, port)) return violation(who + ": no address to dial");
  const auto guests = std::count_if(targets_.begin(), targets_.end(),
                                    [](const auto& entry) { return !entry.second->configured; });
  if (targets_.count(inbound.address) == 0 && static_cast<std::size_t>(guests) >= kMaxGuests) {
    return {StatusCode::kResourceExhausted,
            who + ": " + std::to_string(kMaxGuests) + " daemons that are not configured are known already"};
  }
  add_target(inbound.address, false);
  return {};
}

void PeerLinks::answer(const InboundPtr& inbound) {
  const Peer* peer = find(inbound->boot_id);
  const auto epoch = epochs_.find(inbound->boot_id);
  v1::PeerMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello = answering_hello(options_, address_);
  hello.set_epoch(peer != nullptr ? peer->record.epoch() : epoch == epochs_.end() ? 1 : epoch->second);
  hello.set_received(peer != nullptr ? peer->record.received() : 0);
  inbound->stream->send(message);
  inbound->answered = true;
  inbound->stream->read();
  const auto targets = targets_;
  for (const auto& [address, target] : targets) {
    if (target->boot_id == inbound->boot_id) begin_outbound(target);
  }
}

Status PeerLinks::on_inbound_start(const InboundPtr& inbound) {
  const v1::Start& start = *inbound->start;
  Peer* peer = find(inbound->boot_id);
  const Status stale(StatusCode::kAborted, "node " + options_.node + " has given this link up meanwhile");
  const auto shown = [&](const Target& target) {
    return std::count(start.tokens().begin(), start.tokens().end(), target.token) != 0;
  };
  const bool vouched = std::any_of(targets_.begin(), targets_.end(), [&](const auto& entry) {
    return entry.second->boot_id == inbound->boot_id && shown(*entry.second);
  });
  if (peer == nullptr || !vouched) {
    // The answer of the daemon with this token may still be on its way.
    const bool pending = std::any_of(targets_.begin(), targets_.end(), [&](const auto& entry) {
      return entry.second->stream != nullptr && !entry.second->answer && shown(*entry.second);
    });
    if (pending) return {};
    if (peer == nullptr) return stale;
    return {StatusCode::kPermissionDenied, "node " + inbound->hello.node() + " at " + inbound->address +
                                               " does not know what node " + options_.node + " said there"};
  }
  if (start.epoch() < peer->record.epoch() || !settle_epoch(*peer, start.epoch())) return stale;
  if (peer->in != nullptr) {
    peer->in->stream->close({StatusCode::kAborted, "a newer stream took the place of this one"});
    peer->in->gone = true;
    inbounds_.remove(peer->in);
  }
  inbound->started = true;
  peer->in = inbound;
  peer->reading = false;
  peer->record.heard(Clock::now());
  if (peer->up) {
    read_more(*peer);
  } else {
    peer->record.set_rails(inbound->hello);
    check_up(*peer);
  }
  return {};
}

/// Who it is that we refuse, for mkctl: it refuses us as well, and says no more than why.
void PeerLinks::note_refused(const v1::Hello& hello, const std::string& address) {
  const auto target = targets_.find(address);
  if (target == targets_.end() || find(target->second->boot_id) != nullptr) return;
  PeerSnapshot& last = target->second->last;
  last.node = hello.node();
  last.boot_id = hello.boot_id();
  last.version = hello.software_version();
  last.transport = rails_of(hello);
}

void PeerLinks::refuse(const InboundPtr& inbound, const Status& why) {
  const std::string text = inbound->host + ": " + base::one_line(why.text());
  // It dials again and again: one line is enough, and few are enough of a flood.
  if (text != std::exchange(last_refusal_, text) &&
      refusal_lines_.admit(std::hash<std::string>()(inbound->host))) {
    spdlog::warn("refused a peer from {}", text);
  }
  inbound->gone = true;
  inbound->stream->finish(why);
  inbounds_.remove(inbound);
}

// ---- the link

/// The peer counts further than we do: it has given us up since. False when this peer is no more.
bool PeerLinks::settle_epoch(Peer& peer, std::uint64_t epoch) {
  if (epoch <= peer.record.epoch()) return true;
  if (peer.up) {
    die(peer.record.boot_id(),
        {StatusCode::kUnavailable, peer.record.describe() + " had given this node up"});
    return false;
  }
  peer.record.set_epoch(epoch);
  return true;
}

void PeerLinks::check_up(Peer& peer) {
  if (peer.up || peer.in == nullptr || peer.out == nullptr) return;
  peer.up = true;
  peer.told = Silence::kAlive;
  spdlog::info("peer {} at {} is up", peer.record.describe(), peer.out->address);
  events_.peer_up(peer.record.info());
  read_more(peer);
}

void PeerLinks::read_more(Peer& peer) {
  if (!peer.up || peer.in == nullptr || std::exchange(peer.reading, true)) return;
  peer.in->stream->read(kReadAhead);
}

Status PeerLinks::on_inbound_message(const InboundPtr& inbound, const v1::PeerMessage& message) {
  Peer* peer = find(inbound->boot_id);
  if (peer == nullptr || peer->in != inbound) return {};
  peer->reading = false;
  peer->record.heard(Clock::now());
  if (message.has_keepalive()) {
    if (!peer->record.acknowledge(message.keepalive().received())) {
      return violation("it acknowledges what was never said");
    }
    peer->said = std::max(peer->said, message.keepalive().received());
    judge_congestion(*peer, peer->record.unacknowledged().size());
    peer->clock.hear(message.keepalive(), options_.wall_clock());
    const auto& ports = message.keepalive().ports();
    peer->ports.assign(ports.begin(), ports.begin() + std::min(ports.size(), kMaxPorts));
  } else if (message.has_goodbye()) {
    return {StatusCode::kUnavailable, base::one_line(message.goodbye().reason())};
  } else {
    const PeerRecord::Take take = peer->record.take(message.sequence());
    if (take == PeerRecord::Take::kGap) {
      return violation("message " + std::to_string(message.sequence()) + " came after " +
                       std::to_string(peer->record.received()));
    }
    if (take == PeerRecord::Take::kNew) events_.received(peer->record.info().id, message);
    if (peer->record.unreported() >= kAcknowledgeEvery) say_alive(*peer);
  }
  read_more(*peer);
  return {};
}

/// Behind a full stream it would come late and be one of many: it is said when there is room again.
void PeerLinks::say_alive(Peer& peer) {
  if (peer.out == nullptr) return;
  if (peer.out->stream->full()) {
    peer.owes_alive = true;
    return;
  }
  v1::PeerMessage message;
  v1::KeepAlive& alive = *message.mutable_keepalive();
  alive.set_received(peer.record.received());
  alive.mutable_ports()->Add(ports_.begin(), ports_.end());
  peer.clock.say(alive, options_.wall_clock());
  peer.out->stream->send(message);
  peer.record.take_unreported();
}

/// What has not been said yet, as far as the stream takes it; the rest waits in the record.
void PeerLinks::say_more(Peer& peer) {
  while (peer.out != nullptr && !peer.out->stream->full()) {
    const v1::PeerMessage* next = peer.record.after(peer.said);
    if (next == nullptr) return;
    peer.said = next->sequence();
    peer.out->stream->send(*next);
  }
}

}  // namespace mkernel::cluster
